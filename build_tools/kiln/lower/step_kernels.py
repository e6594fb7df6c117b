"""The kernels of one step, one for each variant of the target, and the settings they are lowered with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm

from kiln.kernels.families import GroupKernel
from kiln.tir.builder import Machine


@dataclass(frozen=True)
class Build:
    """The settings with which the kernels of one variant of the target are lowered."""

    name: str
    machine: Machine
    target: tvm.target.Target


@dataclass(frozen=True)
class VariantKernel:
    """A kernel of a step for one variant: its symbol, and its scratch buffers as pairs (dtype, bytes)."""

    part: GroupKernel
    symbol: str
    scratch: list[tuple[str, int]]


@dataclass(frozen=True)
class StepKernel:
    """The kernel of a step, for the last variant (`part`).

    `again(region)` lowers the kernels of all variants again, with `Machine.prefetch_range` = `region`; it
    returns their new symbols by the old ones.
    """

    part: GroupKernel
    again: Callable[[tuple[int, int]], dict[str, str]]


def element_type(pointer: Any) -> str:
    """The data type of the elements that a pointer parameter points to."""
    return str(pointer.ty.element_type.dtype)
