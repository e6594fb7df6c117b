"""Converters of LSTM, GRU and RNN, which TVM 0.27 does not import.

The contribution of the input is one matmul for the whole sequence and for both directions. The operator
`recurrent` (frontend/recurrent.py) does the rest. Equations and the order of gates are as in the ONNX
operators; length and batch may be dynamic. float16 is computed in float32, and float64 in float64.
Converters raise ValueError for unsupported nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend.onnx.node import Node
from kiln.frontend.recurrent import DIRECTIONS, GATES, OPERANDS, Recurrent

op = relax.op

_DEFAULT_ACTIVATIONS = {
    "LSTM": ["sigmoid", "tanh", "tanh"],
    "GRU": ["sigmoid", "tanh"],
    "RNN": ["tanh"],
}  # fmt: skip
# Default values of alpha and beta, for the activations that have them.
_DEFAULT_ALPHA = {
    "affine": 1.0, "elu": 1.0, "hardsigmoid": 0.2, "leakyrelu": 0.01, "scaledtanh": 1.0,
    "thresholdedrelu": 1.0,
}  # fmt: skip
_DEFAULT_BETA = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": 1.0}
_WITHOUT_PARAMETERS = ("relu", "sigmoid", "softplus", "softsign", "tanh")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _activations(node: Node, directions: int) -> list[list[tuple[str, float, float]]]:
    """The activations of each direction: name in lower case, alpha, beta. Raises ValueError for others."""
    usual = _DEFAULT_ACTIVATIONS[node.op] * directions
    names = [_text(name) for name in node.attributes.get("activations") or usual]
    allowed = [*_DEFAULT_ALPHA, *_WITHOUT_PARAMETERS]
    if len(names) != len(usual) or any(name.lower() not in allowed for name in names):
        raise ValueError(
            f"activations {', '.join(names)}: allowed are {len(usual)} of {', '.join(sorted(allowed))}"
        )
    alphas = [float(value) for value in node.attributes.get("activation_alpha") or []]
    betas = [float(value) for value in node.attributes.get("activation_beta") or []]
    functions = []
    for name in (name.lower() for name in names):
        alpha = alphas.pop(0) if name in _DEFAULT_ALPHA and alphas else _DEFAULT_ALPHA.get(name, 0.0)
        beta = betas.pop(0) if name in _DEFAULT_BETA and betas else _DEFAULT_BETA.get(name, 0.0)
        functions.append((name, alpha, beta))
    if alphas or betas:
        raise ValueError(
            f"activation_alpha or activation_beta have {len(alphas) + len(betas)} values more than "
            f"{', '.join(names)} take"
        )
    per_direction = len(usual) // directions
    return [functions[per_direction * number : per_direction * (number + 1)] for number in range(directions)]


def recurrent(node: Node) -> Any:
    """LSTM, GRU or RNN → the tuple (Y, Y_h), with Y_c as third field for an LSTM."""
    direction = _text(node.attributes.get("direction", "forward"))
    directions = 2 if direction == "bidirectional" else 1
    functions = _activations(node, directions)
    if directions == 1 or functions[0] == functions[1]:
        results = _Layer(node).convert(direction, functions[0], slice(0, directions))
        return relax.Tuple([node.builder.emit(result) for result in results])
    # Directions with functions of their own are layers of their own.
    sides = [
        _Layer(node).convert(DIRECTIONS[number], functions[number], slice(number, number + 1))
        for number in range(2)
    ]
    batches_first = bool(node.attributes.get("layout", 0))
    axes = [2, 1, 1] if batches_first else [1, 0, 0]
    pairs = zip(*sides, axes[: len(sides[0])], strict=True)
    return relax.Tuple([node.builder.emit(op.concat([first, second], axis)) for first, second, axis in pairs])


class _Layer:
    """The operands of a node, as arrays where they are constant, else as expressions."""

    def __init__(self, node: Node) -> None:
        self.node, self.emit = node, node.builder.emit
        self.hidden, self.gates = int(node.attributes["hidden_size"]), GATES[node.op]
        self.columns = self.gates * self.hidden
        self.batches_first = bool(node.attributes.get("layout", 0))
        self.dtype = str(node.tensor(0).ty.dtype)
        self.inner = "float64" if self.dtype == "float64" else "float32"  # the type of the computation

    def convert(
        self, direction: str, functions: list[tuple[str, float, float]], sides: slice
    ) -> list[Any]:  # fmt: skip
        """The results of the directions `sides` of the node, as expressions."""
        node = self.node
        count = sides.stop - sides.start
        before_reset = node.op == "GRU" and bool(node.attributes.get("linear_before_reset", 0))
        weights, recurrences = self._weights(1, sides), self._weights(2, sides)
        from_input, hidden_bias = self._biases(sides, before_reset)
        operands = {
            "given": self._input_product(weights, from_input, count),
            "weights": self._reshaped(
                self._transposed(recurrences, (0, 2, 1)), [count, self.hidden, self.columns]
            ),
            "bias": hidden_bias,
            "peepholes": self._weights(7, sides) if node.op == "LSTM" and node.has(7) else None,
            "lengths": self._lengths(),
            "h": self._initial_state(5, sides),
            "c": self._initial_state(6, sides) if node.op == "LSTM" else None,
        }
        present = {name: self._const(operands[name]) for name in OPERANDS if operands[name] is not None}
        clip = float(node.attributes.get("clip") or 0.0)
        layer = Recurrent(
            kind=node.op,
            hidden=self.hidden,
            direction=direction,
            activations=functions,
            operands=list(present),
            clip=clip if clip > 0.0 else None,
            before_reset=before_reset,
            input_forget=node.op == "LSTM" and bool(node.attributes.get("input_forget", 0)),
            batch_first=self.batches_first,
            dtype=self.inner,
        )
        layer_results = self.emit(layer.call(present))
        results = [
            relax.TupleGetItem(layer_results, number) for number in range(3 if node.op == "LSTM" else 2)
        ]
        return [self._cast(self.emit(result), self.dtype) for result in results]

    def _cast(self, value: Any, dtype: str) -> Any:
        return value if str(value.ty.dtype) == dtype else self.emit(op.astype(value, dtype))

    def _const(self, value: Any) -> Any:
        """An array as a constant; an expression as it is."""
        if not isinstance(value, np.ndarray):
            return value
        return relax.const(np.ascontiguousarray(value), str(value.dtype))

    def _weights(self, index: int, sides: slice) -> Any:
        """Input `index` of the directions `sides` in the computation's type: an array, or an expression."""
        value = self.node.constant(index)
        if value is not None:
            return value.astype(self.inner)[sides]
        all_directions = self._cast(self.node.tensor(index), self.inner)
        if int(all_directions.ty.shape[0]) == sides.stop - sides.start:
            return all_directions
        return self.emit(op.strided_slice(all_directions, [0], [sides.start], [sides.stop]))

    def _transposed(self, value: Any, axes: Sequence[int]) -> Any:
        if isinstance(value, np.ndarray):
            return value.transpose(axes)
        return self.emit(op.permute_dims(value, list(axes)))

    def _reshaped(self, value: Any, shape: Sequence[Any]) -> Any:
        if isinstance(value, np.ndarray):
            return value.reshape(shape)
        return self.emit(op.reshape(value, relax.ShapeExpr(list(shape))))

    def _columns(self, value: Any, first: int, last: int) -> Any:
        """The columns [first, last) of `value`, [D, …]."""
        if isinstance(value, np.ndarray):
            return value[:, first:last]
        return self.emit(op.strided_slice(value, [1], [first], [last]))

    def _biases(self, sides: slice, before_reset: bool) -> tuple[Any, Any]:
        """The biases of the input's product, [D, G * H], and of the hidden gate, [D, H]; None: no bias."""
        count = sides.stop - sides.start
        if not self.node.has(3):
            return None, (np.zeros([count, self.hidden], self.inner) if before_reset else None)
        biases = self._weights(3, sides)
        halves = [
            self._columns(biases, 0, self.columns),
            self._columns(biases, self.columns, 2 * self.columns),
        ]
        if not before_reset:
            return self._sum(*halves), None
        first = 2 * self.hidden
        hidden_bias = self._columns(halves[1], first, self.columns)
        summed = self._sum(*(self._columns(half, 0, first) for half in halves))
        input_bias = self._columns(halves[0], first, self.columns)
        if isinstance(summed, np.ndarray):
            return np.concatenate([summed, input_bias], 1), hidden_bias
        return self.emit(op.concat([summed, input_bias], 1)), hidden_bias

    def _sum(self, a: Any, b: Any) -> Any:
        return a + b if isinstance(a, np.ndarray) else self.emit(op.add(a, b))

    def _input_product(self, weights: Any, bias: Any, count: int) -> Any:
        """The product of the input for all steps and directions."""
        first, second, width = self.node.shape(0)
        x = self._cast(self.node.tensor(0), self.inner)
        rows = self.emit(op.reshape(x, relax.ShapeExpr([first * second, width])))
        columns = count * self.columns
        matrix = self._reshaped(self._transposed(weights, (2, 0, 1)), [width, columns])
        product = self.emit(op.matmul(rows, self._const(matrix)))
        if bias is not None:
            product = self.emit(op.add(product, self._const(self._reshaped(bias, [columns]))))
        return self.emit(op.reshape(product, relax.ShapeExpr([first, second, columns])))

    def _lengths(self) -> Any:
        """The steps of each sequence, int32 [batch]; None if all sequences have all steps."""
        if not self.node.has(4):
            return None
        length = self.node.shape(0)[int(self.batches_first)]
        constant = self.node.constant(4)
        if constant is not None and isinstance(length, int) and (constant == length).all():
            return None
        return self._cast(self.node.tensor(4), "int32")

    def _initial_state(self, index: int, sides: slice) -> Any:
        """Initial states of the directions `sides`; None for zeros."""
        if not self.node.has(index):
            return None
        all_directions = self._cast(self.node.tensor(index), self.inner)
        axis = int(self.batches_first)
        if int(all_directions.ty.shape[axis]) == sides.stop - sides.start:
            return all_directions
        return self.emit(op.strided_slice(all_directions, [axis], [sides.start], [sides.stop]))


CONVERTERS: dict[str, Callable[[Node], Any]] = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
