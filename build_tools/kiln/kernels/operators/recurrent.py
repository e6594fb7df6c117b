"""An LSTM, GRU or RNN layer as one function: a loop over the steps of the sequence.

A step multiplies the state by its weights, starting from the contribution of the input, and then computes
gates and states element by element. States stay in the memory of the results h and c, which hold the final
states at the end. The directions, and blocks of rows of the batch, are independent tasks. The size of the
code depends neither on the length nor on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from kiln.frontend.recurrent import Recurrent, attributes
from kiln.kernels.operators.activations import activation, clipped
from kiln.tir.builder import (
    Expr,
    bind,
    chunks,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    vector,
)
from kiln.tir.symbols import Extent, ceil_div, extent, is_dynamic
from kiln.tir.tiled_loops import tasks_of
from kiln.tir.vector_expr import f32


@dataclass(frozen=True)
class Blocking:
    """Sizes of blocks: `rows` of the batch; `vectors` of `lanes` sums in registers for each row.

    `panel`: columns of a panel of packed weights; 0: weights are [D, H, G * H].
    """

    rows: int = 1
    vectors: int = 1
    lanes: int = 1
    panel: int = 0


def phases(about: Recurrent) -> list[tuple[int, int]]:
    """The products of a step, one after the other: first column of the weights, and number of columns."""
    hidden = about.hidden
    if about.kind == "GRU":  # the last gate reads the reset state, or starts from a bias of its own
        return [(0, 2 * hidden), (2 * hidden, hidden)]
    return [(0, about.gates * hidden)]


def has_reset(about: Recurrent) -> bool:
    """Whether the last gate multiplies a reset state, which has memory of its own."""
    return about.kind == "GRU" and not about.before_reset


@dataclass(frozen=True)
class _Rows:
    """Rows [first, first + count) of the batch, in direction `side`, at step `time` of the sequence."""

    side: Expr
    first: Expr
    count: int
    time: Expr


class Loops:
    """Writes the loops of a layer over `buffers`: operands, results and `sums`, by name.

    `length`, `batch`: sizes. `sums`: memory [D, B, G * H] for the products of a step.
    """

    def __init__(
        self, about: Recurrent, buffers: Mapping[str, Any], length: Extent, batch: Extent, blocking: Blocking
    ) -> None:
        self.about, self.buffers = about, buffers
        self.length, self.batch, self.blocking = length, batch, blocking
        self.hidden, self.columns = about.hidden, about.gates * about.hidden

    @property
    def tasks(self) -> Extent:
        """Number of independent tasks."""
        blocks = ceil_div(self.batch, self.blocking.rows)
        return blocks if self.about.directions == 1 else self.about.directions * blocks

    def write(self, begin: Expr, end: Expr, split: bool) -> None:
        """Write the tasks [begin, end), or without `split` all tasks."""
        rows, blocks = self.blocking.rows, ceil_div(self.batch, self.blocking.rows)
        with tasks_of(self.tasks, split, begin, end) as task:
            one_side = self.about.directions == 1
            side = int64(0) if one_side else bind(divide(task, blocks))
            first = bind((task if one_side else modulo(task, blocks)) * int64(rows))
            if rows == 1:
                self._task(side, first, 1)
            elif is_dynamic(self.batch):
                with builder.If(first + int64(rows) <= self.batch):
                    with builder.Then():
                        self._task(side, first, rows)
                    with builder.Else(), builder.serial(first, self.batch) as row:
                        self._task(side, row, 1)
            elif self.batch % rows == 0:
                self._task(side, first, rows)
            elif self.batch < rows:
                self._task(side, first, self.batch)
            else:
                with builder.If(first + int64(rows) <= int64(self.batch)):
                    with builder.Then():
                        self._task(side, first, rows)
                    with builder.Else():
                        self._task(side, first, self.batch % rows)

    # Places of elements

    def _state(self, side: Expr, row: Expr, unit: Expr) -> list[Expr]:
        return [row, side, unit] if self.about.batch_first else [side, row, unit]

    def _given(self, at: _Rows, row: Expr, column: Expr) -> Expr:
        place = at.side * int64(self.columns) + column
        first = [row, at.time] if self.about.batch_first else [at.time, row]
        return load(self.buffers["given"], [*first, place])

    def _sum(self, at: _Rows, row: Expr, column: Expr) -> list[Expr]:
        return [at.side, row, column]

    def _units(self, visit: Callable[[Expr], None]) -> None:
        """Write visit(unit) for all hidden units, as vectors."""
        lanes = self.blocking.lanes
        whole = self.hidden // lanes
        if whole:
            with serial(whole) as block, vector(lanes) as lane:
                visit(block * int64(lanes) + lane)
        for offset, width in chunks(self.hidden - whole * lanes, lanes):
            with vector(width) as lane:
                visit(int64(whole * lanes + offset) + lane)

    # The sequence

    def _task(self, side: Expr, first: Expr, count: int) -> None:
        with serial(count) as row:
            for name in ("h", "c") if self.about.kind == "LSTM" else ("h",):
                self._units(partial(self._start, name, side, first + row))
        with serial(self.length) as step:
            last = int64(self.length) - int64(1) - step
            if self.about.direction == "bidirectional":
                time = bind(tirx.Select(side == int64(0), step, last))
            else:
                time = step if self.about.direction == "forward" else bind(last)
            at = _Rows(side, first, count, time)
            for number, (column, columns) in enumerate(phases(self.about)):
                reads_reset = bool(number) and not self.about.before_reset
                if reads_reset:
                    with serial(count) as row:
                        self._units(partial(self._reset, at, first + row))
                self._product(at, column, columns, "gated" if reads_reset else "h")
            with serial(count) as row:
                self._advance(at, bind(first + row))

    def _start(self, name: str, side: Expr, row: Expr, unit: Expr) -> None:
        place = self._state(side, row, unit)
        given = self.buffers.get(f"{name}0")
        store(self.buffers[name], place, f32(0.0) if given is None else load(given, place))

    def _advance(self, at: _Rows, row: Expr) -> None:
        """Write the states and the output of one row after the step."""
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.about.kind]
        if "lengths" not in self.buffers:
            self._units(lambda unit: self._output(at, row, unit, step(at, row, unit)))
            return
        inside = at.time < tirx.Cast("int64", load(self.buffers["lengths"], [row]))
        with builder.If(inside):
            with builder.Then():
                self._units(lambda unit: self._output(at, row, unit, step(at, row, unit)))
            with builder.Else():
                self._units(lambda unit: self._write(at, row, unit, f32(0.0)))

    def _output(self, at: _Rows, row: Expr, unit: Expr, value: Expr) -> None:
        place = self._state(at.side, row, unit)
        store(self.buffers["h"], place, value)
        self._write(at, row, unit, load(self.buffers["h"], place))

    def _write(self, at: _Rows, row: Expr, unit: Expr, value: Expr) -> None:
        first = [row, at.time, at.side] if self.about.batch_first else [at.time, at.side, row]
        store(self.buffers["y"], [*first, unit], value)

    # Products

    def _product(self, at: _Rows, first: int, columns: int, source: str) -> None:
        """Write sums = what the gates start from + state * weights, for `columns` columns from `first`."""
        blocking = self.blocking
        width = blocking.vectors * blocking.lanes
        panel = min(blocking.panel or width, columns)
        whole = columns // panel
        if whole:
            with serial(whole) as number:
                self._panel(at, first, number * int64(panel), panel, source)
        if columns % panel:
            self._panel(at, first, int64(whole * panel), columns % panel, source)

    def _panel(
        self, at: _Rows, first: int, offset: Expr, width: int, source: str
    ) -> None:  # fmt: skip
        """Write a panel of `width` columns, from column `offset` of a phase, as tiles."""
        tile = self.blocking.vectors * self.blocking.lanes
        whole = width // tile
        if whole > 1:
            with serial(whole) as number:
                self._tile(at, first, offset, width, number * int64(tile), tile, source)
        elif whole:
            self._tile(at, first, offset, width, int64(0), tile, source)
        if width % tile:
            self._tile(at, first, offset, width, int64(whole * tile), width % tile, source)

    def _tile(
        self, at: _Rows, first: int, offset: Expr, panel: int, inside: Expr, width: int, source: str
    ) -> None:  # fmt: skip
        lanes = self.blocking.lanes
        parts = list(chunks(width, lanes))
        sums = [registers([len(parts), lanes], "float32") for _ in range(at.count)]
        column = bind(int64(first) + offset + inside)

        def each(visit: Callable[[int, int, int, Expr], None]) -> None:
            for number in range(at.count):
                for index, (start, size) in enumerate(parts):
                    with vector(size) as lane:
                        visit(number, index, start, lane)

        def begin(number: int, index: int, start: int, lane: Expr) -> None:
            value = self._begin(at, at.first + int64(number), first, column + int64(start) + lane)
            store(sums[number], [int64(index), lane], value)

        each(begin)
        weights, packed = self.buffers["weights"], bool(self.blocking.panel)
        base = int64(0)
        if packed:
            whole = int64(self.hidden * self.columns)
            base = bind(at.side * whole + (int64(first) + offset) * int64(self.hidden) + inside)
        with serial(self.hidden) as k:
            for number in range(at.count):
                left = load(self.buffers[source], self._state(at.side, at.first + int64(number), k))
                for index, (start, size) in enumerate(parts):
                    with vector(size) as lane:
                        if packed:
                            right = load(weights, [base + k * int64(panel) + int64(start) + lane])
                        else:
                            right = load(weights, [at.side, k, column + int64(start) + lane])
                        place = [int64(index), lane]
                        store(sums[number], place, load(sums[number], place) + left * right)

        def finish(number: int, index: int, start: int, lane: Expr) -> None:
            place = self._sum(at, at.first + int64(number), column + int64(start) + lane)
            store(self.buffers["sums"], place, load(sums[number], [int64(index), lane]))

        each(finish)

    def _begin(self, at: _Rows, row: Expr, first: int, column: Expr) -> Expr:
        """What the sum of a column starts from, in the phase that begins at column `first`."""
        if self.about.before_reset and first:  # the input's part is added after the reset
            return load(self.buffers["bias"], [at.side, column - int64(first)])
        return self._given(at, row, column)

    # Gates

    def _gate(self, at: _Rows, row: Expr, unit: Expr, number: int) -> Expr:
        return load(self.buffers["sums"], self._sum(at, row, int64(number * self.hidden) + unit))

    def _active(self, which: int, value: Expr) -> Expr:
        return activation(self.about.activations[which], clipped(value, self.about.clip))

    def _hold(self, at: _Rows, row: Expr, unit: Expr, number: int, value: Expr) -> Expr:
        """`value`, computed once: it replaces the sum of gate `number`."""
        store(self.buffers["sums"], self._sum(at, row, int64(number * self.hidden) + unit), value)
        return self._gate(at, row, unit, number)

    def _rnn(self, at: _Rows, row: Expr, unit: Expr) -> Expr:
        return self._active(0, self._gate(at, row, unit, 0))

    def _lstm(self, at: _Rows, row: Expr, unit: Expr) -> Expr:
        # Gates in ONNX's order: input, output, forget, cell.
        place = self._state(at.side, row, unit)

        def gate(number: int) -> Expr:
            value = self._gate(at, row, unit, number)
            if "peepholes" in self.buffers:
                part = load(self.buffers["peepholes"], [at.side, int64(number * self.hidden) + unit])
                value = value + part * load(self.buffers["c"], place)
            return self._active(0, value)

        put = self._hold(at, row, unit, 0, gate(0))
        keep = f32(1.0) - put if self.about.input_forget else gate(2)
        fresh = self._active(1, self._gate(at, row, unit, 3))
        store(self.buffers["c"], place, keep * load(self.buffers["c"], place) + put * fresh)
        cell = load(self.buffers["c"], place)
        return gate(1) * activation(self.about.activations[2], cell)

    def _reset(self, at: _Rows, row: Expr, unit: Expr) -> None:
        """The state that the hidden gate of a GRU reads."""
        place = self._state(at.side, row, unit)
        value = self._active(0, self._gate(at, row, unit, 1)) * load(self.buffers["h"], place)
        store(self.buffers["gated"], place, value)

    def _gru(self, at: _Rows, row: Expr, unit: Expr) -> Expr:
        # Gates in ONNX's order: update, reset, hidden.
        state = load(self.buffers["h"], self._state(at.side, row, unit))
        fresh = self._gate(at, row, unit, 2)
        if self.about.before_reset:
            reset = self._active(0, self._gate(at, row, unit, 1))
            fresh = self._given(at, row, int64(2 * self.hidden) + unit) + reset * fresh
        fresh = self._hold(at, row, unit, 2, self._active(1, fresh))
        # (1 - z) * fresh + z * h
        return fresh + self._active(0, self._gate(at, row, unit, 0)) * (state - fresh)


def names_of(about: Recurrent) -> list[str]:
    """The names of the buffers of a layer's function: operands, results, and memory for sums."""
    operands = [f"{name}0" if name in ("h", "c") else name for name in about.operands]
    results = ["y", "h", "c"] if about.kind == "LSTM" else ["y", "h"]
    return [*operands, *results, "sums", *(["gated"] if has_reset(about) else [])]


def sizes_of(about: Recurrent, given: Any) -> tuple[Any, Any]:
    """Length and batch, from the tensor or shape `given`."""
    first, second, _ = given
    return (second, first) if about.batch_first else (first, second)


def recurrent(block: Any, call: Any) -> Any:
    """The layer as a call, in the relax.BlockBuilder `block`, of a function written for any machine.

    Its results are those of the layer, then memory that it uses.
    """
    about = attributes(call)
    tensors = list(call.args[1].fields)

    def compute(*inputs: Any) -> Any:
        length, batch = (extent(size) for size in sizes_of(about, inputs[0].shape))
        shapes = about.shapes(length, batch)
        shapes.append([about.directions, batch, about.gates * about.hidden])
        if has_reset(about):
            shapes.append(shapes[1])
        outputs = [tirx.decl_buffer(shape, "float32", f"out{i}") for i, shape in enumerate(shapes)]

        def body(given: Any, made: Any) -> Any:
            buffers = dict(zip(names_of(about), [*given, *made], strict=True))
            with IRBuilder() as ir:
                Loops(about, buffers, length, batch, Blocking()).write(int64(0), int64(1), False)
            return ir.get()

        return te.extern(shapes, list(inputs), body, dtype=["float32"] * len(shapes), out_buffers=outputs)

    return block.call_te(compute, *tensors, primfunc_name_hint=about.kind.lower())
