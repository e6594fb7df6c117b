"""Sizes of the axes of TVM's tensors: an int where a size is constant, else a TIR expression."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tvm
from tvm import tirx
from tvm.ir import Expr

# The size of an axis: an int, or a TIR expression of the variables of dynamic dimensions.
Extent: TypeAlias = int | Expr


def extent(size: Any) -> Extent:
    """`size` as an int if it is a constant, else unchanged."""
    return int(size) if isinstance(size, (int, tirx.IntImm)) else size


def shape_of(tensor: Any) -> list[Extent]:
    """The sizes of the axes of a tensor, an expression of Relax whose shape is known."""
    return [extent(size) for size in tensor.ty.shape]


def bytes_of(tensor: Any) -> int | None:
    """The bytes of a tensor's elements; None where a size is not constant."""
    sizes = shape_of(tensor)
    if not all(isinstance(size, int) for size in sizes):
        return None
    return math.prod(map(int, sizes)) * int(tvm.DataType(str(tensor.ty.dtype)).bits) // 8


def is_one(size: Extent) -> bool:
    """Whether a size is the constant 1, so that the axis may be broadcast."""
    return isinstance(size, (int, tirx.IntImm)) and int(size) == 1
