"""Converters of TFLite's recurrent operators: RNN, SVDF and the layers of them over sequences.

Their states are inputs and outputs of the graph (state_tensors.py). Weights of 8 bits of float operators are
used as real numbers. TVM 0.27 keeps no state, and computes SVDF with the state of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tflite
from tvm import relax

from kiln.frontend.recurrent import Recurrent
from kiln.frontend.tflite.integer_lstm import IntegerLstmLayer
from kiln.frontend.tflite.integer_svdf import integer_svdf
from kiln.frontend.tflite.lstm import LstmLayer, basic_lstm
from kiln.frontend.tflite.operands import TfliteOperands
from kiln.frontend.tflite.sequences import ACTIVATIONS, activated, run_steps, swapped

op = relax.op


def _check_float(node: TfliteOperands) -> None:
    if not node.dtype(0).startswith("float"):
        raise ValueError(f"of {node.dtype(0)}, allowed: float32 with weights of 32 or 8 bits")


class _RnnLayer:
    """An RNN over a sequence: weights, recurrent weights, bias and state from input `base` on.

    aux: input and weights of a second sequence.
    """

    def __init__(
        self, node: TfliteOperands, base: int, code: int, aux: tuple[int, int] | None = None
    ) -> None:
        self._node, self._base, self._code, self._aux = node, base, code, aux
        self._units = node.shape(base)[0]

    def _times(self, x: Any, weights: int) -> Any:
        """[T, B, I] times the weights of an input: [T, B, H]."""
        node = self._node
        steps, batch, width = x.ty.shape
        rows = node.bind(op.reshape(x, [steps * batch, width]))
        products = node.bind(op.matmul(rows, node.bind(op.permute_dims(node.real(weights)))))
        return node.bind(op.reshape(products, [steps, batch, self._units]))

    def run(self, x: Any, second: Any = None, backwards: bool = False) -> tuple[Any, Any]:
        """From a sequence [T, B, I] to the results [T, B, H] and the next state."""
        node, base = self._node, self._base
        sequence = self._times(x, base)
        if self._aux is not None:
            sequence = node.bind(op.add(sequence, self._times(second, self._aux[1])))
        if node.has(base + 2):
            sequence = node.bind(op.add(sequence, node.real(base + 2)))
        steps, batch, _ = (int(size) for size in sequence.ty.shape)
        recurrent_weights = node.bind(op.permute_dims(node.real(base + 1)))
        state = node.bind(op.reshape(node.raw(base + 3), [batch, self._units]))
        if self._code in ACTIVATIONS and steps > 1:
            layer = Recurrent(
                kind="RNN", hidden=self._units, direction="reverse" if backwards else "forward",
                activations=[ACTIVATIONS[self._code]], operands=["given", "weights", "h"],
            )  # fmt: skip
            layer_result = node.bind(
                layer.call(
                    {
                        "given": sequence,
                        "weights": node.bind(op.expand_dims(recurrent_weights, 0)),
                        "h": node.bind(op.expand_dims(state, 0)),
                    }
                )
            )
            result = node.bind(op.squeeze(node.bind(relax.TupleGetItem(layer_result, 0)), [1]))
            last = node.bind(relax.TupleGetItem(layer_result, 1))
        else:

            def step(row: Any, now: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
                sums = node.bind(op.add(row, node.bind(op.matmul(now[0], recurrent_weights))))
                sums = activated(node, sums, self._code)
                return sums, [sums]

            result, [last] = run_steps(node, sequence, [state], step, backwards)
        return result, node.bind(op.reshape(last, node.shape(base + 3)))


def rnn(node: TfliteOperands) -> Any:
    """RNN: one step; the operands are as in UNIDIRECTIONAL_SEQUENCE_RNN."""
    _check_float(node)
    x = node.bind(op.expand_dims(node.raw(0), 0))
    result, state = _RnnLayer(node, 1, node.options("RNNOptions").FusedActivationFunction()).run(x)
    return relax.Tuple([node.bind(op.squeeze(result, [0])), state])


def unidirectional_rnn(node: TfliteOperands) -> Any:
    """UNIDIRECTIONAL_SEQUENCE_RNN."""
    _check_float(node)
    options = node.options("SequenceRNNOptions")
    turned = not options.TimeMajor()
    layer = _RnnLayer(node, 1, options.FusedActivationFunction())
    result, state = layer.run(swapped(node, node.raw(0), turned))
    return relax.Tuple([swapped(node, result, turned), state])


def bidirectional_rnn(node: TfliteOperands) -> Any:
    """BIDIRECTIONAL_SEQUENCE_RNN, with a second input as LiteRT reads it."""
    _check_float(node)
    options = node.options("BidirectionalSequenceRNNOptions")
    turned, code = not options.TimeMajor(), options.FusedActivationFunction()
    x = swapped(node, node.raw(0), turned)
    second = swapped(node, node.raw(9), turned) if node.has(9) else None
    weighted = second is not None and node.has(10)
    results, states = [], []
    for side, base in enumerate((1, 5)):
        layer = _RnnLayer(node, base, code, (9, 10 + side) if weighted else None)
        source = second if side and second is not None and not weighted else x
        result, state = layer.run(source, second, backwards=bool(side))
        results.append(swapped(node, result, turned))
        states.append(state)
    if options.MergeOutputs():
        results = [node.bind(op.concat(results, -1))]
    return relax.Tuple([*results, *states])


def svdf(node: TfliteOperands) -> Any:
    """SVDF of floats, or of int8 with a state of int16 or int8."""
    options = node.options("SVDFOptions")
    rank, (filters, memory) = int(options.Rank()), node.shape(2)
    if node.grid(4) is not None:
        return integer_svdf(node, rank)
    batch = node.shape(0)[0]
    x, weights = node.real(0), node.bind(op.permute_dims(node.real(1)))
    features = node.bind(op.reshape(node.bind(op.matmul(x, weights)), [batch, filters, 1]))
    state = node.bind(op.reshape(node.real(4), [batch, filters, memory]))
    columns = [features]
    if memory > 1:
        columns.insert(0, node.bind(op.strided_slice(state, [2], [1], [memory])))
    state = node.bind(op.concat(columns, 2))
    times = node.bind(op.reshape(node.real(2), [1, filters, memory]))
    sums = node.bind(op.sum(node.bind(op.multiply(state, times)), -1))
    sums = node.bind(op.sum(node.bind(op.reshape(sums, [batch, filters // rank, rank])), -1))
    if node.has(3):
        sums = node.bind(op.add(sums, node.real(3)))
    sums = activated(node, sums, options.FusedActivationFunction())
    return relax.Tuple([node.bind(sums), node.bind(op.reshape(state, node.shape(4)))])


def lstm(node: TfliteOperands) -> Any:
    """LSTM: one step, of the full kernel with 20 or 24 inputs or the basic one with 5."""
    options = node.options("LSTMOptions")
    if len(node.inputs) == 5 or options.KernelType() == tflite.LSTMKernelType.BASIC:
        return basic_lstm(node, options.FusedActivationFunction())
    x = node.bind(op.expand_dims(node.raw(0), 0))
    if node.dtype(0).startswith("float"):
        result, states = LstmLayer(node, 1, (18, 19), options).run(x)
    else:
        result, states = IntegerLstmLayer(node, (18, 19), options).run(x, True)
    return relax.Tuple([node.bind(op.squeeze(result, [0])), *states])


def unidirectional_lstm(node: TfliteOperands) -> Any:
    """UNIDIRECTIONAL_SEQUENCE_LSTM."""
    options = node.options("UnidirectionalSequenceLSTMOptions")
    turned = not options.TimeMajor()
    if hasattr(options, "DiagonalRecurrentTensors") and options.DiagonalRecurrentTensors():
        raise ValueError("its recurrent weights are diagonal matrices: convert the model without them")
    if not node.dtype(0).startswith("float"):
        result, states = IntegerLstmLayer(node, (18, 19), options).run(node.raw(0), not turned)
        return relax.Tuple([result, *states])
    result, states = LstmLayer(node, 1, (18, 19), options).run(swapped(node, node.raw(0), turned))
    return relax.Tuple([swapped(node, result, turned), *states])


def bidirectional_lstm(node: TfliteOperands) -> Any:
    """BIDIRECTIONAL_SEQUENCE_LSTM, with a second input as LiteRT reads it."""
    _check_float(node)
    options = node.options("BidirectionalSequenceLSTMOptions")
    turned = not options.TimeMajor()
    x = swapped(node, node.raw(0), turned)
    second = swapped(node, node.raw(39), turned) if node.has(39) else None
    weighted = second is not None and node.has(41)
    results, states = [], []
    for side, (base, side_inputs, more) in enumerate(((1, (35, 36), 40), (18, (37, 38), 44))):
        layer = LstmLayer(node, base, side_inputs, options, aux=more if weighted else None)
        source = second if side and second is not None and not weighted else x
        result, after = layer.run(source, second, backwards=bool(side))
        results.append(swapped(node, result, turned))
        states += after
    if options.MergeOutputs():
        results = [node.bind(op.concat(results, -1))]
    return relax.Tuple([*results, *states])


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": bidirectional_rnn,
    "LSTM": lstm,
    "RNN": rnn,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": unidirectional_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": unidirectional_rnn,
}
