"""The LSTM of TFLite with int8 data and an int16 cell, in the integers of LiteRT's kernel.

Sums of a gate are int16 on the grid of its intermediate tensor with a layer norm, else with 12 bits after the
point; the gate has 15. The cell has a power of two as its scale. All roundings are those of the kernel, so
that results are the same bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite import gate_functions as functions
from kiln.frontend.tflite import gate_quotients
from kiln.frontend.tflite.fixed_point import (
    Factor,
    ResultLevels,
    divided,
    factor_of,
    i32,
    limited,
    rescaled,
    times,
)
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const
from kiln.frontend.tflite.sequences import run_steps, swapped

op = relax.op
_GATES = "ifco"  # in the order of the operator's inputs: input, forget, cell, output
_NORMS = 20  # the first input of the coefficients of layer norms
_BIASES, _PROJECTION = 12, 16  # the first inputs of the gates' biases and of the projection
_VARIANCE = 10000  # LiteRT: the least variance in units of the coefficients
Gate = tuple[Any, int]  # a tensor [rows, columns] and the first column of a gate


class IntegerLstmLayer:
    """One direction of an LSTM of int8.

    states: the operator's inputs with the state of the output and with the state of the cell.
    """

    def __init__(self, node: TfliteOperands, states: tuple[int, int], options: Any) -> None:
        self._node, self._states = node, states
        self._gates = _GATES if node.has(1) else _GATES[1:]
        self._units = node.shape(2)[0]
        self._outputs = node.shape(states[0])[-1]
        self._peephole, self._norm = node.has(11), node.has(_NORMS + 1)
        self._check()
        self._set_grids()
        self._quotients = const(gate_quotients.table(), "int16")
        self._clip = _clip(options.CellClip(), self._cell, 32767)
        # Of the levels of the result: as LiteRT's kernel, whatever their zero point.
        self._projection_clip = _clip(options.ProjClip(), node.result_grid() or self._state, 127)

    def _check(self) -> None:
        """Raise ValueError for types other than those of the integer kernel."""
        node = self._node
        kinds = node.dtype(0), *(node.dtype(index) for index in self._states)
        if kinds != ("int8", "int8", "int16"):
            raise ValueError(
                f"its input and states are {', '.join(kinds)}, allowed: float32, or int8, int8 and int16"
            )

    def _set_grids(self) -> None:
        node = self._node
        grids = node.intermediates()
        if len(grids) != 5 or grids[4] is None:
            raise ValueError(f"it has {len(grids)} intermediate tensors, allowed for integers: 5")
        source, cell, state = node.grid(0), node.grid(self._states[1]), node.grid(self._states[0])
        if source is None or cell is None or state is None:
            raise ValueError("its input or its states have no scale")
        self._source, self._cell, self._state, self._hidden = source, cell, state, grids[4]
        power = math.log2(cell.scale)
        self._power = round(power)
        if abs(power - self._power) > 1e-3 or not -15 <= self._power <= -9:
            raise ValueError(f"its cell has scale {cell.scale}, allowed: powers of two from 2^-15 to 2^-9")
        before = dict(zip(_GATES, grids[:4], strict=True)) if self._norm else {}
        self._before: dict[str, Grid] = {}
        for gate in self._gates:
            self._before[gate] = before.get(gate) or Grid(2.0**-12)

    def _scale(self, index: int) -> Any:
        """The scale of an input. Raises ValueError if it has none."""
        grid = self._node.grid(index)
        if grid is None:
            raise ValueError(f"its input {index} has no scale")
        return np.float32(grid.scale)

    def _input_of(self, first: int, gate: str) -> int:
        """The number of a gate's input, where the first gate's is `first`."""
        return first + _GATES.index(gate)

    def _product(
        self, x: Any, first: int, grid: Grid, bias: int | None, more: Any = None
    ) -> Any:  # fmt: skip
        """The sums [..., gates * units] of the gates: `x` times the gates' matrices, plus bias and `more`.

        grid: scale and zero point of `x`. first, bias: the operator's inputs with the first gate's matrix and
        with its bias.
        """
        node, matrices, offsets, factors = self._node, [], [], []
        for gate in self._gates:
            index = self._input_of(first, gate)
            matrices.append(node.constant_array(index))
            offset = -grid.zero * matrices[-1].astype("int64").sum(1)
            offsets.append(
                offset if bias is None else offset + node.constant_array(self._input_of(bias, gate))
            )
            scale = self._scale(index) * np.float32(grid.scale) / np.float32(self._before[gate].scale)
            factors.append(factor_of(float(scale)))
        sums = self._sums(x, np.concatenate(matrices))
        return node.bind(rescaled(node, sums, np.concatenate(offsets), factors, ResultLevels("int16"), more))

    def _sums(self, x: Any, matrix: Array) -> Any:
        """The product int32 [rows, outputs] of `x`, int8 [rows, inputs], and `matrix`, [outputs, inputs]."""
        columns = const(np.ascontiguousarray(matrix.T), "int8")
        return self._node.bind(op.matmul(x, columns, out_dtype="int32"))

    def run(self, x: Any, time_first: bool) -> tuple[Any, list[Any]]:
        """From a sequence, as stored, to the results of its shape and the next states.

        x: [steps, batch, inputs] if `time_first`, else [batch, steps, inputs].
        """
        node = self._node
        given = self._product(x, 1, self._source, None if self._norm else _BIASES)
        batch = int(x.ty.shape[1 if time_first else 0])
        if self._peephole and self._outputs != self._units and time_first and batch > 1:
            raise ValueError(
                f"it has peepholes, {self._units} units, {self._outputs} outputs and a batch of {batch}: "
                "LiteRT's kernel takes the cells of other units; convert it with a batch of 1"
            )
        first = [node.bind(op.reshape(node.raw(index), [batch, -1])) for index in self._states]
        result, last = run_steps(node, swapped(node, given, not time_first), first, self._step)
        return swapped(node, result, not time_first), [
            node.bind(op.reshape(value, node.shape(index)))
            for value, index in zip(last, self._states, strict=True)
        ]

    def _step(self, row: Any, states: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """One step: from [B, gates * units] and the states to the result and the next states."""
        h, cell = states
        sums = self._product(h, 5, self._state, None, more=row)
        before = [self._gate(sums, gate, cell) for gate in self._gates[:-1]]
        cell = self._next_cell(before, cell)
        result = self._result(self._gate(sums, "o", cell), cell)
        return result, [result, cell]

    def _gate(self, sums: Any, gate: str, cell: Any) -> Gate:
        """The input of a gate's sigmoid or tanh: its sums, with its peephole and its layer norm."""
        node, column = self._node, self._gates.index(gate) * self._units
        if self._peephole and gate != "c":
            sums, column = self._with_peephole(sums, column, gate, cell), 0
        if not self._norm:
            return sums, column
        if column or int(sums.ty.shape[1]) != self._units:
            sums = node.bind(op.strided_slice(sums, [1], [column], [column + self._units]))
        index = self._input_of(_NORMS, gate)
        scale = self._scale(index)
        weights, bias = node.constant_array(index), node.constant_array(self._input_of(_BIASES, gate))
        least = max(1, int(np.float32(_VARIANCE) * scale))
        means = node.emit_te(functions.mean, sums, name="mean")
        spread = node.emit_te(lambda x, m: functions.variance(x, m, least), sums, means, name="variance")
        inverse = node.emit_te(functions.inverse_deviation, spread, name="inverse")
        right = node.emit_te(functions.deviation_shift, spread, name="shift")
        base = factor_of(float(scale))
        factor = Factor(base.multiplier, base.shift + 12)

        def compute(*tensors: Any) -> Any:
            return functions.normed(*tensors, factor=factor)

        more = const(weights.reshape(-1), "int16"), const(bias.reshape(-1), "int32")
        return node.emit_te(compute, sums, means, inverse, right, *more, name="normed"), 0

    def _with_peephole(self, sums: Any, first: int, gate: str, cell: Any) -> Any:
        """The sums [B, units] of a gate with a peephole to the cell.

        LiteRT's kernel counts the outputs where it should count the units: with fewer outputs the units after
        them have no peephole.
        """
        index = 9 + "ifo".index(gate)
        scale = np.float32(2.0**self._power * float(self._scale(index)) / self._before[gate].scale)
        factor = factor_of(float(scale))

        def compute(x: Any, now: Any, weights: Any) -> Any:
            def element(row: Expr, unit: Expr) -> Expr:
                product = tirx.Cast("int32", weights(unit)) * tirx.Cast("int32", now(row, unit))
                total = times(product, factor) + tirx.Cast("int32", x(row, unit + first))
                return limited(total, "int16")

            return te.compute(now.shape, element, name="peephole")

        weights = self._node.constant_array(index).reshape(-1).copy()
        weights[self._outputs :] = 0
        return self._node.emit_te(compute, sums, cell, const(weights, "int16"), name="peephole")

    def _next_cell(self, gates: Sequence[Gate], cell: Any) -> Any:
        """The cell after a step; `gates`: input (if it is no other's complement), forget, cell."""

        def compute(now: Any, table: Any, *tensors: Any) -> Any:
            *put, forget, new = _parts(now.shape, tensors, [column for _, column in gates])
            forget, new = functions.sigmoid(forget, table), functions.tanh(new, table, 3)
            shares = [functions.sigmoid(put[0], table) if put else _complement(forget), new]
            kept = gate_quotients.each(
                lambda f, c: _narrow(divided(f * tirx.Cast("int32", c), 15)), forget, now, name="kept"
            )
            added = gate_quotients.each(
                lambda a, b: _narrow(divided(a * b, 30 + self._power)), *shares, name="added"
            )
            return gate_quotients.each(self._sum, kept, added, name="cell")

        tensors = [tensor for tensor, _ in gates]
        return self._node.emit_te(compute, cell, self._quotients, *tensors, name="cell")

    def _sum(self, kept: Expr, added: Expr) -> Expr:
        """The cell from its two shares."""
        total = limited(kept + added, "int16")
        if not self._clip:
            return total
        clip = tirx.IntImm("int16", self._clip)
        return tirx.max(tirx.min(total, clip), -clip)

    def _result(self, gate: Gate, cell: Any) -> Any:
        """The result of a step: the hidden units, or their projection."""
        node, tensor, column = self._node, *gate
        hidden = np.float32(self._hidden.scale)
        factor = factor_of(float(np.float32(2.0**-15 / float(hidden) * 2.0**-15)))
        projects = node.has(_PROJECTION)
        zero = -self._hidden.zero if projects else self._hidden.zero

        def compute(now: Any, table: Any, x: Any) -> Any:
            [shown] = _parts(now.shape, [x], [column])
            wide = now_wide(now)
            parts = functions.sigmoid(shown, table), functions.tanh(wide, table, 15 + self._power)
            return gate_quotients.each(
                lambda a, b: limited(times(a * b, factor) + i32(zero), "int8"), *parts, name="hidden"
            )

        units = node.emit_te(compute, cell, self._quotients, tensor, name="hidden")
        if not projects:
            if self._hidden.scale != self._state.scale or self._hidden.zero != self._state.zero:
                raise ValueError("its intermediate tensor 4 and its output state have different quantisation")
            return units
        matrix = node.constant_array(_PROJECTION)
        bias = self._hidden.zero * matrix.astype("int64").sum(1)
        if node.has(_PROJECTION + 1):
            bias = bias + node.constant_array(_PROJECTION + 1)
        scale = self._scale(_PROJECTION) * hidden / np.float32(self._state.scale)
        sums = self._sums(units, matrix)
        clip = self._projection_clip
        limits = (-clip, clip) if clip else None
        factors = [factor_of(float(scale))]
        return node.bind(rescaled(node, sums, bias, factors, ResultLevels("int8", self._state.zero, limits)))


def _clip(real: float, grid: Grid, most: int) -> int:
    """The levels of a clip, rounded down and at most `most`; 0 for none."""
    return int(min(float(np.float32(real) / np.float32(grid.scale)), most)) if real > 0 else 0


def _narrow(x: Expr) -> Expr:
    """The lower 16 bits of an int32, with their sign."""
    return tirx.Cast("int32", tirx.Cast("int16", x))


def now_wide(cell: Any) -> Any:
    """The cell as int32."""
    return gate_quotients.each(lambda v: tirx.Cast("int32", v), cell, name="wide")


def _complement(gate: Any) -> Any:
    """1 - gate."""
    return gate_quotients.each(lambda v: i32((1 << 15) - 1) - v, gate, name="complement")


def _parts(shape: Any, tensors: Sequence[Any], firsts: Sequence[int]) -> list[Any]:
    """Parts of `shape` of tensors, from a column on, as int32."""

    def part(tensor: Any, first: int) -> Any:
        return te.compute(shape, lambda row, unit: tirx.Cast("int32", tensor(row, unit + first)), name="part")

    return [part(tensor, first) for tensor, first in zip(tensors, firsts, strict=True)]
