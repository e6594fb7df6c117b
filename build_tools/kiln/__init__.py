"""Kiln: an ahead-of-time, multi-target build system for machine-learning models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError

if TYPE_CHECKING:
    from kiln.command_line.build import BuiltBundle
    from kiln.runtime import Network

__all__ = ["KilnError", "build", "load"]
__version__ = "0.1.0"


def load(
    bundle: str | os.PathLike[str], threads: int = 1, gpu: int = 0, variant: str | None = None
) -> Network:
    """Load the bundle in the folder `bundle` and return it as a Python function. See kiln.runtime.network.

    NumPy is imported here and not with `kiln`, which SCons imports in every build.
    """
    from kiln import runtime

    return runtime.load(bundle, threads, gpu, variant)


def build(
    model: Any,
    target: str = "host",
    folder: str | os.PathLike[str] = ".",
    name: str = "model",
    **options: str,
) -> BuiltBundle:
    """Build `model` for `target` as the command `kiln build` does. See kiln.command_line.build."""
    from kiln.command_line import build as command

    return command.build(model, target, folder, name, **options)


def generate(env: Any, **options: Any) -> None:
    """Entry point of the SCons tool: called for `Environment(tools=["kiln"])`. See kiln.scons.tool."""
    from kiln.scons import tool

    tool.generate(env, **options)


def exists(env: Any) -> bool:
    """Whether the SCons tool can be used: always, as its dependencies are installed with the package."""
    return True
