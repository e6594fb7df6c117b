"""Reads fused attention (kiln.lower.attention) as a GPU's kernel computes it: operands and epilogues.

The function has four reductions: the scores, the maximum and the sum of the softmax, and the weighted values.
Between them are nests that compute element by element, and roundings to the precision of the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.extents import extent
from kiln.kernels.cpu.attention_nests import Scored, queries_and_keys
from kiln.kernels.cpu.batch_matmul import StridedOperand, strided_operand
from kiln.kernels.gpu.tensor_cores import ROUNDED
from kiln.tir.fused import Fused, Nest, NotSimple
from kiln.tir.inline import TooLarge, loads
from kiln.tir.op_names import op_name
from kiln.tir.symbols import is_dynamic

# Attribute of a function that is attention, a JSON object: `guarded`: rows whose softmax is NaN are zeros;
# `causal`: a query attends to no key after its own, counted from the last ones.
MARK = "kiln.attention"
TF32 = "tf32"
_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class AttentionOperand:
    """A parameter of the function that a product reads: the load of an element, and its strides."""

    load: Any
    strided: StridedOperand

    def has(self, axis: Any) -> bool:
        """Whether the operand varies along `axis`."""
        return self.strided.has(axis)


@dataclass(frozen=True)
class FusedAttention(Scored):
    """out[lead, query, column] = sum over keys of softmax(scores)[lead, query, key] * values[key, column].

    `product`, `scores`: the first product, and what the softmax reads. `weighted`, `last`: the second
    product, and what is stored. `queries`, `keys`, `values`: what both multiply, as parameters of the
    function. `places`: for each axis of the scores but the last, the axis of `weighted` that stands for it,
    None for one of extent 1. `factor`: the type in which operands are multiplied, float32, tf32 or of 16
    bits.
    """

    fused: Fused
    product: Nest
    scores: Nest
    weighted: Nest
    last: Nest
    queries: AttentionOperand
    keys: AttentionOperand
    values: AttentionOperand
    places: list[Any]
    column: Any
    factor: str
    guarded: bool
    causal: bool

    @property
    def widths(self) -> tuple[int, int]:
        """Elements of a key, and of a value."""
        return int(self.product.reduced[0].dom.extent), int(self.column.dom.extent)


def read_fused_attention(func: tirx.PrimFunc) -> FusedAttention | None:
    """The attention that a function with the attribute MARK computes; None for another function."""
    attrs = func.attrs or {}
    if MARK not in attrs:
        return None
    marks = json.loads(str(attrs[MARK]))
    try:
        return _read(Fused(func), bool(marks["guarded"]), bool(marks["causal"]))
    except (NotSimple, TooLarge):
        return None


def _read(fused: Fused, guarded: bool, causal: bool) -> FusedAttention | None:
    reductions = [nest for nest in fused.nests if nest.reduced]
    if len(reductions) != 4:
        return None
    product, greatest, total, weighted = reductions
    scores = fused.by_buffer.get(_only_other(greatest))
    shares = next((nest for nest in fused.nests if _divides_by(nest, total)), None)
    last = fused.epilogue(weighted)
    if scores is None or shares is None or last is not fused.nests[-1]:
        return None
    factor = _factor(fused, product)
    if factor is None or factor != _factor(fused, weighted):
        return None
    pair = _queries_and_keys(fused, product)
    second = _values(fused, weighted, shares)
    if pair is None or second is None:
        return None
    values, places, column = second
    widths = (product.reduced[0].dom.extent, column.dom.extent)
    if len(product.reduced) != 1 or any(map(is_dynamic, widths)):
        return None
    return FusedAttention(
        fused, product, scores, weighted, last, *pair, values, places, column, factor, guarded, causal
    )


def _divides_by(nest: Nest, total: Nest) -> bool:
    """Whether a nest computes element by element from the sums of the softmax."""
    return not nest.reduced and any(load.source.same_as(total.buffer) for load in loads(nest.value))


def _only_other(nest: Nest) -> Any:
    """The tensor that a reduction reads, besides its own result; None if it is not one."""
    sources = {load.source for load in loads(nest.value) if not load.source.same_as(nest.buffer)}
    return sources.pop() if len(sources) == 1 else None


def _terms(value: Any) -> tuple[Any, Any]:
    """The two factors of a product's nest, whose value is the sum so far and their product."""
    term = value.b if isinstance(value.b, tirx.Mul) else value.a
    return term.a, term.b


def _factor(fused: Fused, product: Nest) -> str | None:
    """The type in which a product multiplies its operands; None if they differ."""
    types = set()
    for load in _terms(product.value):
        if isinstance(load, tirx.Cast):
            types.add(str(load.value.ty.dtype))
            continue
        made = fused.by_buffer.get(load.source)
        types.add(TF32 if made is not None and _rounds(made.value) else str(load.ty.dtype))
    factor = types.pop() if len(types) == 1 else None
    return factor if factor in ("float32", TF32, *_NARROW) else None


def _rounds(expr: Any) -> bool:
    return isinstance(expr, Call) and op_name(expr) == ROUNDED.removeprefix("tirx.")


def _bare(expr: Any) -> Any:
    """An expression without the conversions around it."""
    while True:
        if isinstance(expr, tirx.Cast):
            expr = expr.value
        elif _rounds(expr):
            expr = expr.args[0]
        else:
            return expr


def _operand(fused: Fused, expr: Any, nest: Nest) -> AttentionOperand | None:
    """The parameter that `expr` reads, linear in the axes of `nest`; None for another expression."""
    load = _bare(expr)
    strided = strided_operand(load, nest, fused.ranges)
    if strided is None or strided.buffer not in fused.params:
        return None
    return AttentionOperand(load, strided)


def _queries_and_keys(fused: Fused, product: Nest) -> tuple[AttentionOperand, AttentionOperand] | None:
    factors = _terms(fused.expanded(product, [*fused.params, product.buffer], share=False).value)
    first, second = (_operand(fused, factor, product) for factor in factors)
    if first is None or second is None or len(product.axes) < 2:
        return None
    return queries_and_keys(first, second, product)


def _values(fused: Fused, weighted: Nest, shares: Nest) -> tuple[AttentionOperand, list[Any], Any] | None:
    """The values, the axes of `weighted` for the axes of the scores but the last, and the column's axis."""
    factors = _terms(fused.expanded(weighted, [*fused.params, shares.buffer], share=False).value)
    reads = [[load for load in loads(factor) if load.source.same_as(shares.buffer)] for factor in factors]
    if bool(reads[0]) == bool(reads[1]):
        return None
    left, right = (0, 1) if reads[0] else (1, 0)
    values = _operand(fused, factors[right], weighted)
    *before, key = reads[left][0].indices
    if values is None or not key.same_as(weighted.reduced[0].var) or not _alike(reads[left]):
        return None
    places: list[Any] = []
    for index, size in zip(before, shares.extents, strict=False):
        axis = next((axis for axis in weighted.axes if index.same_as(axis.var)), None)
        if axis is None and (is_dynamic(size) or int(size) != 1):
            return None
        places.append(axis)
    others = [axis for axis in weighted.axes if not any(axis is place for place in places)]
    wide = [axis for axis in others if is_dynamic(axis.dom.extent) or extent(axis.dom.extent) != 1]
    if len(wide) != 1 or places[-1] is None or values.has(places[-1]) or not values.has(wide[0]):
        return None
    return values, places, wide[0]


def _alike(reads: Sequence[Any]) -> bool:
    """Whether all loads are of one element."""
    first: TensorLoad = reads[0]
    return all(
        index.same_as(other)
        for load in reads[1:]
        for index, other in zip(load.indices, first.indices, strict=True)
    )
