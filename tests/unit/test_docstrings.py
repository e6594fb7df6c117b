"""Docstrings describe parameters and fields that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from syntax import nodes

from .test_lengths import files

# `name`: its meaning, where a sentence or a part of one begins; without backticks only where a sentence does.
_DESCRIBED = re.compile(r"(?:^|[.;:] |\n|, )`([a-z_]+)`(?=(?:, `[a-z_]+`)*: )|(?:\n\n|\. )([a-z_]+): ")


def _names_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """Parameters of a function; fields, methods and parameters of the constructor of a class."""
    if not isinstance(node, ast.ClassDef):
        return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
            names.add(part.id if isinstance(part, ast.Name) else part.attr)
        elif isinstance(part, ast.FunctionDef):
            names |= {part.name, *(_names_of(part) if part.name == "__init__" else ())}
    return names


def _undeclared(source: str) -> Iterator[tuple[Any, str]]:
    """Every function and class of a file, with each name that its docstring describes and that it lacks."""
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for match in _DESCRIBED.finditer(ast.get_docstring(node) or ""):
                name = match.group(1) or match.group(2)
                if name not in _names_of(node):
                    yield node, name


def _first_lines(source: str) -> Iterator[str]:
    """The first line of every docstring of a file."""
    for node in nodes(source):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield text.split("\n")[0]


def test_docstrings_describe_parameters_that_exist() -> None:
    """A parameter that was renamed or removed has left no description; the first line is a sentence."""
    wrong, broken = [], []
    for path, text in files(("build_tools", "benchmarks")):
        if path.endswith(".py"):
            wrong += [f"{path}:{node.lineno} {node.name}: {name}" for node, name in _undeclared(text)]
            broken += [f"{path}: {first}" for first in _first_lines(text) if first[-1] not in ".:…"]
    assert wrong == [] and broken == []


def test_descriptions_are_found() -> None:
    text = 'def f(a, b):\n    """The sum; `a`: a number.\n\n    b: another. `c`, `d`: gone. It is: so."""'
    assert [name for _, name in _undeclared(text)] == ["c", "d"]
