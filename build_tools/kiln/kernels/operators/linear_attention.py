"""Linear attention as one function: a loop over the positions, with the state of a head in the cache.

A column of the state needs only the same column of the values, so that blocks of columns are independent,
each over all positions. A position reads a block of the state twice: once for the delta rule's product of the
state and the key, and once to update it and to multiply it with the queries. The first position reads the
state from before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent, extent
from kiln.frontend import added_operators
from kiln.frontend.linear_attention import LinearAttention, attributes
from kiln.kernels.operators.extern_loops import extern_loops
from kiln.tir.builder import (
    bind,
    chunks,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tiled_loops import tasks_of
from kiln.tir.vector_expr import f32


@dataclass(frozen=True)
class ColumnBlocks:
    """The sizes of blocks.

    `width`: columns of a block of the state. `lanes`: of a vector. `queries`: how many a loop multiplies.
    `threads`: whether the loop over tasks is marked as parallel, for a GPU, which has a thread for each.
    """

    width: int = 1
    lanes: int = 1
    queries: int = 1
    threads: bool = False


@dataclass(frozen=True)
class _Place:
    """Columns [column, column + width) of the state of head `head` of sequence `sequence`."""

    sequence: Expr
    head: Expr
    column: Expr
    width: int


class AttentionLoops:
    """Writes the loops over `buffers`: operands and results, by name."""

    def __init__(
        self, attention: LinearAttention, buffers: Mapping[str, Any], batch: Extent, length: Extent,
        form: ColumnBlocks,
    ) -> None:  # fmt: skip
        self.attention, self.buffers, self.form = attention, buffers, form
        self.batch, self.length = batch, length

    @property
    def tasks(self) -> Extent:
        """Number of independent tasks: a block of columns of a head of a sequence."""
        return self.batch * (self.attention.heads * ceil_div(self.attention.value, self.form.width))

    def write(self, begin: Expr, end: Expr, split: bool) -> None:
        """Write the tasks [begin, end), or without `split` all tasks."""
        if self.form.threads:
            loop = builder.parallel(int64(0), int64(self.tasks))
        else:
            loop = tasks_of(self.tasks, split, begin, end)
        width, whole = self.form.width, self.attention.value // self.form.width
        blocks = ceil_div(self.attention.value, width)
        with loop as task:
            block = modulo(task, blocks)
            sequence, head = unravel(divide(task, blocks), [self.batch, self.attention.heads])
            at = partial(_Place, bind(sequence), bind(head))
            if whole == blocks:
                self._block(at(bind(block * int64(width)), width))
            elif not whole:
                self._block(at(int64(0), self.attention.value))
            else:
                with builder.If(block < int64(whole)):
                    with builder.Then():
                        self._block(at(bind(block * int64(width)), width))
                    with builder.Else():
                        self._block(at(int64(whole * width), self.attention.value % width))

    def _block(self, at: _Place) -> None:
        """Write all positions of a block of columns, of which there may be none."""
        before = self.buffers.get("before")
        if not is_dynamic(self.length) and self.length > 0:
            self._all_positions(at, before)
            return
        with builder.If(int64(self.length) > int64(0)):
            with builder.Then():
                self._all_positions(at, before)
            with builder.Else():
                self._copy(at, before)

    def _all_positions(self, at: _Place, before: Any | None) -> None:
        """Write all positions, of which there is at least one."""
        self._position(at, int64(0), before)
        if is_dynamic(self.length) or self.length > 1:
            with serial(self.length - 1, 1) as position:
                self._position(at, position, self.buffers["after"])

    def _copy(self, at: _Place, before: Any | None) -> None:
        """Write the state after no position at all."""
        with serial(self.attention.key) as row:

            def visit(_: list[Expr], column: Expr) -> None:
                value = f32(0.0) if before is None else load(before, self._state(at, row, column))
                store(self.buffers["after"], self._state(at, row, column), value)

            self._columns(at, visit)

    # Places of elements

    def _columns(self, at: _Place, visit: Callable[[list[Expr], Expr], None]) -> None:
        """Write visit(place in registers, column of the block) for all columns, as vectors."""
        for index, (offset, width) in enumerate(chunks(at.width, self.form.lanes)):
            with vector(width) as lane:
                visit([int64(index), lane], int64(offset) + lane)

    def _registers(self, at: _Place) -> Any:
        count = len(list(chunks(at.width, self.form.lanes)))
        scope = "local" if self.form.threads else "global"
        return registers([count, self.form.lanes], "float32", scope)

    def _zeros(self, at: _Place) -> Any:
        sums = self._registers(at)
        self._columns(at, lambda place, _: store(sums, place, f32(0.0)))
        return sums

    def _state(self, at: _Place, row: Expr, column: Expr) -> list[Expr]:
        return [at.sequence, at.head, row, at.column + column]

    def _key(self, at: _Place, position: Expr, row: Expr) -> Expr:
        return load(self.buffers["keys"], [at.sequence, position, at.head * int64(self.attention.key) + row])

    def _decay(self, at: _Place, position: Expr, row: Expr) -> Expr:
        index = at.head * int64(self.attention.key) + row if self.attention.row_decay else at.head
        return load(self.buffers["decay"], [at.sequence, position, index])

    # A position

    def _position(self, at: _Place, position: Expr, state: Any | None) -> None:
        """Write the update of a block of columns at `position`, from `state`; None: from zeros."""
        added = self._registers(at)
        self._columns(at, lambda place, column: store(added, place, self._value(at, position, column)))
        if "beta" in self.buffers:
            self._apply_delta_rule(at, position, state, added)
        readers, together = self.attention.queries, self.form.queries
        self._over_state(at, position, range(min(together, readers)), partial(self._update, state, added))
        for first in range(together, readers, together):
            self._over_state(at, position, range(first, min(first + together, readers)), None)

    def _value(self, at: _Place, position: Expr, column: Expr) -> Expr:
        index = at.head * int64(self.attention.value) + at.column + column
        return load(self.buffers["values"], [at.sequence, position, index])

    def _apply_delta_rule(self, at: _Place, position: Expr, state: Any | None, added: Any) -> None:
        """Replace the value in `added` by beta * (value - S^T key), with the state S after its decay."""
        head = at.head if self.attention.head_beta else int64(0)
        beta = bind(load(self.buffers["beta"], [at.sequence, position, head]))
        if state is None:
            self._columns(at, lambda place, _: store(added, place, load(added, place) * beta))
            return
        has_decay, by_row = "decay" in self.buffers, self.attention.row_decay
        sums = self._zeros(at)
        with serial(self.attention.key) as row:
            factor = self._key(at, position, row)
            if has_decay and by_row:
                factor = factor * self._decay(at, position, row)
            factor = bind(factor)

            def add(place: list[Expr], column: Expr) -> None:
                product = factor * load(state, self._state(at, row, column))
                store(sums, place, load(sums, place) + product)

            self._columns(at, add)
        decay = bind(self._decay(at, position, int64(0))) if has_decay and not by_row else None

        def finish(place: list[Expr], _: Expr) -> None:
            product = load(sums, place) if decay is None else load(sums, place) * decay
            store(added, place, (load(added, place) - product) * beta)

        self._columns(at, finish)

    def _over_state(
        self, at: _Place, position: Expr, queries: range, update: Callable[..., None] | None
    ) -> None:  # fmt: skip
        """Multiply the state with the `queries` of its head, row by row, each row after its `update`."""
        attention, after = self.attention, self.buffers["after"]
        sums = [self._zeros(at) for _ in queries]
        first = bind(at.head * int64(attention.queries) + int64(queries.start))
        with serial(attention.key) as row:
            elements = self._registers(at)
            if update is not None:
                update(at, position, row, elements)
            else:
                state = partial(self._state, at, row)
                self._columns(at, lambda place, column: store(elements, place, load(after, state(column))))
            for number, sums_of_query in enumerate(sums):
                index = (first + int64(number)) * int64(attention.key) + row
                query = bind(load(self.buffers["queries"], [at.sequence, position, index]))

                def add(place: list[Expr], _: Expr, held: Any = sums_of_query, query: Expr = query) -> None:
                    store(held, place, load(held, place) + query * load(elements, place))

                self._columns(at, add)
        for number, sums_of_query in enumerate(sums):
            base = bind((first + int64(number)) * int64(attention.value) + at.column)

            def write(place: list[Expr], column: Expr, held: Any = sums_of_query, base: Expr = base) -> None:
                value = load(held, place) * f32(attention.scale)
                store(self.buffers["y"], [at.sequence, position, base + column], value)

            self._columns(at, write)

    def _update(
        self, state: Any | None, added: Any, at: _Place, position: Expr, row: Expr, elements: Any
    ) -> None:  # fmt: skip
        """Write a row of the state, and to `elements`: decay * `state` + key * `added`."""
        key = bind(self._key(at, position, row))
        has_decay = state is not None and "decay" in self.buffers
        decay = bind(self._decay(at, position, row)) if has_decay else None

        def compute(place: list[Expr], column: Expr) -> None:
            value = key * load(added, place)
            if state is not None:
                old = load(state, self._state(at, row, column))
                value = (old if decay is None else old * decay) + value
            store(elements, place, value)

        self._columns(at, compute)
        after = self.buffers["after"]
        self._columns(
            at, lambda place, column: store(after, self._state(at, row, column), load(elements, place))
        )


def names_of(attention: LinearAttention) -> list[str]:
    """The names of the buffers of a function: operands and results; the states are `before` and `after`."""
    operands = ["before" if name == "state" else name for name in attention.operands]
    return [*operands, "y", "after"]


def linear_attention(block: Any, call: Any) -> Any:
    """The operator as a call, in the relax.BlockBuilder `block`, of a function written for any machine."""
    attention = attributes(added_operators.attributes_of(call))

    def compute(*inputs: Any) -> Any:
        batch, length = (extent(size) for size in inputs[0].shape[:2])
        shapes = attention.shapes(batch, length)

        def write(buffers: Mapping[str, Any]) -> None:
            loops = AttentionLoops(attention, buffers, batch, length, ColumnBlocks(threads=True))
            loops.write(int64(0), int64(1), False)

        return extern_loops(inputs, shapes, names_of(attention), write)

    return block.call_te(compute, *call.args[1].fields, primfunc_name_hint="linear_attention")
