"""Converters of LSTM, GRU and RNN, which TVM 0.27 does not import: unrolled over the steps of the sequence.

The contribution of the input is one matmul for the whole sequence. Each step selects a row of the result of
this matmul by an index that is data, so that all steps share the same few kernels, and multiplies only the
state of the previous step. Equations and the order of gates are those of the ONNX operators. Converters raise
ValueError for unsupported nodes: weights or lengths known only at run time, peepholes, clipping, and
activations other than the default ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from kiln.frontend.onnx.node import Node

op = relax.op
Array = npt.NDArray[Any]

# Greatest number of steps that are unrolled; each step becomes two or three steps of the plan.
LONGEST = 512
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _const(value: Array) -> Any:
    return relax.const(np.ascontiguousarray(value))


@dataclass(frozen=True)
class _Layer:
    """One direction of a recurrent operator: weights with columns by gate, and `emit` to bind expressions."""

    kind: str
    hidden: int
    recurrent: Array  # [hidden, gates * hidden]
    bias: Array  # of the recurrent matmul, [gates * hidden]
    before_reset: bool
    emit: Callable[[Any], Any]

    def part(self, sums: Any, number: int, count: int = 1) -> Any:
        """The columns of gates [number, number + count) of `sums`."""
        first, last = number * self.hidden, (number + count) * self.hidden
        return op.strided_slice(sums, [1], [first], [last])

    def product(self, state: Any, first: int, last: int) -> Any:
        """The matmul of `state` and the recurrent weights of gates [first, last)."""
        return op.matmul(state, _const(self.recurrent[:, first * self.hidden : last * self.hidden]))

    def step(self, given: Any, states: list[Any]) -> list[Any]:
        """The states (h, and c of an LSTM) after one step; `given`: the contribution of the input."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind](given, states)

    def _rnn(self, given: Any, states: list[Any]) -> list[Any]:
        return [self.emit(op.tanh(op.add(self.product(states[0], 0, 1), given)))]

    def _lstm(self, given: Any, states: list[Any]) -> list[Any]:
        # Gates in ONNX's order: input, output, forget, cell.
        h, c = states
        sums = self.emit(op.add(self.product(h, 0, 4), given))
        put, out, keep = (op.sigmoid(self.part(sums, gate)) for gate in (0, 1, 2))
        fresh = op.tanh(self.part(sums, 3))
        c = self.emit(op.add(op.multiply(keep, c), op.multiply(put, fresh)))
        return [self.emit(op.multiply(out, op.tanh(c))), c]

    def _gru(self, given: Any, states: list[Any]) -> list[Any]:
        # Gates in ONNX's order: update (z), reset (r), hidden (h).
        h = states[0]
        if self.before_reset:
            sums = self.emit(op.add(self.product(h, 0, 3), _const(self.bias)))
            both = self.emit(op.sigmoid(op.add(self.part(sums, 0, 2), self.part(given, 0, 2))))
            gated = op.multiply(self.part(both, 1), self.part(sums, 2))
        else:
            both = self.emit(op.sigmoid(op.add(self.product(h, 0, 2), self.part(given, 0, 2))))
            gated = self.product(self.emit(op.multiply(self.part(both, 1), h)), 2, 3)
        fresh = self.emit(op.tanh(op.add(gated, self.part(given, 2))))
        update = self.part(both, 0)
        # (1 - z) * fresh + z * h
        return [self.emit(op.add(fresh, op.multiply(update, op.subtract(h, fresh))))]


def _checked(node: Node, directions: int) -> None:
    """Raise ValueError for attributes and inputs of `node` that are not supported."""
    attributes = node.attributes
    usual = _USUAL[node.op] * directions
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in attributes.get("activations", usual)]
    if [name.lower() for name in names] != usual:
        raise ValueError(f"activations {', '.join(names)}: allowed: {', '.join(usual)}")
    for name in ("clip", "input_forget", "layout"):
        if attributes.get(name):
            raise ValueError(f"attribute '{name}' must be left out")
    if node.has(7):
        raise ValueError("peepholes (input 7) must be left out")


def recurrent(node: Node) -> Any:
    """LSTM, GRU or RNN → the tuple (Y, Y_h), with Y_c as third field for an LSTM."""
    kind, hidden = node.op, int(node.attributes["hidden_size"])
    direction = node.attributes.get("direction", "forward")
    direction = direction.decode() if isinstance(direction, bytes) else str(direction)
    directions = 2 if direction == "bidirectional" else 1
    _checked(node, directions)
    length, batch, width = node.shape(0)
    if not isinstance(length, int) or length > LONGEST or not isinstance(batch, int):
        raise ValueError(f"a sequence of {length} steps, batch {batch}: at most {LONGEST}, known beforehand")
    lengths = node.constant(4) if node.has(4) else np.array([length])
    if lengths is None or (lengths != length).any():
        raise ValueError("sequence_lens (input 4) must be left out")
    weights, recurrences = node.constant(1), node.constant(2)
    biases = node.constant(3) if node.has(3) else np.zeros([directions, 2 * _GATES[kind] * hidden], "float32")
    if weights is None or recurrences is None or biases is None:
        raise ValueError("its weights are not known before the model runs")
    emit = node.builder.emit
    rows = emit(op.reshape(node.tensor(0), [length * batch, width]))
    outputs: list[list[Any]] = []
    finals: list[list[Any]] = []
    for number in range(directions):
        from_input, from_state = np.split(biases[number], 2)
        before_reset = kind == "GRU" and bool(node.attributes.get("linear_before_reset", 0))
        bias = from_input if before_reset else from_input + from_state
        layer = _Layer(kind, hidden, recurrences[number].T, from_state, before_reset, emit)
        given = emit(op.add(op.matmul(rows, _const(weights[number].T)), _const(bias)))
        steps = emit(op.reshape(given, [length, batch, _GATES[kind] * hidden]))
        states = _start(node, number, batch, hidden)
        found: list[Any] = [None] * length
        backward = direction == "reverse" or number == 1
        for time in reversed(range(length)) if backward else range(length):
            row = op.reshape(op.take(steps, relax.const([time], "int64"), 0), [batch, _GATES[kind] * hidden])
            states = layer.step(emit(row), states)
            found[time] = states[0]
        outputs.append(found)
        finals.append(states)
    shape = [length, 1, batch, hidden]
    sides = [emit(op.reshape(emit(op.concat(found, 0)), shape)) for found in outputs]
    results = [sides[0] if directions == 1 else op.concat(sides, 1)]
    for state in range(len(finals[0])):
        ends = [emit(op.reshape(states[state], [1, batch, hidden])) for states in finals]
        results.append(ends[0] if directions == 1 else op.concat(ends, 0))
    return relax.Tuple([emit(result) for result in results])


def _start(node: Node, number: int, batch: int, hidden: int) -> list[Any]:
    """The initial states [batch, hidden] of direction `number`: inputs of the node, or zeros."""
    states = []
    for index in (5, 6) if node.op == "LSTM" else (5,):
        if node.has(index):
            one = op.take(node.tensor(index), relax.const([number], "int64"), 0)
            states.append(node.builder.emit(op.reshape(one, [batch, hidden])))
        else:
            states.append(_const(np.zeros([batch, hidden], "float32")))
    return states


CONVERTERS: dict[str, Callable[[Node], Any]] = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
