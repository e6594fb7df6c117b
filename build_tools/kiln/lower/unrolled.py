"""Unrolled recurrent layers, for GPUs: operators for each step, whose matmuls run on many threads.

All steps share the same few kernels. Layers with a dynamic length, with more than LONGEST steps or with
unusual activations are not unrolled: one thread computes each sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.callbacks import mutator
from kiln.frontend import added_operators
from kiln.frontend.recurrent import NAME, Recurrent, attributes

op = relax.op

LONGEST = 512
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def unrolled(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace the recurrent layers of `mod` that can be unrolled."""
    rewriter = _Unroll(mod)
    for variable, function in list(mod.functions_items()):
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


@mutator
class _Unroll(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if added_operators.name_of(call) != NAME:
            return call
        layer = attributes(call)
        length = call.ty.fields[0].shape[int(layer.batch_first)]
        plain = [name for name, _, _ in layer.activations] == _USUAL[layer.kind] and layer.clip is None
        if not plain or layer.input_forget or not isinstance(length, tirx.IntImm) or int(length) > LONGEST:
            return call
        return _Steps(layer, call, self.builder_.emit).results()


class _Steps:
    """One layer: its operands by name, and the expressions that replace it."""

    def __init__(self, layer: Recurrent, call: relax.Call, emit: Any) -> None:
        self.layer, self.emit = layer, emit
        self.operands = dict(zip(layer.operands, call.args[1].fields, strict=True))
        sequence = self.operands["given"]
        if layer.batch_first:
            sequence = emit(op.permute_dims(sequence, [1, 0, 2]))
        self.given = sequence
        self.length, self.batch = int(sequence.ty.shape[0]), sequence.ty.shape[1]
        self.columns = layer.gates * layer.hidden

    def results(self) -> Any:
        """The tuple of results."""
        layer = self.layer
        sides = [self._side(number) for number in range(layer.directions)]
        results = [self._joined([side[0] for side in sides], 1)]
        results += [self._joined([side[state] for side in sides], 0) for state in range(1, len(sides[0]))]
        if layer.batch_first:
            results[0] = self.emit(op.permute_dims(results[0], [2, 0, 1, 3]))
            results[1:] = [self.emit(op.permute_dims(state, [1, 0, 2])) for state in results[1:]]
        return relax.Tuple(results)

    def _joined(self, tensors: list[Any], axis: int) -> Any:
        return tensors[0] if len(tensors) == 1 else self.emit(op.concat(tensors, axis))

    def _part(self, name: str, side: int, axis: int = 0) -> Any:
        """Direction `side` of an operand, without the axis of directions."""
        operand = self.operands[name]
        one_direction = self.emit(op.strided_slice(operand, [axis], [side], [side + 1]))
        return self.emit(op.squeeze(one_direction, [axis]))

    def _side(self, side: int) -> list[Any]:
        """y [L, 1, B, H] and the last states [1, B, H] of a direction."""
        layer, emit = self.layer, self.emit
        hidden, batch = layer.hidden, self.batch
        weights = self._part("weights", side)
        states = [self._start(name, side) for name in (("h", "c") if layer.kind == "LSTM" else ("h",))]
        outputs: list[Any] = [None] * self.length
        backward = layer.direction == "reverse" or side == 1
        bias = self._part("bias", side) if "bias" in self.operands else None
        peepholes = self._part("peepholes", side) if "peepholes" in self.operands else None
        for time in reversed(range(self.length)) if backward else range(self.length):
            row = emit(op.take(self.given, relax.const([time], "int64"), 0))
            row = emit(op.reshape(row, relax.ShapeExpr([batch, layer.directions * self.columns])))
            if layer.directions > 1:
                row = self._columns(row, side * self.columns, self.columns)
            after = self._step(row, states, weights, bias, peepholes)
            if "lengths" in self.operands:
                limit = emit(op.expand_dims(self.operands["lengths"], 1))
                inside = emit(op.less(relax.const(np.int32(time)), limit))
                outputs[time] = emit(op.where(inside, after[0], relax.const(0.0, layer.dtype)))
                after = [emit(op.where(inside, new, old)) for new, old in zip(after, states, strict=True)]
            else:
                outputs[time] = after[0]
            states = after
        all_steps = emit(op.concat(outputs, 0)) if self.length > 1 else outputs[0]
        y = emit(op.reshape(all_steps, relax.ShapeExpr([self.length, 1, batch, hidden])))
        return [y, *(emit(op.expand_dims(state, 0)) for state in states)]

    def _start(self, name: str, side: int) -> Any:
        if name in self.operands:
            return self._part(name, side, int(self.layer.batch_first))
        return self.emit(op.zeros(relax.ShapeExpr([self.batch, self.layer.hidden]), self.layer.dtype))

    def _columns(self, value: Any, first: int, count: int) -> Any:
        axis = len(value.ty.shape) - 1
        return self.emit(op.strided_slice(value, [axis], [first], [first + count]))

    def _gate(self, sums: Any, number: int, count: int = 1) -> Any:
        return self._columns(sums, number * self.layer.hidden, count * self.layer.hidden)

    def _step(
        self, gates_input: Any, states: list[Any], weights: Any, bias: Any, peepholes: Any
    ) -> list[Any]:
        """The states after a step; `gates_input` [B, G * H], `weights` [H, G * H]."""
        emit, h = self.emit, states[0]
        if self.layer.kind == "RNN":
            return [emit(op.tanh(emit(op.add(emit(op.matmul(h, weights)), gates_input))))]
        if self.layer.kind == "GRU":
            return [self._gru(gates_input, h, weights, bias)]
        sums = emit(op.add(emit(op.matmul(h, weights)), gates_input))
        c = states[1]

        def gate(number: int, cell: Any) -> Any:
            value = self._gate(sums, number)
            if peepholes is not None:
                value = emit(op.add(value, emit(op.multiply(cell, self._gate(peepholes, number)))))
            return emit(op.sigmoid(value))

        fresh = emit(op.multiply(gate(0, c), emit(op.tanh(self._gate(sums, 3)))))
        c = emit(op.add(emit(op.multiply(gate(2, c), c)), fresh))
        return [emit(op.multiply(gate(1, c), emit(op.tanh(c)))), c]

    def _gru(self, gates_input: Any, h: Any, weights: Any, bias: Any) -> Any:
        emit = self.emit
        reset_and_update = emit(op.matmul(h, self._gate(weights, 0, 2)))
        reset_and_update = emit(op.sigmoid(emit(op.add(reset_and_update, self._gate(gates_input, 0, 2)))))
        reset, update = self._gate(reset_and_update, 1), self._gate(reset_and_update, 0)
        if self.layer.before_reset:
            candidate = emit(op.add(emit(op.matmul(h, self._gate(weights, 2))), bias))
            candidate = emit(op.multiply(reset, candidate))
        else:
            candidate = emit(op.matmul(emit(op.multiply(reset, h)), self._gate(weights, 2)))
        fresh = emit(op.tanh(emit(op.add(candidate, self._gate(gates_input, 2)))))
        # (1 - z) * fresh + z * h
        return emit(op.add(fresh, emit(op.multiply(update, emit(op.subtract(h, fresh))))))
