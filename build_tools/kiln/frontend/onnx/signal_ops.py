"""Converters of ONNX's Fourier transforms, as products with a matrix of sines and cosines.

Converters have the interface of kiln.frontend.onnx.ops. The length of a transform must be known before the
model runs; the signal of an STFT and its batch may have any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from kiln.frontend.onnx.node import Node, shape_expr

op = relax.op


def _number(node: Node, index: int) -> int | None:
    """Input `index` as a number; None if it is omitted. Raises ValueError if it is not known."""
    if not node.has(index):
        return None
    value = node.constant(index)
    if value is None:
        raise ValueError(f"its input '{node.inputs[index]}' is not known before the model runs")
    return int(value.item())


def _matrix(given: int, parts: int, length: int, kept: int, inverse: bool) -> npt.NDArray[np.float64]:
    """M [given * parts, kept * 2], with (y as pairs) = (x as `parts` numbers an element) M.

    `length`: of the transform; elements of x from `length` on are ignored. `kept`: frequencies of the result.
    """
    turns = np.outer(np.arange(given), np.arange(kept)) % length / length * 2 * np.pi
    sign, scale = (1.0, 1.0 / length) if inverse else (-1.0, 1.0)
    cosine, sine = np.cos(turns) * scale, sign * np.sin(turns) * scale
    cosine[length:], sine[length:] = 0, 0
    rows = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts]
    return np.stack(rows, 1).reshape(given * parts, kept * 2)


def _transformed(node: Node, x: Any, length: int, kept: int, inverse: bool) -> Any:
    """The transform over the axis before the last of `x` [..., elements, 1 or 2]: [..., kept, 2]."""
    emit, dtype = node.builder.emit, str(x.ty.dtype)
    *outer, given, parts = (int(size) for size in x.ty.shape)
    matrix = _matrix(given, parts, length, kept, inverse).astype(dtype)
    flat = emit(op.reshape(x, shape_expr([*outer, given * parts])))
    product = emit(op.matmul(flat, relax.const(matrix, dtype)))
    return emit(op.reshape(product, shape_expr([*outer, kept, 2])))


def dft(node: Node) -> Any:
    """DFT along an axis, of real or complex numbers."""
    emit, x, shape = node.builder.emit, node.tensor(0), node.shape(0)
    if not all(isinstance(size, int) for size in shape):
        raise ValueError(f"a tensor of {shape}: its sizes must be known before the model runs")
    given = _number(node, 2)
    axis = node.attributes.get("axis", 1 if node.opset < 20 else -2) if given is None else given
    axis = int(axis) % len(shape)
    length = _number(node, 1) or int(shape[axis])
    one_sided, inverse = (bool(node.attributes.get(key, 0)) for key in ("onesided", "inverse"))
    if one_sided and inverse:
        raise ValueError("attributes 'onesided' and 'inverse' are both 1, allowed: one of them")
    order = [*(i for i in range(len(shape) - 1) if i != axis), axis, len(shape) - 1]
    moved = emit(op.permute_dims(x, order))
    found = _transformed(node, moved, length, length // 2 + 1 if one_sided else length, inverse)
    return op.permute_dims(found, [int(i) for i in np.argsort(order)])


def stft(node: Node) -> Any:
    """STFT: windows of the signal, each transformed: [batch, frames, frequencies, 2]."""
    emit, x, (batch, samples, parts) = node.builder.emit, node.tensor(0), node.shape(0)
    step = _number(node, 1)
    length = _number(node, 3)
    if length is None and node.has(2):
        size = node.shape(2)[0]
        length = size if isinstance(size, int) else None
    if length is None or step is None:
        raise ValueError("its frame length or its step is not known before the model runs")
    one_sided = bool(node.attributes.get("onesided", 1)) and parts == 1
    kept = length // 2 + 1 if one_sided else length
    if not isinstance(samples, int) or not isinstance(batch, int):
        return _convolved(node, length, step, kept)
    frames = (samples - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)
    cut = emit(op.take(x, relax.const(places.reshape(-1), "int64"), 1))
    cut = emit(op.reshape(cut, shape_expr([batch, frames, length, parts])))
    if node.has(2):
        cut = emit(op.multiply(cut, emit(op.reshape(node.tensor(2), shape_expr([length, 1])))))
    return _transformed(node, cut, length, kept, False)


def _convolved(node: Node, length: int, step: int, kept: int) -> Any:
    """An STFT of open sizes, as a convolution with the windowed sines and cosines."""
    emit, x, (batch, samples, parts) = node.builder.emit, node.tensor(0), node.shape(0)
    window = node.constant(2) if node.has(2) else np.ones(length)
    if window is None:
        raise ValueError(f"its window '{node.inputs[2]}' is not known before the model runs")
    if not node.symbols.holds(samples >= length):
        raise ValueError(
            f"its signal of {samples} samples is shorter than a frame of {length} for some sizes; raise "
            "their min in 'dims'"
        )
    dtype = str(x.ty.dtype)
    matrix = _matrix(length, parts, length, kept, False).reshape(length, parts, kept * 2)
    weights = (matrix * window.reshape(length, 1, 1)).transpose(2, 1, 0).astype(dtype)
    signal = emit(op.permute_dims(x, [0, 2, 1]))
    found = emit(op.nn.conv1d(signal, relax.const(np.ascontiguousarray(weights), dtype), strides=step))
    frames = node.symbols.simplify((samples - length) // step + 1)
    pairs = emit(op.reshape(found, shape_expr([batch, kept, 2, frames])))
    return op.permute_dims(pairs, [0, 3, 1, 2])


CONVERTERS: dict[str, Callable[[Node], Any]] = {"DFT": dft, "STFT": stft}
