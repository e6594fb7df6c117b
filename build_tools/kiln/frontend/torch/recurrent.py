"""Recurrent layers: an export for any number of steps, and those that PyTorch's exporter to ONNX lacks.

torch.export keeps a layer of torch.nn.LSTM, GRU or RNN as one operator, but finds its shapes by PyTorch's
own decomposition, a loop over the steps: an open number of steps becomes the example's. `any_length` gives
the shapes without the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from kiln.frontend.torch.present import aten as own_operators

_GATES = 4  # of an LSTM


def recurrent() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.lstm.input: lstm,
        aten.gru.input: gru,
        aten.rnn_tanh.input: lambda *args: rnn("Tanh", *args),
        aten.rnn_relu.input: lambda *args: rnn("Relu", *args),
    }


@contextlib.contextmanager
def any_length() -> Iterator[None]:
    """Inside the block, recurrent layers are traced without a loop over their steps."""
    import torch

    aten = own_operators()
    layers = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    table = torch._decomp.decomposition_table  # the trace of the decompositions finds shapes by these
    kept = [dict(layer.py_kernels) for layer in layers]
    own = {layer: table[layer] for layer in layers if layer in table}
    try:
        for layer, kernels in zip(layers, kept, strict=True):
            for key, kernel in kernels.items():
                layer.py_kernels[key] = _shaped(torch, kernel)
            layer._dispatch_cache.clear()
        table.update({layer: _shaped(torch, computed) for layer, computed in own.items()})
        yield
    finally:
        table.update(own)
        for layer, kernels in zip(layers, kept, strict=True):
            layer.py_kernels.update(kernels)
            layer._dispatch_cache.clear()


def _shaped(torch: ModuleType, computed: Any) -> Any:
    """A kernel that only allocates results of the right shapes inside a trace, and else computes them."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    def kernel(x: Any, hx: Any, *args: Any, **kwargs: Any) -> Any:
        states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        has_values = type(x) in (torch.Tensor, torch.nn.Parameter)  # a trace has tensors of its own classes
        if has_values or get_proxy_mode() is not None:  # which records the operators of the kernel
            return computed(x, hx, *args, **kwargs)
        bidirectional = args[5] if len(args) > 5 else kwargs["bidirectional"]
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        return (x.new_empty((*x.shape[:-1], width)), *(state.new_empty(state.shape) for state in states))

    return kernel


def lstm(
    x: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any, Any]:
    """aten::lstm.input, traced by PyTorch's exporter.

    A layer with projections (`proj_size`), which ONNX has not, is written step by step. Raises ValueError for
    one whose number of steps is dynamic, and for dropout in training.
    """
    _refuse_dropout("LSTM", num_layers, dropout, train)
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_lstm

    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)  # weights of one direction of a layer
    if each == (_GATES if has_biases else _GATES - 2):
        return aten_lstm(  # type: ignore[no-any-return]
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    axis = 1 if batch_first else 0
    steps = x.shape[axis]
    if not isinstance(steps, int):
        raise ValueError("an LSTM with proj_size and a dynamic number of steps; fix the length")
    sequence = [_at(x, step, axis) for step in range(steps)]
    last_h, last_c = [], []
    for layer in range(num_layers):
        outputs_of_directions = []
        for direction in range(directions):
            number = layer * directions + direction
            own = params[number * each : (number + 1) * each]
            h, c = (_at(state, number, 0) for state in hx)
            outputs = []
            for step in reversed(sequence) if direction else sequence:
                h, c = _projected(step, h, c, own, has_biases)
                outputs.append(h)
            outputs_of_directions.append(outputs[::-1] if direction else outputs)
            last_h.append(h)
            last_c.append(c)
        sequence = [
            op.Concat(*parts, axis=-1) if directions > 1 else parts[0]
            for parts in zip(*outputs_of_directions, strict=True)
        ]
    return _stacked(sequence, axis), _stacked(last_h, 0), _stacked(last_c, 0)


def gru(
    x: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """aten::gru.input, as the exporter converts it. Raises ValueError for dropout in training."""
    from onnxscript.function_libs.torch_lib.ops.core import aten_gru

    _refuse_dropout("GRU", num_layers, dropout, train)
    return aten_gru(  # type: ignore[no-any-return]
        x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
    )


def _refuse_dropout(what: str, layers: int, dropout: float, train: bool) -> None:
    """Raise ValueError for random numbers between the layers, which the exporter leaves out."""
    if train and dropout and layers > 1:
        raise ValueError(
            f"{what} in training with dropout={dropout} draws random numbers; call eval() of the module"
        )


def _projected(x: Any, h: Any, c: Any, params: Any, has_biases: bool) -> tuple[Any, Any]:
    """A step of an LSTM whose state h is its hidden values times a matrix."""
    from onnxscript import opset18 as op

    def product(of: Any, weight: Any) -> Any:
        return op.MatMul(of, op.Transpose(weight, perm=[1, 0]))

    gates = op.Add(product(x, params[0]), product(h, params[1]))
    if has_biases:
        gates = op.Add(op.Add(gates, params[2]), params[3])
    i, f, g, o = op.Split(gates, axis=-1, num_outputs=_GATES)
    c = op.Add(op.Mul(op.Sigmoid(f), c), op.Mul(op.Sigmoid(i), op.Tanh(g)))
    return product(op.Mul(op.Sigmoid(o), op.Tanh(c)), params[-1]), c


def rnn(
    activation: str,
    x: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """aten::rnn_tanh.input and aten::rnn_relu.input: layers of ONNX's RNN.

    Raises ValueError for dropout in training.
    """
    from onnxscript import opset18 as op

    _refuse_dropout("RNN", num_layers, dropout, train)

    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    if batch_first:
        x = op.Transpose(x, perm=[1, 0, 2])
    states = []
    for layer in range(num_layers):
        first = layer * directions
        own = [params[each * place : each * (place + 1)] for place in range(first, first + directions)]
        w, r = (_stacked([weights[kind] for weights in own], 0) for kind in (0, 1))
        biases = [_stacked([op.Concat(*weights[2:], axis=0) for weights in own], 0)] if has_biases else []
        h = op.Slice(hx, op.Constant(value_ints=[first]), op.Constant(value_ints=[first + directions]))
        y, h = op.RNN(
            x,
            w,
            r,
            *biases,
            initial_h=h,
            hidden_size=hx.shape[2],
            direction="bidirectional" if bidirectional else "forward",
            activations=[activation] * directions,
        )
        x = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        states.append(h)
    states = states[0] if num_layers == 1 else op.Concat(*states, axis=0)
    return op.Transpose(x, perm=[1, 0, 2]) if batch_first else x, states


def _at(x: Any, place: int, axis: int) -> Any:
    from onnxscript import opset18 as op

    return op.Gather(x, op.Constant(value_int=place), axis=axis)


def _stacked(parts: list[Any], axis: int) -> Any:
    from onnxscript import opset18 as op

    parts = [op.Unsqueeze(part, op.Constant(value_ints=[axis])) for part in parts]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)
