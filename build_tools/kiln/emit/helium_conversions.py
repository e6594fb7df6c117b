"""Conversions between floats and integers for which LLVM 22 calls a library on a core with Helium.

A vector of two int32 is a vector of two int64 to it, and their conversions are calls. So are conversions of
float16 from and to int64, of functions that no compiler's library for ARM has. Two lanes are converted one by
one here, and float16 by way of int32, which holds every finite one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from kiln.callbacks import structural_map
from kiln.tir.vector_expr import cast, in_lanes, scalar

_MOST = 1 << 16  # 65520 and more are rounded to the infinity of float16


def convert_in_words(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without conversions that are calls, but those of float32 to int64."""
    return func.with_body(structural_map(func.body, ((tirx.Cast, _converted),)))


def _converted(node: Any) -> Any:
    source, result = scalar(node.value), scalar(node)
    if result in ("int64", "uint64") and _is_of_half(node.value):
        return cast(result, _of_pair(cast("int32", node.value)))
    if source in ("int64", "uint64") and result == "float16":
        return _of_pair(cast("float16", cast("int32", _within(node.value, source))))
    return _of_pair(node)


def _is_of_half(value: Any) -> bool:
    inner = value.value if isinstance(value, tirx.Cast) and scalar(value) == "float32" else value
    return scalar(inner) == "float16"


def _within(value: Any, dtype: str) -> Any:
    """`value`, or the nearest number of int32 that becomes the same float16."""
    value = tirx.min(value, in_lanes(tirx.const(_MOST, dtype), value))
    return value if dtype == "uint64" else tirx.max(value, in_lanes(tirx.const(-_MOST, dtype), value))


def _of_pair(node: Any) -> Any:
    """A vector of two numbers that a cast makes, lane by lane if they are floats or made of floats."""
    dtype = tvm.DataType(str(node.ty.dtype))
    floats = [scalar(value).startswith("float") for value in (node, node.value)]
    if dtype.lanes != 2 or floats[0] == floats[1]:
        return node
    lanes = [cast(scalar(node), tirx.Shuffle([node.value], [lane])) for lane in range(2)]
    return tirx.Shuffle(lanes, [0, 1])
