"""Packages import only packages below them: the layout that docs/architecture.md describes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kiln
from syntax import nodes

PACKAGE = Path(kiln.__file__).parent
# Bottom to top. Modules directly in the package (errors, files, …) are below all of them.
ORDER = (
    "stages", "runtime", "config", "sources", "params", "operators", "frontend", "graph", "specialize", "tir",
    "opinfo", "byoc", "kernels", "lower", "plan", "emit", "golden", "precision", "trust", "device", "report",
    "tune", "scons", "command_line",
)  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """First name below `kiln` of every import in a file, also of those inside functions."""
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.ImportFrom) and node.module == "kiln":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kiln."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("kiln."))


def test_every_package_has_its_floor() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(ORDER)


def test_imports_point_down() -> None:
    floor = {name: number for number, name in enumerate(ORDER)}
    upward = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for package in ORDER
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for name in imports(path)
        if floor.get(name, -1) > floor[package]
    ]
    assert upward == []


def test_modules_outside_of_packages_import_none() -> None:
    upward = {
        f"{path.name} imports {name}"
        for path in PACKAGE.glob("*.py")
        for name in imports(path)
        if name in ORDER
    }
    assert upward == {
        "__init__.py imports command_line",
        "__init__.py imports runtime",
        "__init__.py imports scons",
        "__main__.py imports stages",
        "stage_server.py imports stages",
        "toolchain.py imports config",
    }


def test_a_class_name_stands_once() -> None:
    """A reader who meets a class's name knows which class it is, whatever the file imports."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "class " not in text:
            continue
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
