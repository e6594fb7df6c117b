"""An LSTM, GRU or RNN layer as one function: a loop over the steps of the sequence.

A step multiplies the state by its weights, starting from the contribution of the input, and then computes
gates and states element by element. States stay in the memory of the results h and c, which hold the final
states at the end. Steps after the longest sequence of a task only write zeros. The directions, and blocks of
rows of the batch, are independent tasks. The size of the code depends neither on the length nor on the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent, extent
from kiln.frontend.recurrent import Recurrent, attributes
from kiln.kernels.operators.activations import activation, clipped
from kiln.kernels.operators.extern_loops import extern_loops
from kiln.kernels.operators.recurrent_products import (
    Blocking,
    LayerProducts,
    TaskRows,
    has_reset,
    phases,
)
from kiln.tir.builder import bind, divide, int64, load, modulo, registers, serial, store
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tiled_loops import tasks_of


class LayerLoops(LayerProducts):
    """Writes the loops of a layer."""

    @property
    def tasks(self) -> Extent:
        """Number of independent tasks."""
        blocks = ceil_div(self.batch, self.blocking.block)
        return blocks if self.layer.directions == 1 else self.layer.directions * blocks

    def _loop(self, split: bool, begin: Expr, end: Expr) -> Any:
        if self.blocking.threads:
            return builder.parallel(int64(0), int64(self.tasks))
        return tasks_of(self.tasks, split, begin, end)

    def write(self, begin: Expr, end: Expr, split: bool) -> None:
        """Write the tasks [begin, end), or without `split` all tasks."""
        rows, row_blocks = self.blocking.block, ceil_div(self.batch, self.blocking.block)
        with self._loop(split, begin, end) as task:
            one_side = self.layer.directions == 1
            side = int64(0) if one_side else bind(divide(task, row_blocks))
            first = bind((task if one_side else modulo(task, row_blocks)) * int64(rows))
            if rows == 1 or (not is_dynamic(self.batch) and self.batch % rows == 0):
                self._task(side, first, rows)
            elif not is_dynamic(self.batch) and self.batch < rows:
                self._task(side, first, self.batch)
            else:
                self._task(side, first, bind(tirx.min(int64(rows), int64(self.batch) - first)))

    # The sequence

    def _task(self, side: Expr, first: Expr, count: Extent) -> None:
        with serial(count) as row:
            for name in ("h", "c") if self.layer.kind == "LSTM" else ("h",):
                self.units(partial(self._start, name, side, first + row))
        longest = self._longest(first, count)
        with serial(self.length) as step:
            last = int64(self.length) - int64(1) - step
            if self.layer.direction == "bidirectional":
                time = bind(tirx.Select(side == int64(0), step, last))
            else:
                time = step if self.layer.direction == "forward" else bind(last)
            rows_of_task = TaskRows(side, first, count, step, time)
            if longest is None:
                self._step(rows_of_task)
            else:
                with builder.If(time < load(longest, [int64(0)])):
                    with builder.Then():
                        self._step(rows_of_task)
                    with builder.Else(), serial(count) as row:
                        self.units(
                            partial(self._write, rows_of_task, bind(first + row), value=self.number(0.0))
                        )

    def _longest(self, first: Expr, count: Extent) -> Any:
        """Memory that holds the steps of the longest sequence of a task; None if all have all steps."""
        if "lengths" not in self.buffers:
            return None
        longest = registers([1], "int64", "local" if self.blocking.threads else "global")
        place = [int64(0)]
        store(longest, place, int64(0))
        with serial(count) as row:
            steps = tirx.Cast("int64", load(self.buffers["lengths"], [first + row]))
            store(longest, place, tirx.max(load(longest, place), steps))
        return longest

    def _step(self, rows_of_task: TaskRows) -> None:
        """Write the products of a step, then its states and outputs."""
        first, count = rows_of_task.first, rows_of_task.count
        for number, (column, columns) in enumerate(phases(self.layer)):
            reads_reset = bool(number) and not self.layer.before_reset
            if reads_reset:
                with serial(count) as row:
                    self.units(partial(self._reset, rows_of_task, first + row))
            self.product(rows_of_task, column, columns, "gated" if reads_reset else "h")
        with serial(count) as row:
            self._advance(rows_of_task, bind(first + row))

    def _start(self, name: str, side: Expr, row: Expr, unit: Expr) -> None:
        state_indices = self.state(side, row, unit)
        initial = self.buffers.get(f"{name}0")
        value = self.number(0.0) if initial is None else load(initial, state_indices)
        store(self.buffers[name], state_indices, value)

    def _advance(self, rows: TaskRows, row: Expr) -> None:
        """Write the states and the output of one row after the step."""
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.layer.kind]
        if "lengths" not in self.buffers:
            self.units(lambda unit: self._output(rows, row, unit, step(rows, row, unit)))
            return
        inside = rows.time < tirx.Cast("int64", load(self.buffers["lengths"], [row]))
        with builder.If(inside):
            with builder.Then():
                self.units(lambda unit: self._output(rows, row, unit, step(rows, row, unit)))
            with builder.Else():
                self.units(lambda unit: self._write(rows, row, unit, self.number(0.0)))

    def _output(self, at: TaskRows, row: Expr, unit: Expr, value: Expr) -> None:
        state_indices = self.state(at.side, row, unit)
        store(self.buffers["h"], state_indices, value)
        self._write(at, row, unit, load(self.buffers["h"], state_indices))

    def _write(self, at: TaskRows, row: Expr, unit: Expr, value: Expr) -> None:
        first = [row, at.time, at.side] if self.layer.batch_first else [at.time, at.side, row]
        store(self.buffers["y"], [*first, unit], value)

    # Gates

    def _gate(self, at: TaskRows, row: Expr, unit: Expr, number: int) -> Expr:
        return load(self.buffers["sums"], self.sum(at, row, int64(number * self.hidden) + unit))

    def _active(self, gate: int, value: Expr) -> Expr:
        return activation(self.layer.activations[gate], clipped(value, self.layer.clip))

    def _hold(self, at: TaskRows, row: Expr, unit: Expr, number: int, value: Expr) -> Expr:
        """Store `value` in place of gate `number`'s sum, to compute it once; returns the stored value."""
        store(self.buffers["sums"], self.sum(at, row, int64(number * self.hidden) + unit), value)
        return self._gate(at, row, unit, number)

    def _rnn(self, at: TaskRows, row: Expr, unit: Expr) -> Expr:
        return self._active(0, self._gate(at, row, unit, 0))

    def _lstm(self, at: TaskRows, row: Expr, unit: Expr) -> Expr:
        # Gates in ONNX's order: input, output, forget, cell.
        state_indices = self.state(at.side, row, unit)

        def gate(number: int) -> Expr:
            value = self._gate(at, row, unit, number)
            if "peepholes" in self.buffers:
                peephole = load(self.buffers["peepholes"], [at.side, int64(number * self.hidden) + unit])
                value = value + peephole * load(self.buffers["c"], state_indices)
            return self._active(0, value)

        put = self._hold(at, row, unit, 0, gate(0))
        keep = self.number(1.0) - put if self.layer.input_forget else gate(2)
        fresh = self._active(1, self._gate(at, row, unit, 3))
        store(self.buffers["c"], state_indices, keep * load(self.buffers["c"], state_indices) + put * fresh)
        cell = load(self.buffers["c"], state_indices)
        return gate(1) * activation(self.layer.activations[2], cell)

    def _reset(self, at: TaskRows, row: Expr, unit: Expr) -> None:
        """The state that the hidden gate of a GRU reads."""
        state_indices = self.state(at.side, row, unit)
        value = self._active(0, self._gate(at, row, unit, 1)) * load(self.buffers["h"], state_indices)
        store(self.buffers["gated"], state_indices, value)

    def _gru(self, at: TaskRows, row: Expr, unit: Expr) -> Expr:
        # Gates in ONNX's order: update, reset, hidden.
        state = load(self.buffers["h"], self.state(at.side, row, unit))
        fresh = self._gate(at, row, unit, 2)
        if self.layer.before_reset:
            reset = self._active(0, self._gate(at, row, unit, 1))
            fresh = self.given(at, row, int64(2 * self.hidden) + unit) + reset * fresh
        fresh = self._hold(at, row, unit, 2, self._active(1, fresh))
        # (1 - z) * fresh + z * h
        return fresh + self._active(0, self._gate(at, row, unit, 0)) * (state - fresh)


def names_of(layer: Recurrent) -> list[str]:
    """The names of the buffers of a layer's function: operands, results, and memory for sums."""
    operands = [f"{name}0" if name in ("h", "c") else name for name in layer.operands]
    results = ["y", "h", "c"] if layer.kind == "LSTM" else ["y", "h"]
    return [*operands, *results, "sums", *(["gated"] if has_reset(layer) else [])]


def sizes_of(layer: Recurrent, shape: Any) -> tuple[Any, Any]:
    """Length and batch, from the tensor or shape `shape`."""
    first, second, _ = shape
    return (second, first) if layer.batch_first else (first, second)


def recurrent(block: Any, call: Any) -> Any:
    """The layer as a call, in the relax.BlockBuilder `block`, of a function written for any machine.

    Its results are those of the layer, then memory that it uses.
    """
    layer = attributes(call)
    tensors = list(call.args[1].fields)

    def compute(*inputs: Any) -> Any:
        length, batch = (extent(size) for size in sizes_of(layer, inputs[0].shape))
        shapes = layer.shapes(length, batch)
        shapes.append([layer.directions, batch, layer.gates * layer.hidden])
        if has_reset(layer):
            shapes.append(shapes[1])

        def write(buffers: Mapping[str, Any]) -> None:
            loops = LayerLoops(layer, buffers, length, batch, Blocking(threads=True))
            loops.write(int64(0), int64(1), False)

        return extern_loops(inputs, shapes, names_of(layer), write, layer.dtype)

    return block.call_te(compute, *tensors, primfunc_name_hint=layer.kind.lower())
