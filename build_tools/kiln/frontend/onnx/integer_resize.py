"""Resize and GridSample of integers: computed in floats, then integers again.

ONNX Runtime drops the fractions of a linear Resize of int8, uint8 and int32, and rounds after each axis, the
last one first, with antialias. What it lacks is as ONNX's own evaluator has it, which rounds the result of a
Resize to the nearest whole number, of two the even one. A GridSample drops the fractions. Results beyond a
type are its nearest number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import DataType, relax

from kiln.frontend.onnx.node import Node

op = relax.op
_OF_RUNTIME = ("int8", "uint8", "int32")  # the types that ONNX Runtime interpolates
_EXACT_BITS = 16  # of integers that float32 interpolates without an error that matters


def resize_integers(node: Node, mode: str, resize_floats: Callable[[Node, str], Any]) -> Any:
    """Resize of integers by the function `resize_floats` of a node and of the type to which it rounds.

    Raises ValueError for truth values.
    """
    data, emit = node.tensor(0), node.builder.emit
    dtype, antialias = str(data.ty.dtype), bool(node.attributes.get("antialias", 0))
    if dtype == "bool":
        raise ValueError(f"mode {mode} of bool, allowed: numbers, or mode nearest; insert Casts around it")
    as_runtime = dtype in _OF_RUNTIME and (antialias or mode == "linear")
    unit = relax.const(1.0, "float32"), relax.const(0, dtype)
    is_byte = dtype in ("int8", "uint8")
    wide = "float32" if as_runtime and not antialias else wide_type(dtype)
    floats = emit(op.dequantize(data, *unit) if is_byte else op.astype(data, wide))
    node = replace(node, replaced={**node.replaced, 0: floats})
    resized = emit(resize_floats(node, dtype if as_runtime and antialias else ""))
    if not as_runtime:
        resized = emit(clipped(emit(op.round(resized)), dtype))
    return op.astype(resized, dtype)


def wide_type(dtype: str) -> str:
    """The type of floats in which integers of type `dtype` are interpolated."""
    return "float32" if dtype == "bool" or DataType(dtype).bits <= _EXACT_BITS else "float64"


def rounded(emit: Callable[[Any], Any], floats: Any, dtype: str) -> Any:
    """Floats rounded to whole numbers of the integer type `dtype`, halves away from zero."""
    half = relax.const(0.5, str(floats.ty.dtype))
    size = emit(op.floor(emit(op.add(emit(op.abs(floats)), half))))
    return emit(clipped(emit(op.multiply(size, emit(op.sign(floats)))), dtype))


def clipped(floats: Any, dtype: str) -> Any:
    """Floats in the range of the integer type `dtype`."""
    info, kind = np.iinfo(dtype), np.dtype(str(floats.ty.dtype))
    most = kind.type(info.max)
    if int(most) > info.max:
        most = np.nextafter(most, kind.type(0))
    return op.clip(floats, float(info.min), float(most))
