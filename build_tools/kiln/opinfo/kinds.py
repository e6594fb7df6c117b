"""The kind of a PrimFunc: the result of TVM's analysis, corrected where the loop nests show more."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from kiln.callbacks import structural_walk
from kiln.extents import is_one
from kiln.tir.fused import Fused, Nest, NotSimple
from kiln.tir.inline import loads
from kiln.tir.symbols import NO_RANGES

# Names for the values of OpPatternKind (attribute op_pattern) in TVM 0.27.
KINDS = {
    0: "elementwise",
    1: "broadcast",
    2: "injective",
    3: "reduction",
    4: "out_elementwise_fusable",
    7: "tuple",
    8: "opaque",
}
PATTERN = "op_pattern"
OPAQUE = next(number for number, name in KINDS.items() if name == "opaque")


def nests_of(func: PrimFunc) -> list[Nest] | None:
    """The loop nests of a function in order; None if the function is not made of plain loop nests."""
    try:
        return Fused(func).nests
    except (NotSimple, AttributeError):
        return None


def _broadcasts(nest: Nest) -> bool:
    """Whether the nest reads an input element for more than one element of its result."""
    axes = [axis.var for axis in nest.axes if not is_one(axis.dom.extent)]
    for load in loads(nest.value):
        if not all(any(_uses(index, axis) for index in load.indices) for axis in axes):
            return True
    return False


def _uses(expr: Any, variable: Any) -> bool:
    uses = []
    structural_walk(expr, ((tirx.Var, lambda v: uses.append(v) if v.same_as(variable) else None),))
    return bool(uses)


def _only_reduces(nests: list[Nest]) -> bool:
    """Whether the nests only reduce whole axes of one tensor, and then compute something from the sums."""
    sums = [nest for nest in nests if nest.reduced]
    for nest in sums:
        for load in loads(nest.value):
            plain = [index for index in load.indices if isinstance(index, tirx.Var)]
            reads = all(any(index.same_as(axis.var) for index in plain) for axis in nest.reduced)
            if not load.source.same_as(nest.buffer) and not reads:
                return False
    inputs = {load.source for nest in sums for load in loads(nest.value)} - {n.buffer for n in nests}
    return bool(sums) and len(inputs) == 1 and NO_RANGES.same_shape(nests[-1].extents, sums[-1].extents)


def kind_of(func: PrimFunc) -> str:
    """The kind of a function; AnnotateTIROpPattern must run before. opaque if nothing is known.

    TVM 0.27 classifies the sum of a matrix and a vector as elementwise, and a mean (a sum followed by a
    division) as out_elementwise_fusable. That is enough for fusion, but not for libraries and layout rules.
    """
    pattern = int(func.attrs[PATTERN]) if func.attrs and PATTERN in func.attrs else 8
    kind = KINDS.get(pattern, "opaque")
    nests = nests_of(func)
    if not nests:
        return kind
    if kind == "elementwise" and any(_broadcasts(nest) for nest in nests):
        return "broadcast"
    if kind == "out_elementwise_fusable" and _only_reduces(nests):
        return "reduction"
    return kind
