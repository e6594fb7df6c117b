"""Loop nests that are matmuls or convolutions: their operands, and tensors that only they read."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import PrimFunc

from kiln.callbacks import structural_walk
from kiln.kernels.gpu.block_tile import LEAST
from kiln.opinfo.kinds import nests_of
from kiln.tir.fused import Nest
from kiln.tir.inline import loads
from kiln.tir.symbols import is_dynamic

WIDE = "float32"


def is_product(nest: Nest) -> bool:
    """Whether a nest is a matmul or convolution: each of its two operands has result axes of its own.

    A depthwise convolution does not count, as it cannot use tensor cores.
    """
    return all(own_axes(nest))


def is_large(nest: Nest) -> bool:
    """Whether a product has as many rows and columns as tensor cores need; a dynamic size counts as large."""
    return all(
        math.prod(LEAST if is_dynamic(axis.dom.extent) else int(axis.dom.extent) for axis in axes) >= LEAST
        for axes in own_axes(nest)
    )


def own_axes(nest: Nest) -> tuple[list[Any], list[Any]]:
    """The result axes that only one operand of a product depends on, for each of its two operands."""
    loads = operands(nest)
    if loads is None:
        return [], []
    first, second = ([_reads(load, axis.var) for axis in nest.axes] for load in loads)
    uses = list(zip(nest.axes, first, second, strict=True))
    return [a for a, x, y in uses if x and not y], [a for a, x, y in uses if y and not x]


def operands(nest: Nest) -> tuple[Any, Any] | None:
    """The two float32 loads whose product a nest accumulates; None if the nest is not such a reduction."""
    accumulation = nest.value
    if not nest.reduced or not isinstance(accumulation, tirx.Add):
        return None
    product = next((side for side in (accumulation.a, accumulation.b) if isinstance(side, tirx.Mul)), None)
    if product is None:
        return None
    loads = [product.a, product.b]
    plain = all(isinstance(load, TensorLoad) and str(load.source.dtype) == WIDE for load in loads)
    return (loads[0], loads[1]) if plain and not loads[0].source.same_as(loads[1].source) else None


def rounds(func: PrimFunc, tensor: Any) -> bool:
    """Whether products of `func` are all that reads `tensor`, perhaps with zeros around it."""
    nests = nests_of(func)
    if nests is None:
        return False
    for nest in nests:
        if not any(load.source.same_as(tensor) for load in loads(nest.value)):
            continue
        if is_product(nest):
            continue
        inner = not any(nest.buffer.same_as(param) for param in func.params)
        if nest.reduced or not inner or not _moves(nest.value) or not rounds(func, nest.buffer):
            return False
    return True


def _moves(value: Any) -> bool:
    """Whether an expression is a load, or zero where a condition on its place does not hold."""
    while isinstance(value, Call) and str(getattr(value.op, "name", "")) == "prim.if_then_else":
        condition, value, other = value.args
        if loads(condition) or not isinstance(other, tirx.FloatImm) or other.value != 0:
            return False
    return isinstance(value, TensorLoad)


def _reads(load: TensorLoad, axis: Any) -> bool:
    """Whether an index of `load` depends on `axis`."""
    uses = []
    for index in load.indices:
        structural_walk(index, ((tirx.Var, lambda v: uses.append(v) if v.same_as(axis) else None),))
    return bool(uses)
