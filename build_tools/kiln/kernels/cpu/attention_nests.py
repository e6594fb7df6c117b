"""Reads attention from the nests of a fused group: scores, softmax over the keys, and the weighted values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.extents import Extent, extent
from kiln.kernels.cpu.batch_matmul import StridedOperand, strided_operand
from kiln.opinfo.attach import OpInfo
from kiln.tir.fused import Fused, Nest, NotSimple
from kiln.tir.op_names import op_name
from kiln.tir.symbols import is_dynamic

PRODUCTS = ("matmul", "einsum")
SOFTMAX = "nn.softmax"
# What exporters put after a softmax: a row without any key, whose softmax is NaN, becomes zeros.
GUARD = ["isnan", "where"]


class Varying(Protocol):
    """An operand of a product."""

    def has(self, axis: Any) -> bool:
        """Whether it varies along an axis of the product."""


Operand = TypeVar("Operand", bound=Varying)


class Scored:
    """Sizes of an attention whose scores are the nest `scores`, with the axes lead, query and key."""

    scores: Nest

    @property
    def lead(self) -> list[Extent]:
        """Sizes of the axes before the query."""
        return self.scores.extents[:-2]

    @property
    def sizes(self) -> tuple[Extent, Extent]:
        """Numbers of queries and of keys."""
        first, second = self.scores.extents[-2:]
        return first, second


@dataclass(frozen=True)
class Attention(Scored):
    """out[lead, query, column] = sum over keys of softmax(scores)[lead, query, key] * values[key, column].

    `product`: the nest of queries times keys; `scores`: the nest that softmax reads. `weighted`: the nest of
    the second product; `last`: the nest that is stored. `places`: for each axis of the scores but the last,
    the axis of `weighted` that stands for it, None for one of extent 1. `guarded`: rows whose softmax is NaN
    are zeros.
    """

    product: Nest
    scores: Nest
    queries: StridedOperand
    keys: StridedOperand
    weighted: Nest
    last: Nest
    values: StridedOperand
    places: list[Any]
    column: Any
    guarded: bool

    @property
    def widths(self) -> tuple[Extent, Extent]:
        """Elements of a key, and of a value."""
        return extent(self.product.reduced[0].dom.extent), extent(self.column.dom.extent)


def split_ops(ops: Sequence[OpInfo]) -> tuple[int, int, int] | None:
    """Positions of the first product, the softmax and the second product; None for other groups."""
    names = [op["name"] for op in ops]
    if names.count(SOFTMAX) != 1:
        return None
    softmax = names.index(SOFTMAX)
    before = [number for number in range(softmax) if names[number] in PRODUCTS]
    after = next((number for number in range(softmax, len(ops)) if names[number] in PRODUCTS), None)
    if len(before) != 1 or after is None or names[softmax + 1 : after] not in ([], GUARD):
        return None
    return before[0], softmax, after


def read_attention(fused: Fused, ops: Sequence[OpInfo]) -> Attention | None:
    """The attention that `fused` computes, made of `ops`; None for anything else."""
    operators = split_ops(ops)
    if operators is None or any(not op.get("nests") for op in ops):
        return None
    first, softmax, second = operators
    ends, nest_count = [], 0
    for op in ops:
        nest_count += int(op["nests"])
        ends.append(nest_count)
    if nest_count != len(fused.nests) or ops[softmax]["args"] != [{"op": softmax - 1}]:
        return None
    scores, probabilities = fused.nests[ends[softmax - 1] - 1], fused.nests[ends[second - 1] - 1]
    axis = ops[softmax]["attrs"].get("axis")
    rank = len(scores.axes)
    if rank < 2 or axis not in (-1, rank - 1):
        return None
    product, weighted = fused.nests[ends[first] - 1], fused.nests[ends[second] - 1]
    guarded = second > softmax + 1
    if guarded and not _is_guard(
        fused.nests[ends[softmax] : ends[second - 1]], fused.nests[ends[softmax] - 1]
    ):
        return None
    last = fused.epilogue(weighted)
    if [param for param in fused.outputs if not param.same_as(last.buffer)] or last is not fused.nests[-1]:
        return None
    operands = _scores_of(fused, product, scores)
    weighted_operands = _values_of(fused, weighted, probabilities)
    if operands is None or weighted_operands is None:
        return None
    (queries, keys), (values, value_axes, column) = operands, weighted_operands
    return Attention(product, scores, queries, keys, weighted, last, values, value_axes, column, guarded)


def _is_guard(nests: Sequence[Nest], softmax: Nest) -> bool:
    """Whether `nests` are where(isnan(p), 0, p) for the elements p of `softmax`; 0 may be a parameter."""
    if len(nests) != 2:
        return False
    tested, chosen = nests[0].value, nests[1].value
    if not isinstance(tested, Call) or op_name(tested) != "isnan":
        return False
    if isinstance(chosen, Call) and op_name(chosen) == "if_then_else":
        condition, yes, no = chosen.args
    elif isinstance(chosen, tirx.Select):
        condition, yes, no = chosen.condition, chosen.true_value, chosen.false_value
    else:
        return False
    if isinstance(condition, tirx.LT):  # 0 < isnan(p)
        condition = condition.b
    condition = condition.value if isinstance(condition, tirx.Cast) else condition
    loads = [(tested.args[0], softmax, nests[0]), (condition, nests[0], nests[1]), (no, softmax, nests[1])]
    if isinstance(yes, TensorLoad):  # a parameter; lower/attention.py looks at its value
        zero = all(extent(size) == 1 for size in yes.source.shape)
    else:
        zero = isinstance(yes, tirx.FloatImm | tirx.IntImm) and float(yes.value) == 0
    return zero and all(_reads_own(load, source, nest) for load, source, nest in loads)


def _reads_own(load: TensorLoad, source: Nest, nest: Nest) -> bool:
    """Whether `load` reads the element of `source` at the axes of `nest`."""
    if not isinstance(load, TensorLoad) or not load.source.same_as(source.buffer):
        return False
    pairs = zip(load.indices, nest.axes, strict=False)
    return len(load.indices) == len(nest.axes) and all(
        index.same_as(axis.var) or (isinstance(index, tirx.IntImm) and extent(axis.dom.extent) == 1)
        for index, axis in pairs
    )


def _terms(nest: Nest) -> list[Any] | None:
    """The two factors that `nest` sums; None for another nest."""
    if len(nest.reduced) != 1 or not isinstance(nest.value, tirx.Add):
        return None
    before, term = nest.value.a, nest.value.b
    if not isinstance(before, TensorLoad) or not before.source.same_as(nest.buffer):
        return None
    return [term.a, term.b] if isinstance(term, tirx.Mul) else None


def _float_param(fused: Fused, operand: StridedOperand | None) -> bool:
    return operand is not None and operand.buffer in fused.params and str(operand.buffer.dtype) == "float32"


def queries_and_keys(first: Operand, second: Operand, product: Nest) -> tuple[Operand, Operand] | None:
    """The operand along the query's axis of `product`, the last but one, and that along the key's, the last.

    None where one of them varies along both axes, or along neither.
    """
    query, key = product.axes[-2:]
    if first.has(key):
        first, second = second, first
    if first.has(key) or second.has(query) or not first.has(query) or not second.has(key):
        return None
    return first, second


def _scores_of(fused: Fused, product: Nest, scores: Nest) -> tuple[StridedOperand, StridedOperand] | None:
    """The queries and keys of `product`, from which `scores` follows element by element."""
    terms, ranges = _terms(product), fused.ranges
    if terms is None or str(scores.buffer.dtype) != "float32" or str(product.buffer.dtype) != "float32":
        return None
    if (scores.reduced and scores is not product) or not ranges.same_shape(scores.extents, product.extents):
        return None
    first, second = (strided_operand(term, product, ranges) for term in terms)
    if first is None or second is None:
        return None
    pair = queries_and_keys(first, second, product)
    if pair is None or not all(_float_param(fused, operand) for operand in pair):
        return None
    if scores is not product:
        try:
            reads = fused.expanded(scores, [*fused.params, product.buffer], share=False).reads()
        except (NotSimple, ValueError):
            return None
        loads_of_product = [load for load in reads if load.source.same_as(product.buffer)]
        if not loads_of_product or not all(_reads_own(load, product, scores) for load in loads_of_product):
            return None
    return pair


def _values_of(
    fused: Fused, weighted: Nest, probabilities: Nest
) -> tuple[StridedOperand, list[Any], Any] | None:
    """The values tensor, its axes that match the scores' axes, and the column axis of the second product."""
    terms = _terms(weighted)
    if terms is None or str(weighted.buffer.dtype) != "float32":
        return None

    def is_left(term: Any) -> bool:
        return isinstance(term, TensorLoad) and term.source.same_as(probabilities.buffer)

    left, right = terms if is_left(terms[0]) else terms[::-1]
    values = strided_operand(right, weighted, fused.ranges)
    if not is_left(left) or values is None or not _float_param(fused, values):
        return None
    *before, depth = left.indices
    if not depth.same_as(weighted.reduced[0].var) or not values.has(weighted.reduced[0]):
        return None
    axes_found: list[Any] = []
    for index, size in zip(before, probabilities.extents, strict=False):
        axis = next((axis for axis in weighted.axes if index.same_as(axis.var)), None)
        if axis is None and (is_dynamic(size) or size != 1):
            return None
        axes_found.append(axis)
    other_axes = [axis for axis in weighted.axes if not any(axis is found_axis for found_axis in axes_found)]
    columns = [
        axis for axis in other_axes if is_dynamic(extent(axis.dom.extent)) or extent(axis.dom.extent) != 1
    ]
    if (
        len(columns) != 1
        or axes_found[-1] is None
        or values.has(axes_found[-1])
        or not values.has(columns[0])
    ):
        return None
    return values, axes_found, columns[0]
