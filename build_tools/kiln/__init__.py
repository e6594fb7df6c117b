"""Kiln: an ahead-of-time, multi-target build system for machine-learning models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError, not_installed

if TYPE_CHECKING:
    from kiln.command_line.build import BuiltBundle
    from kiln.runtime import Network

__all__ = ["KilnError", "build", "load"]
__version__ = "0.1.0"

# ONNX Runtime reports its use to its publisher, unless it is told not to before it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def load(
    bundle: str | os.PathLike[str],
    threads: int = 1,
    gpu: int = 0,
    variant: str | None = None,
    contents: bool = False,
) -> Network:
    """Load the bundle in the folder `bundle` and return it as a Python function. See kiln.runtime.network.

    NumPy is imported here and not with `kiln`, which SCons imports in every build.
    """
    from kiln import runtime

    return runtime.load(bundle, threads, gpu, variant, contents)


def build(
    model: Any,
    args: Any = None,
    target: str = "host",
    folder: str | os.PathLike[str] = ".",
    name: str = "model",
    dynamic_shapes: Any = None,
    **options: str,
) -> BuiltBundle:
    """Build `model` for `target` as the command `kiln build` does. See kiln.command_line.build.

    For a torch.nn.Module, `args` are its example inputs and `dynamic_shapes` its dynamic dimensions, both as
    torch.export.export takes them. For other models a text in the place of `args` is the target.
    """
    try:
        from kiln.command_line import build as command
    except ModuleNotFoundError as missing:
        raise not_installed(missing) from None

    if isinstance(args, str):
        args, target = None, args
    return command.build(model, target, folder, name, args, dynamic_shapes, **options)


def generate(env: Any, **options: Any) -> None:
    """Entry point of the SCons tool: called for `Environment(tools=["kiln"])`. See kiln.scons.tool."""
    from kiln.scons import tool

    tool.generate(env, **options)


def exists(env: Any) -> bool:
    """Whether the SCons tool can be used: always, as its dependencies are installed with the package."""
    return True
