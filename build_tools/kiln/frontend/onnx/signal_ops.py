"""Converters of ONNX's Fourier transforms, as products with matrices of sines and cosines.

Converters have the interface of kiln.frontend.onnx.ops. All sizes of a DFT may be dynamic: for a dynamic
length the run computes the matrix. The frame length of an STFT must be known before the model runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from kiln.config.sizes import ceil_div
from kiln.extents import Extent, shape_of
from kiln.frontend.counted import movement
from kiln.frontend.counted.movement import element
from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.fourier import fit, matrix, transform
from kiln.frontend.onnx.node import Node, as_tensor, prims, shape_expr
from kiln.frontend.onnx.value import from_items, not_known
from kiln.frontend.symbols import int64

op = relax.op
_MOST_PARTS = 16  # slices that a window is joined of


def _fixed_number(node: Node, index: int) -> int | None:
    """Input `index` as a number; None if it is omitted. Raises ValueError if it is not known."""
    if not node.has(index):
        return None
    value = node.constant(index)
    if value is None:
        raise not_known(node.inputs[index])
    return int(value.item())


def _matrix_of_run(
    node: Node, elements: Extent, numbers: int, length: Extent, frequencies: Extent, inverse: bool
) -> Any:
    """The matrix of kiln.frontend.fourier for dynamic sizes, computed by the run.

    The angles of k n / length are reduced to one turn as integers, so that they stay exact.
    """
    emit, wide = node.builder.emit, str(node.tensor(0).ty.dtype) == "float64"
    dtype = "float64" if wide else "float32"
    rows = emit(op.reshape(op.arange(*prims([0, elements, 1]), "int64"), shape_expr([elements, 1])))
    columns = emit(op.reshape(op.arange(*prims([0, frequencies, 1]), "int64"), shape_expr([1, frequencies])))
    size = as_tensor(from_items([length]))
    reduced = emit(op.floor_mod(emit(op.multiply(rows, columns)), size))
    angles = emit(op.divide(emit(op.astype(reduced, dtype)), emit(op.astype(size, dtype))))
    angles = emit(op.multiply(angles, relax.const(2 * np.pi, dtype)))
    cosine, sine = emit(op.cos(angles)), emit(op.sin(angles))
    sine = sine if inverse else emit(op.negative(sine))
    if inverse:
        scale = emit(op.astype(size, dtype))
        cosine, sine = emit(op.divide(cosine, scale)), emit(op.divide(sine, scale))
    if not node.symbols.holds(elements <= length):  # elements beyond the length are left out
        inside = emit(op.astype(emit(op.less(rows, size)), dtype))
        cosine, sine = emit(op.multiply(cosine, inside)), emit(op.multiply(sine, inside))
    flat = emit(op.stack([cosine, sine], axis=2))
    if numbers == 2:
        second = emit(op.stack([emit(op.negative(sine)), cosine], axis=2))
        flat = emit(op.stack([flat, second], axis=1))
    symbols = node.symbols
    shape = shape_expr([symbols.product([elements, numbers]), symbols.product([frequencies, 2])])
    return emit(op.astype(emit(op.reshape(flat, shape)), str(node.tensor(0).ty.dtype)))


def _transform(node: Node, x: Any, length: Extent, frequencies: Extent, inverse: bool) -> Any:
    """The transform over the axis before the last of `x` [..., elements, 1 or 2]: [..., kept, 2]."""
    emit = node.builder.emit
    *outer, elements, numbers = shape_of(x)
    if isinstance(elements, int) and isinstance(length, int) and isinstance(frequencies, int):
        return transform(
            emit, x, list(shape_expr(outer).values), (elements, numbers), length, frequencies, inverse
        )
    waves = _matrix_of_run(node, elements, numbers, length, frequencies, inverse)
    flat = emit(op.reshape(x, shape_expr([*outer, node.symbols.product([elements, numbers])])))
    product = emit(op.matmul(flat, waves))
    return emit(op.reshape(product, shape_expr([*outer, frequencies, 2])))


def dft(node: Node) -> Any:
    """DFT along an axis, of real or complex numbers."""
    emit, x, shape = node.builder.emit, node.tensor(0), node.shape(0)
    axis_input = _fixed_number(node, 2)
    axis = node.attributes.get("axis", 1 if node.opset < 20 else -2) if axis_input is None else axis_input
    axis = int(axis) % len(shape)
    if shape[-1] not in (1, 2):
        raise ValueError(f"a tensor of {shape}: its last size must be 1 (real) or 2 (complex)")
    one_sided, inverse = (bool(node.attributes.get(key, 0)) for key in ("onesided", "inverse"))
    given = _given_length(node, axis, one_sided and not inverse) if node.has(1) else None
    length = shape[axis] if given is None else given
    order = [*(i for i in range(len(shape) - 1) if i != axis), axis, len(shape) - 1]
    moved = emit(op.permute_dims(x, order))
    back = [int(i) for i in np.argsort(order)]
    if one_sided and inverse:
        return op.permute_dims(_inverse_real(node, moved, given), back)
    frequencies = node.symbols.simplify(length // 2 + 1) if one_sided else length
    transform = _transform(node, moved, length, frequencies, inverse)
    return op.permute_dims(transform, back)


def _given_length(node: Node, axis: int, halved: bool) -> Extent:
    """The length of the transform, input 1 of a DFT, which the run counts where only it knows the length.

    halved: whether the result has half of the frequencies, length // 2 + 1 along `axis`.
    """
    known = node.elements(1)
    if known is not None:
        return known[0]

    def positive(numbers: Any) -> Any:
        length = element(numbers, 0)
        return tirx.Select(length >= int64(1), length, int64(-1))

    count = movement.number(node.builder, [node.tensor(1)], positive, "dft_length")
    name = f"{node.outputs[0]}[{axis}]"
    most = node.symbols.most_counted(name, None)
    greatest = node.symbols.simplify(2 * most - 1) if halved else most
    return counted_size(node.builder, node.symbols, name, count, greatest)


def _inverse_real(node: Node, x: Any, length: Extent | None) -> Any:
    """The real numbers [..., length, 1] whose transform begins with `x` [..., frequencies, 2].

    length: of the result; None for the even length that follows from the number of frequencies.
    """
    *outer, frequencies, numbers = shape_of(x)
    if numbers != 2:
        raise ValueError(
            f"attributes 'onesided' and 'inverse' are both 1 for numbers of {numbers} parts: allowed are 2"
        )
    if length is None:
        length = node.symbols.simplify(2 * (frequencies - 1))
    is_counted = node.has(1) and node.elements(1) is None  # the run has seen that it is positive
    if not is_counted and not node.symbols.holds(length >= 1):
        raise ValueError(
            f"attributes 'onesided' and 'inverse' are both 1 for a result of {length} numbers: "
            "allowed is 1 or more; raise the min of its dimensions in 'dims'"
        )
    if not isinstance(frequencies, int) or not isinstance(length, int):
        return _inverse_real_of_run(node, x, length)
    emit, dtype, used = node.builder.emit, str(x.ty.dtype), min(frequencies, length // 2 + 1)
    waves = matrix(used, 2, length, length, True).reshape(used, 2, length, 2)[..., 0]
    # Each frequency counts for its mirror image, too, except the first one and that of half the length.
    waves *= np.array([1 if k == 0 or 2 * k == length else 2 for k in range(used)]).reshape(used, 1, 1)
    padded = np.zeros((frequencies, 2, length))
    padded[:used] = waves
    flat = emit(op.reshape(x, shape_expr([*outer, frequencies * 2])))
    product = emit(op.matmul(flat, relax.const(padded.reshape(frequencies * 2, length).astype(dtype), dtype)))
    return emit(op.reshape(product, shape_expr([*outer, length, 1])))


def _inverse_real_of_run(node: Node, x: Any, length: Extent) -> Any:
    """`_inverse_real` of dynamic sizes: the real parts of the inverse transform, by a matrix of the run.

    Each frequency counts for its mirror image, too, except the first one and that of half the length.
    """
    emit, dtype = node.builder.emit, str(x.ty.dtype)
    *outer, frequencies, _ = shape_of(x)
    number = emit(op.arange(*prims([0, frequencies, 1]), "int64"))
    double = emit(op.multiply(number, relax.const(2, "int64")))
    size, zero = as_tensor(from_items([length])), relax.const(0, "int64")
    inner = emit(op.logical_and(emit(op.greater(number, zero)), emit(op.less(double, size))))
    used = emit(op.less_equal(double, size))
    times = emit(op.add(emit(op.astype(used, dtype)), emit(op.astype(inner, dtype))))
    weighed = emit(op.multiply(x, emit(op.reshape(times, shape_expr([frequencies, 1])))))
    transform = _transform(node, weighed, length, length, True)
    return emit(op.take(transform, relax.const(np.array([0]), "int64"), axis=len(outer) + 1))


def stft(node: Node) -> Any:
    """STFT: the transforms [batch, frames, frequencies, 2] of windows of the signal."""
    emit, x, (batch, samples, numbers) = node.builder.emit, node.tensor(0), node.shape(0)
    step = _fixed_number(node, 1)
    length = _fixed_number(node, 3)
    if length is None and node.has(2):
        size = node.shape(2)[0]
        length = size if isinstance(size, int) else None
    if length is None or step is None:
        raise ValueError("its frame length or its step is not known before the model runs")
    one_sided = bool(node.attributes.get("onesided", 1)) and numbers == 1
    frequencies = length // 2 + 1 if one_sided else length
    if not isinstance(samples, int) or not isinstance(batch, int):
        return _stft_by_convolution(node, length, step, frequencies)
    frames = (samples - length) // step + 1
    windows = _windows(emit, x, (batch, frames, length, numbers), step)
    if node.has(2):
        windows = emit(op.multiply(windows, emit(op.reshape(node.tensor(2), shape_expr([length, 1])))))
    return _transform(node, windows, length, frequencies, False)


def _windows(emit: Callable[[Any], Any], x: Any, sizes: tuple[int, int, int, int], step: int) -> Any:
    """The windows [batch, frames, length, parts] of `x` [batch, samples, parts], `step` samples apart.

    Window f begins with block f of `step` samples. A table of all positions would be as large as the windows.
    """
    batch, frames, length, numbers = sizes
    parts = ceil_div(length, step)
    if parts > _MOST_PARTS:
        indices = np.arange(frames)[:, None] * step + np.arange(length)
        chosen = emit(op.take(x, relax.const(indices.reshape(-1), "int64"), 1))
        return emit(op.reshape(chosen, list(sizes)))
    blocks, samples = frames + parts - 1, int(x.ty.shape[1])
    fitted = fit(emit, x, 1, samples, blocks * step)
    rows = emit(op.reshape(fitted, [batch, blocks, step, numbers]))
    columns = []
    for part in range(parts):
        width = min(step, length - part * step)
        columns.append(emit(op.strided_slice(rows, [1, 2], [part, 0], [part + frames, width])))
    return emit(op.concat(columns, axis=2))


def _stft_by_convolution(node: Node, length: int, step: int, frequencies: int) -> Any:
    """An STFT of dynamic sizes, as a convolution with the windowed sines and cosines."""
    emit, x, (batch, samples, numbers) = node.builder.emit, node.tensor(0), node.shape(0)
    if not node.symbols.holds(samples >= length):
        raise ValueError(
            f"its signal of {samples} samples is shorter than a frame of {length} for some sizes; raise "
            "their min in 'dims'"
        )
    dtype = str(x.ty.dtype)
    pairs = matrix(length, numbers, length, frequencies, False).reshape(length, numbers, frequencies * 2)
    waves = np.ascontiguousarray(pairs.transpose(2, 1, 0).astype(dtype))
    weights = relax.const(waves, dtype)
    if node.has(2):
        weights = emit(op.multiply(weights, emit(op.reshape(node.tensor(2), shape_expr([1, 1, length])))))
    signal = emit(op.permute_dims(x, [0, 2, 1]))
    transforms = emit(op.nn.conv1d(signal, weights, strides=step))
    frames = node.symbols.simplify((samples - length) // step + 1)
    pairs = emit(op.reshape(transforms, shape_expr([batch, frequencies, 2, frames])))
    return op.permute_dims(pairs, [0, 3, 1, 2])


CONVERTERS: dict[str, Callable[[Node], Any]] = {"DFT": dft, "STFT": stft}
