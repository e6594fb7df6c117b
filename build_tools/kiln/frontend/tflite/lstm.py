"""The LSTM of TFLite in floats: peepholes, coupled gates, layer norms, projection and clips.

A layer of gates alone is the operator `recurrent`; all others are steps of Relax operators, unrolled or as a
loop of the plan. Layers of int8: integer_lstm.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from kiln.frontend.recurrent import OPERANDS, Recurrent
from kiln.frontend.tflite.operands import TfliteOperands, const
from kiln.frontend.tflite.sequences import ACTIVATIONS, activated, run_steps

op = relax.op
_GATES = "ifco"  # in the order of the operator's inputs: input, forget, cell, output
_ORDER = "iofc"  # in the operator `recurrent`
_NORMS = 20  # the first input of the coefficients of layer norms


class LstmLayer:
    """One direction of an LSTM.

    base: the operator's first input with weights of this direction. states: the two inputs with its states.
    options: the operator's. aux: the first input with the weights of a second sequence, if there is one.
    """

    def __init__(
        self, node: TfliteOperands, base: int, states: tuple[int, int], options: Any, aux: int | None = None
    ) -> None:
        self._node, self._base, self._states, self._aux = node, base, states, aux
        self._code = int(options.FusedActivationFunction())
        self._cell_clip, self._projection_clip = float(options.CellClip()), float(options.ProjClip())
        self._gates = _GATES if node.has(base) else _GATES[1:]
        self._units = node.shape(base + 1)[0]
        self._peephole = node.has(base + 10)
        self._norm = base == 1 and node.kind != "BIDIRECTIONAL_SEQUENCE_LSTM" and node.has(_NORMS + 1)

    def _weights(self, first: int) -> list[Any]:
        """The matrices [inputs, units] of the gates; `first`: the operator's input of the first gate's."""
        node = self._node
        return [node.bind(op.permute_dims(node.real(first + _GATES.index(gate)))) for gate in self._gates]

    def _vector(self, first: int, gate: str) -> Any:
        """The vector [units] of `gate`; `first`: the operator's input with the first gate's vector."""
        node = self._node
        return node.bind(op.reshape(node.real(first + _GATES.index(gate)), [self._units]))

    def _peephole_of(self, gate: str) -> Any:
        """The peephole weights [units] from the cell to gate i, f or o."""
        node = self._node
        return node.bind(op.reshape(node.real(self._base + 8 + "ifo".index(gate)), [self._units]))

    def _products(self, x: Any, weights: Sequence[Any]) -> list[Any]:
        """`x` [rows, inputs] times each matrix: of floats as one product."""
        node, units = self._node, self._units
        if len(weights) == 1:
            return [node.bind(op.matmul(x, matrix)) for matrix in weights]
        products = node.bind(op.matmul(x, node.bind(op.concat(weights, 1))))
        return self._split(products, len(weights), units)

    def _split(self, products: Any, count: int, units: int) -> list[Any]:
        ends = [(units * index, units * index + units) for index in range(count)]
        return [self._node.bind(op.strided_slice(products, [1], [low], [high])) for low, high in ends]

    def _sequence_products(self, x: Any, second: Any, order: str) -> Any:
        """The sequences times their weights, which each step adds to the gates: [T, B, gates * units].

        order: the gates, as their columns follow each other.
        """
        node = self._node
        steps, batch, _ = (int(size) for size in x.ty.shape)
        products = self._product(x, self._base, order)
        if self._aux is not None:
            products = node.bind(op.add(products, self._product(second, self._aux, order)))
        if not self._norm:
            biases = {gate: self._vector(self._base + 11, gate) for gate in self._gates}
            products = node.bind(op.add(products, self._in_order(order, biases, 0)))
        return node.bind(op.reshape(products, [steps, batch, len(order) * self._units]))

    def _product(self, x: Any, first: int, order: str) -> Any:
        """A sequence [T, B, I] times the weights of its gates: [T * B, gates * units]."""
        node = self._node
        steps, batch, width = (int(size) for size in x.ty.shape)
        weights = self._in_order(order, dict(zip(self._gates, self._weights(first), strict=True)), 1)
        rows = node.bind(op.reshape(x, [steps * batch, width]))
        return node.bind(op.matmul(rows, node.bind(weights)))

    def run(self, x: Any, second: Any = None, backwards: bool = False) -> tuple[Any, list[Any]]:
        """From a sequence [T, B, I] to the results [T, B, outputs] and the next states."""
        node = self._node
        steps, batch, _ = (int(size) for size in x.ty.shape)
        first = [node.bind(op.reshape(node.raw(index), [batch, -1])) for index in self._states]
        if self._is_recurrent_operator(steps):
            sequence = self._sequence_products(x, second, _ORDER)
            result, last = self._recurrent_operator(sequence, first, backwards)
        else:
            sequence = self._sequence_products(x, second, self._gates)
            result, last = run_steps(node, sequence, first, self._step, backwards)
        return result, [
            node.bind(op.reshape(value, node.shape(index)))
            for value, index in zip(last, self._states, strict=True)
        ]

    def _is_recurrent_operator(self, steps: int) -> bool:
        extra = self._norm or self._cell_clip > 0 or self._node.has(self._base + 15)
        return steps > 1 and not extra and self._code in ACTIVATIONS

    def _recurrent_operator(
        self, sequence: Any, states: Sequence[Any], backwards: bool
    ) -> tuple[Any, list[Any]]:
        """The layer as the operator `recurrent`; `sequence`: the products of the gates in its order."""
        node, units = self._node, self._units
        weights = self._in_order(
            _ORDER, dict(zip(self._gates, self._weights(self._base + 4), strict=True)), 1
        )
        operands = {
            "given": sequence,
            "weights": op.expand_dims(weights, 0),
            "h": op.expand_dims(states[0], 0),
            "c": op.expand_dims(states[1], 0),
        }
        if self._peephole:
            peepholes_of_gates = {
                gate: op.reshape(self._peephole_of(gate), [1, units]) for gate in "ifo" if gate in self._gates
            }
            operands["peepholes"] = self._in_order("iof", peepholes_of_gates, 1)
        layer = Recurrent(
            kind="LSTM", hidden=units, direction="reverse" if backwards else "forward",
            activations=[("sigmoid", 0.0, 0.0), ACTIVATIONS[self._code], ACTIVATIONS[self._code]],
            operands=[name for name in OPERANDS if name in operands], input_forget="i" not in self._gates,
        )  # fmt: skip
        layer_results = node.bind(layer.call({name: node.bind(value) for name, value in operands.items()}))
        y, h, c = (node.bind(relax.TupleGetItem(layer_results, index)) for index in range(3))
        return node.bind(op.squeeze(y, [1])), [h, c]

    def _in_order(self, order: str, values_of_gates: Mapping[str, Any], axis: int) -> Any:
        """Parts of the gates along `axis`. Coupled gates: 1 - sigmoid(x) is sigmoid(-x), the input gate's."""
        node = self._node
        chosen = dict(values_of_gates)
        if "i" in order and "i" not in values_of_gates:
            chosen["i"] = node.bind(op.negative(node.bind(values_of_gates["f"])))
        return node.bind(op.concat([node.bind(chosen[gate]) for gate in order], axis))

    def _layer_norm(self, x: Any, gate: str) -> Any:
        """`x` [B, units] of a gate after its layer norm and its bias."""
        node = self._node
        mean = node.bind(op.mean(x, -1, keepdims=True))
        centred = node.bind(op.subtract(x, mean))
        variance = node.bind(op.mean(node.bind(op.multiply(centred, centred)), -1, keepdims=True))
        deviation = node.bind(op.sqrt(node.bind(op.add(variance, const(1e-8, "float32")))))
        scaled = op.multiply(node.bind(op.divide(centred, deviation)), self._vector(_NORMS, gate))
        return node.bind(op.add(node.bind(scaled), self._vector(self._base + 11, gate)))

    def _gate(self, x: Any, gate: str, cell: Any) -> Any:
        """The value of a gate from its sum; `cell`: the cell that its peephole reads."""
        node = self._node
        if self._peephole and gate != "c":
            peephole = node.bind(op.multiply(cell, self._peephole_of(gate)))
            x = node.bind(op.add(x, peephole))
        if self._norm:
            x = self._layer_norm(x, gate)
        return activated(node, x, self._code) if gate == "c" else node.bind(op.sigmoid(x))

    def _step(self, row: Any, states: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """One step: from [B, gates * units] and the states to the result and the next states."""
        node = self._node
        h, cell = states
        sums_of_input = self._split(row, len(self._gates), self._units)
        sums_of_state = self._products(h, self._weights(self._base + 4))
        sums = {
            gate: node.bind(op.add(a, b))
            for gate, a, b in zip(self._gates, sums_of_input, sums_of_state, strict=True)
        }
        forget = self._gate(sums["f"], "f", cell)
        input_gate = (
            op.subtract(const(1, "float32"), forget) if "i" not in sums else self._gate(sums["i"], "i", cell)
        )
        candidate = self._gate(sums["c"], "c", cell)
        old_part, new_part = (
            node.bind(op.multiply(forget, cell)),
            node.bind(op.multiply(input_gate, candidate)),
        )
        cell = node.bind(op.add(old_part, new_part))
        if self._cell_clip > 0:
            cell = node.bind(op.clip(cell, -self._cell_clip, self._cell_clip))
        activated_cell = activated(node, cell, self._code)
        result = self._projected(node.bind(op.multiply(self._gate(sums["o"], "o", cell), activated_cell)))
        return result, [result, cell]

    def _projected(self, hidden: Any) -> Any:
        """The result of a step, from the hidden units."""
        node, first = self._node, self._base + 15
        if not node.has(first):
            return hidden
        result = node.bind(op.matmul(hidden, node.bind(op.permute_dims(node.real(first)))))
        if node.has(first + 1):
            result = node.bind(op.add(result, node.real(first + 1)))
        clip = self._projection_clip
        return node.bind(op.clip(result, -clip, clip)) if clip > 0 else result


def basic_lstm(node: TfliteOperands, code: int) -> Any:
    """LSTM of the basic kernel, whose gates are: input, cell, forget, output.

    Inputs: data, activation, weights, bias, cell. Results: activation, cell, two scratch tensors, and the
    next states.

    Raises ValueError for integers and for another activation than TANH.
    """  # fmt: skip
    if not node.dtype(0).startswith("float") or code != 4:
        raise ValueError(f"of {node.dtype(0)} with activation {code}, allowed: float32 with TANH")
    both = node.bind(op.concat([node.raw(0), node.raw(1)], 1))
    sums = node.bind(op.matmul(both, node.bind(op.permute_dims(node.real(2)))))
    sums = node.bind(op.add(sums, node.real(3)))
    units = int(sums.ty.shape[1]) // 4
    gates = [node.bind(op.strided_slice(sums, [1], [units * k], [units * k + units])) for k in range(4)]
    put, forget, shown = (node.bind(op.sigmoid(gates[index])) for index in (0, 2, 3))
    new = node.bind(op.multiply(put, node.bind(op.tanh(gates[1]))))
    cell = node.bind(op.add(node.bind(op.multiply(forget, node.raw(4))), new))
    result = node.bind(op.multiply(shown, node.bind(op.tanh(cell))))
    return relax.Tuple([result, cell, both, sums, result, cell])
