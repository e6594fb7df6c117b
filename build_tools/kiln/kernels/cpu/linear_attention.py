"""Linear attention over all positions of a sequence: one kernel, whose loop over the positions is inside.

Computation  For each position, the update of a head's state by key and value, and its product with the
             queries. See kernels/operators/linear_attention.py.
Packing      None: no operand is constant.
Schedule     A task is a block of columns of one head's state, which it reads and writes in place at all
             positions: at most half of the L1 cache, and as many vectors as have sums in registers. The first
             position reads the state before, so that it is not copied. The queries that share a head are
             multiplied in the loop that updates the state, as far as registers are left.
Applies      Every `linear_attention`, with any batch and length, dynamic ones too.
Accuracy     Sums run in order of the key's elements. The delta rule multiplies the decay with the key, or
             with the sum, in place of the state.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Expr

from kiln.extents import extent
from kiln.frontend.linear_attention import LinearAttention, attributes
from kiln.kernels.operators.linear_attention import AttentionLoops, ColumnBlocks, names_of
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import SHARED, Kernel, Machine, argument, define
from kiln.tir.symbols import SymbolRanges

_MOST_VECTORS = 4
_MOST_QUERIES = 4


def _form(attention: LinearAttention, machine: Machine) -> ColumnBlocks:
    """A block of columns whose sums fit the registers, and whose rows of the state fit the L1 cache."""
    lanes = machine.lanes("float32")
    free = machine.registers - 2  # without a factor of the state's row and a query
    # A vector of columns needs registers for the state, what is added to it, and the sums of a query.
    vectors = max(1, min(_MOST_VECTORS, free // 3, machine.l1_bytes // (8 * attention.key * lanes)))
    queries = max(1, min(_MOST_QUERIES, attention.queries, free // vectors - 2))
    return ColumnBlocks(vectors * lanes, lanes, queries)


def make(func: Any, op: OpInfo, machine: Machine, ranges: SymbolRanges) -> tuple[Kernel, list[Any], int]:
    """The kernel of the operator's function, its buffers, and its multiply-adds at the greatest sizes."""
    attention = attributes(op["attrs"])
    params, names = list(func.params), names_of(attention)
    batch, length = (extent(size) for size in params[0].shape[:2])
    form = _form(attention, machine)
    state_elements = attention.heads * attention.key * attention.value
    loops_over_state = 1 + attention.queries + ("beta" in attention.operands)
    macs = ranges.greatest(batch) * ranges.greatest(length) * state_elements * loops_over_state
    loops = AttentionLoops(attention, {}, batch, length, form)
    tasks_exist = ranges.greatest(loops.tasks) > 1
    split = machine.parallel and tasks_exist and macs // form.lanes >= SHARED

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        held = dict(zip(names, buffers, strict=True))
        AttentionLoops(attention, held, batch, length, form).write(begin, end, split)

    tasks = ranges.simplify(loops.tasks) if split else None
    func_made = define([argument(param) for param in params], tasks, body, False, ranges)
    return Kernel(func_made, tasks, {}, "linear_attention", ranges=ranges), params, macs
