"""Kiln: an ahead-of-time, multi-target build system for machine-learning models."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def generate(env: Any, **options: Any) -> None:
    """Entry point of the SCons tool: called for `Environment(tools=["kiln"])`. See kiln.scons.tool."""
    from kiln.scons import tool

    tool.generate(env, **options)


def exists(env: Any) -> bool:
    """Whether the SCons tool can be used: always, as its dependencies are installed with the package."""
    return True
