"""Syntax trees of source files, each parsed once by all tests of a process that look at the whole source.

conftest.py hands these tests to one process.
"""

from __future__ import annotations

import ast
import functools


@functools.cache
def tree(text: str) -> ast.Module:
    """The syntax tree of a Python file's text."""
    return ast.parse(text)


@functools.cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, from the outside inwards."""
    return tuple(ast.walk(tree(text)))
