"""Package files of a bundle, for builds that use it: CMake's find_package and pkg-config."""

from __future__ import annotations

import re
from pathlib import Path

from kiln import __version__, templates
from kiln.byoc.libraries.folder import bundled
from kiln.config.systems import Format
from kiln.errors import printable

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def write(
    folder: Path, name: str, target: str, description: str, threads: str, file_format: Format = "elf"
) -> None:
    """Write cmake/<name>Config.cmake, cmake/<name>ConfigVersion.cmake and pkgconfig/<name>.pc.

    All paths in them are relative, so the bundle can be moved. If the folder's name has spaces, pkg-config
    quotes them only in flags such as -L. So libraries are written as -l:FILE, if the linkers for
    `file_format` support that.
    """
    environment = templates.environment(_TEMPLATES)
    environment.filters.update(cmake=cmake_text, line=one_line, pc=pkgconfig_text, pc_file=pkgconfig_file)
    libraries = [("STATIC", name, f"lib{name}.a")]
    for shared in (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll"):
        if (folder / "lib" / shared).exists():
            libraries.append(("SHARED", "shared", shared))
    by_name = file_format in ("elf", "coff")
    words = {
        "name": name,
        "root": f"${{{name}_ROOT}}",
        "target": target,
        "description": description if description.split() else f"{name}, compiled by Kiln",
        "version": __version__,
        "libraries": libraries,
        "threads": threads == "pthread",
        "external": [name for about in bundled(folder) for name in about["link"]],
        "by_name": by_name,
        "params_file": (folder / "params.bin").exists(),
    }
    for template, path in (
        ("Config.cmake.j2", folder / "cmake" / f"{name}Config.cmake"),
        ("ConfigVersion.cmake.j2", folder / "cmake" / f"{name}ConfigVersion.cmake"),
        ("pkgconfig.pc.j2", folder / "pkgconfig" / f"{name}.pc"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(environment.get_template(template).render(words), encoding="utf-8")


def one_line(text: str) -> str:
    """`text` on one line, for comments: control characters and bidirectional marks are escaped."""
    return printable(" ".join(text.split()))


def cmake_text(text: str) -> str:
    """`text` escaped for a quoted argument of CMake: no variable, escape or separator remains in it."""
    return re.sub(r'(["\\$;])', r"\\\1", one_line(text))


def pkgconfig_text(text: str) -> str:
    """`text` escaped for a field of a pkg-config file: no variable or comment remains in it."""
    return re.sub(r"#", r"\\#", one_line(text).replace("\\", "\\\\").replace("$", "$$"))


def pkgconfig_file(name: str) -> str:
    """A file's name escaped for the flags of a pkg-config file, which are split like a shell's words."""
    return re.sub(r"([^A-Za-z0-9_./+-])", r"\\\1", one_line(name)).replace("$", "$$")
