"""So that a user's own build finds a bundle: files for CMake's find_package and for pkg-config."""

from __future__ import annotations

from pathlib import Path

import jinja2

from kiln import __version__
from kiln.libraries.folder import bundled

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def write(folder: Path, name: str, target: str, description: str, threads: str) -> None:
    """Write cmake/<name>Config.cmake and pkgconfig/<name>.pc. Both work wherever the folder is moved to."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    libraries = [("STATIC", name, f"lib{name}.a")]
    if (folder / "lib" / f"lib{name}.so").exists():
        libraries.append(("SHARED", "shared", f"lib{name}.so"))
    words = {
        "name": name,
        "root": f"${{{name}_ROOT}}",
        "target": target,
        "description": " ".join(description.split()) or f"{name}, compiled by Kiln",
        "version": __version__,
        "libraries": libraries,
        "threads": threads == "pthread",
        "external": [name for about in bundled(folder) for name in about["link"]],
        "params_file": (folder / "params.bin").exists(),
    }
    for template, path in (
        ("Config.cmake.j2", folder / "cmake" / f"{name}Config.cmake"),
        ("pkgconfig.pc.j2", folder / "pkgconfig" / f"{name}.pc"),
    ):
        path.parent.mkdir()
        path.write_text(environment.get_template(template).render(words), encoding="utf-8")
