"""Converters of LSTM, GRU and RNN, which TVM 0.27 does not import: unrolled over the steps of the sequence.

The contribution of the input is one matmul for the whole sequence. Each step selects a row of the result of
this matmul by an index that is data, so that all steps share the same few kernels, and multiplies only the
state of the previous step. Equations and the order of gates are those of the ONNX operators. The batch may be
dynamic, and sequences of different lengths are given by sequence_lens. Converters raise ValueError for
unsupported nodes: a dynamic number of steps, clipping, and activations other than the default ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from kiln.frontend.onnx.node import Node
from kiln.frontend.symbols import Extent

op = relax.op
Array = npt.NDArray[Any]

# Greatest number of steps that are unrolled; each step becomes two or three steps of the plan.
LONGEST = 512
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _const(value: Any) -> Any:
    """An array as a constant; an expression as it is."""
    return relax.const(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class _Layer:
    """One direction of a recurrent operator: weights with columns by gate, and `emit` to bind expressions.

    Weights are arrays, or expressions if they are not known before the model runs. peepholes: of the input,
    output and forget gate of an LSTM, [hidden] each; empty if it has none.
    """

    kind: str
    hidden: int
    recurrent: Any  # [hidden, gates * hidden]
    bias: Any  # of the recurrent matmul, [gates * hidden]
    before_reset: bool
    emit: Callable[[Any], Any]
    peepholes: Sequence[Any] = ()

    def part(self, sums: Any, number: int, count: int = 1) -> Any:
        """The columns of gates [number, number + count) of `sums`."""
        first, last = number * self.hidden, (number + count) * self.hidden
        return op.strided_slice(sums, [1], [first], [last])

    def product(self, state: Any, first: int, last: int) -> Any:
        """The matmul of `state` and the recurrent weights of gates [first, last)."""
        begin, end = first * self.hidden, last * self.hidden
        if isinstance(self.recurrent, np.ndarray):
            return op.matmul(state, _const(self.recurrent[:, begin:end]))
        return op.matmul(state, self.emit(op.strided_slice(self.recurrent, [1], [begin], [end])))

    def gate(self, sums: Any, number: int, cell: Any) -> Any:
        """The gate `number` of an LSTM, whose peephole reads the state `cell`."""
        value = self.part(sums, number)
        if self.peepholes:
            value = op.add(self.emit(value), op.multiply(cell, _const(self.peepholes[number])))
        return op.sigmoid(self.emit(value)) if self.peepholes else op.sigmoid(value)

    def step(self, given: Any, states: list[Any]) -> list[Any]:
        """The states (h, and c of an LSTM) after one step; `given`: the contribution of the input."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind](given, states)

    def _rnn(self, given: Any, states: list[Any]) -> list[Any]:
        return [self.emit(op.tanh(op.add(self.product(states[0], 0, 1), given)))]

    def _lstm(self, given: Any, states: list[Any]) -> list[Any]:
        # Gates in ONNX's order: input, output, forget, cell.
        h, c = states
        sums = self.emit(op.add(self.product(h, 0, 4), given))
        put, keep = (self.gate(sums, gate, c) for gate in (0, 2))
        fresh = op.tanh(self.part(sums, 3))
        c = self.emit(op.add(op.multiply(keep, c), op.multiply(put, fresh)))
        out = self.gate(sums, 1, c)
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
    for name in ("clip", "input_forget"):
        if attributes.get(name):
            raise ValueError(f"attribute '{name}' must be left out")


def recurrent(node: Node) -> Any:
    """LSTM, GRU or RNN → the tuple (Y, Y_h), with Y_c as third field for an LSTM."""
    kind, hidden = node.op, int(node.attributes["hidden_size"])
    direction = node.attributes.get("direction", "forward")
    direction = direction.decode() if isinstance(direction, bytes) else str(direction)
    directions = 2 if direction == "bidirectional" else 1
    _checked(node, directions)
    batches_first = bool(node.attributes.get("layout", 0))
    length, batch, width = node.shape(0)
    if batches_first:
        length, batch = batch, length
    if not isinstance(length, int) or length > LONGEST:
        raise ValueError(
            f"a sequence of {length} steps: allowed is a fixed number, at most {LONGEST}; run the layer on "
            "parts of the sequence, and feed the states of one part to the next"
        )
    lengths = _lengths(node, length)
    emit, gates = node.builder.emit, _GATES[kind]
    x = emit(op.permute_dims(node.tensor(0), [1, 0, 2])) if batches_first else node.tensor(0)
    rows = emit(op.reshape(x, [length * batch, width]))
    outputs: list[list[Any]] = []
    finals: list[list[Any]] = []
    for number in range(directions):
        before_reset = kind == "GRU" and bool(node.attributes.get("linear_before_reset", 0))
        weights, recurrences = (_turned(_side(node, index, number), emit) for index in (1, 2))
        from_input, from_state = _biases(node, number, gates * hidden)
        bias = from_input if before_reset else _added(from_input, from_state, emit)
        peepholes: Sequence[Any] = ()
        if node.has(7):
            held = _side(node, 7, number)
            peepholes = np.split(held, 3) if isinstance(held, np.ndarray) else _parts(held, 3, hidden, emit)
        layer = _Layer(kind, hidden, recurrences, from_state, before_reset, emit, peepholes)
        given = emit(op.add(op.matmul(rows, _const(weights)), _const(bias)))
        steps = emit(op.reshape(given, [length, batch, gates * hidden]))
        states = _start(node, number, batch, hidden, batches_first)
        found: list[Any] = [None] * length
        backward = direction == "reverse" or number == 1
        for time in reversed(range(length)) if backward else range(length):
            row = op.reshape(op.take(steps, relax.const([time], "int64"), 0), [batch, gates * hidden])
            after = layer.step(emit(row), states)
            if lengths is None:
                states, found[time] = after, after[0]
                continue
            inside = emit(op.less(relax.const(time, "int32"), lengths))  # [batch, 1]
            states = [emit(op.where(inside, new, old)) for new, old in zip(after, states, strict=True)]
            found[time] = emit(op.where(inside, after[0], relax.const(0.0, "float32")))
        outputs.append(found)
        finals.append(states)
    shape = [length, 1, batch, hidden]
    sides = [emit(op.reshape(emit(op.concat(found, 0)), shape)) for found in outputs]
    results = [sides[0] if directions == 1 else op.concat(sides, 1)]
    for state in range(len(finals[0])):
        ends = [emit(op.reshape(states[state], [1, batch, hidden])) for states in finals]
        results.append(ends[0] if directions == 1 else op.concat(ends, 0))
    if batches_first:  # [length, directions, batch, hidden] and [directions, batch, hidden]
        results[0] = op.permute_dims(emit(results[0]), [2, 0, 1, 3])
        results[1:] = [op.permute_dims(emit(result), [1, 0, 2]) for result in results[1:]]
    return relax.Tuple([emit(result) for result in results])


def _lengths(node: Node, length: int) -> Any:
    """The steps of each sequence, [batch, 1]; None if all sequences have `length` steps.

    A shorter sequence is processed like the others, but its states stay as they are beyond its end, and its
    outputs there are zeros. So the reverse direction begins at its end.
    """
    if not node.has(4):
        return None
    known = node.constant(4)
    if known is not None and (known == length).all():
        return None
    cast = node.builder.emit(op.astype(node.tensor(4), "int32"))
    return node.builder.emit(op.expand_dims(cast, 1))


def _side(node: Node, index: int, number: int) -> Any:
    """The part of direction `number` of a weight: an array, or an expression if it is not constant."""
    value = node.constant(index)
    if value is not None:
        return value[number]
    one = node.builder.emit(op.take(node.tensor(index), relax.const([number], "int64"), 0))
    return node.builder.emit(op.squeeze(one, [0]))


def _turned(weight: Any, emit: Callable[[Any], Any]) -> Any:
    return weight.T if isinstance(weight, np.ndarray) else emit(op.permute_dims(weight))


def _parts(value: Any, count: int, size: int, emit: Callable[[Any], Any]) -> list[Any]:
    """`count` vectors of `size` elements that follow one another in `value`."""
    return [
        emit(op.strided_slice(value, [0], [number * size], [(number + 1) * size])) for number in range(count)
    ]


def _added(a: Any, b: Any, emit: Callable[[Any], Any]) -> Any:
    return a + b if isinstance(a, np.ndarray) else emit(op.add(a, b))


def _biases(node: Node, number: int, size: int) -> Sequence[Any]:
    """The biases of direction `number` for the input and for the state, [size] each."""
    if not node.has(3):
        return [np.zeros(size, "float32"), np.zeros(size, "float32")]
    both = _side(node, 3, number)
    return np.split(both, 2) if isinstance(both, np.ndarray) else _parts(both, 2, size, node.builder.emit)


def _start(node: Node, number: int, batch: Extent, hidden: int, batches_first: bool) -> list[Any]:
    """The initial states [batch, hidden] of direction `number`: inputs of the node, or zeros.

    batches_first: whether the axis of directions is the second, not the first.
    """
    states = []
    for index in (5, 6) if node.op == "LSTM" else (5,):
        if node.has(index):
            one = op.take(node.tensor(index), relax.const([number], "int64"), int(batches_first))
            states.append(node.builder.emit(op.reshape(one, [batch, hidden])))
        else:
            fixed = isinstance(batch, int)
            zeros = _const(np.zeros([batch, hidden], "float32")) if fixed else None
            shape = relax.ShapeExpr([batch, hidden])
            states.append(zeros or node.builder.emit(op.zeros(shape, "float32")))
    return states


CONVERTERS: dict[str, Callable[[Node], Any]] = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
