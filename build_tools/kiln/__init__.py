"""Kiln: an ahead-of-time, multi-target build system for machine-learning models."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def generate(env: Any, **options: Any) -> None:
    """SCons's entry into a tool: this package is one, `Environment(tools=["kiln"])`. See kiln.scons.tool."""
    from kiln.scons import tool

    tool.generate(env, **options)


def exists(env: Any) -> bool:
    """SCons's question whether the tool can be used: everything it needs was installed with it."""
    return True
