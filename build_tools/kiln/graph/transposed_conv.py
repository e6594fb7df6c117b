"""Transposed convolution as a convolution: one small kernel for each phase of the stride.

With stride s, output o + p = q s + r depends on inputs q, q - 1, … through taps r, r + s, … of the kernel.
All s x s phases (r_h, r_w) have the same inputs, so one convolution with s * s times as many channels
computes them together, and a transpose interleaves them (Shi et al., "Is the deconvolution layer the same as
a convolutional layer?", 2016). No multiplications by inserted zeros are left, but for those between the taps
of a dilated kernel along an axis with a stride. A 1-D convolution is one of images with a single line; a 3-D
one has s * s * s phases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, sym

from kiln.config.sizes import ceil_div
from kiln.extents import extent, shape_of
from kiln.graph.bindings import Array, CallRewriter, const, constant, integers
from kiln.graph.conv3d import Window, conv2d, conv3d

# Emits a convolution of data of NHWC, or NDHWC, with a kernel.
Convolve = Callable[[CallRewriter, Any, Array, Window], Any]


def _dilated(weights: Array, dilation: list[int]) -> Array:
    """Weights (I, O, *K) with zeros between the taps."""
    for axis, distance in enumerate(dilation, 2):
        shape = list(weights.shape)
        shape[axis] = (shape[axis] - 1) * distance + 1
        wider = np.zeros(shape, weights.dtype)
        wider[(slice(None),) * axis + (slice(None, None, distance),)] = weights
        weights = wider
    return weights


def _phases(weights: Array, strides: list[int], groups: int) -> tuple[Array, list[int]]:
    """Weights (I, O, *K) as a kernel (*J, I / groups, groups prod(s) O) of all phases, and J.

    O: channels of a group's result; J = ceil(K / s) along each axis. The taps are reversed.
    """
    channels_in, channels_out, *kernel = weights.shape
    taps = [ceil_div(size, stride) for size, stride in zip(kernel, strides, strict=True)]
    wider = [(0, count * stride - size) for count, stride, size in zip(taps, strides, kernel, strict=True)]
    channels_of_group, rank = channels_in // groups, len(taps)
    pairs = [size for pair in zip(taps, strides, strict=True) for size in pair]
    split = np.pad(weights, [(0, 0), (0, 0), *wider]).reshape(groups, channels_of_group, channels_out, *pairs)
    of_taps, of_phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    ordered = np.flip(split.transpose(*of_taps, 1, 0, *of_phases, 2), tuple(range(rank)))
    return ordered.reshape(*taps, channels_of_group, -1), taps


def _known(size: Any) -> Any:
    return size if isinstance(size, int) else extent(sym.Analyzer().simplify(size))


def window_of(call: relax.Call) -> TransposedWindow:
    """The window of a call whose result has the spatial axes last; a line is an image of height 1."""
    attrs, out = call.attrs, shape_of(call)[2:]
    one, zero = ([1], [0]) if len(out) == 1 else ([], [])
    return TransposedWindow(
        strides=[*one, *integers(attrs.strides)],
        dilation=[*one, *integers(attrs.dilation)],
        padding=[*zero, *integers(attrs.padding)[: len(out)]],
        out=[*one, *out],
    )


def conv2d_transpose(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Rewrite one nn.conv2d_transpose of layout NCHW with constant weights; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW" or weights is None:
        return None
    data = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 1]))
    result = interleaved(rewriter, call, data, weights, window_of(call))
    return None if result is None else relax.op.permute_dims(result, [0, 3, 1, 2])


def conv1d_transpose(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Rewrite one nn.conv1d_transpose of layout NCW with constant weights; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "IOW" or weights is None:
        return None
    batch, channels, width = shape_of(call.args[0])
    moved = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 1]))
    data = rewriter.emit(relax.op.reshape(moved, [batch, 1, width, channels]))
    _, channels, width = shape_of(call)
    result = interleaved(rewriter, call, data, weights[:, :, None], window_of(call))
    if result is None:
        return None
    line = rewriter.emit(relax.op.reshape(result, [batch, width, channels]))
    return relax.op.permute_dims(line, [0, 2, 1])


def conv3d_transpose(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Rewrite one nn.conv3d_transpose of layout NCDHW with constant weights; None for others."""
    attrs, weights = call.attrs, constant(call.args[1])
    if str(attrs.data_layout) != "NCDHW" or str(attrs.kernel_layout) != "IODHW" or weights is None:
        return None
    data = rewriter.emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 4, 1]))
    result = interleaved(rewriter, call, data, weights, window_of(call))
    return None if result is None else relax.op.permute_dims(result, [0, 4, 1, 2, 3])


# Most phases that are convolutions of their own, and the least share of zeros that they save.
_MOST_APART, _LEAST_SAVED = 4, 0.2
# Fewest channels of a phase alone: narrower ones do not fill vectors.
_LEAST_CHANNELS = 16


def _wasteful(weights: Array, strides: list[int], own: list[int], groups: int) -> bool:
    """Whether many taps of the common kernel of all phases are zeros, and each phase should have its own.

    Of a kernel of 3 x 3 with stride 2, the phases have 4, 2, 2 and 1 taps, and together 16.
    """
    kernel = [int(size) for size in weights.shape[2:]]
    padded_products = math.prod(
        ceil_div(size, stride) * stride for size, stride in zip(kernel, strides, strict=True)
    )
    fits = len(kernel) == 2 and groups == 1 and own == [1] * len(kernel)
    shorter = any(size < stride for size, stride in zip(kernel, strides, strict=True))  # phases without taps
    few = math.prod(strides) <= _MOST_APART and int(weights.shape[1]) >= _LEAST_CHANNELS
    return fits and few and not shorter and math.prod(kernel) < (1 - _LEAST_SAVED) * padded_products


def _results_of_phases(
    rewriter: CallRewriter, data: Any, kernel: Array, strides: list[int], sizes: list[int], window: Window
) -> Any:
    """The results of all phases, side by side as channels: each phase is a convolution with its own taps.

    `kernel`: of all phases, see `_phases`; `sizes`: of the transposed convolution's kernel.
    """
    *taps, channels_in, _ = kernel.shape
    split = kernel.reshape(*taps, channels_in, *strides, -1)
    results, half = [], len(window.padding) // 2
    for phase in itertools.product(*map(range, strides)):
        every: tuple[Any, ...] = (slice(None),) * (half + 1)
        taps_of_phase = split[every + phase]
        # The taps are reversed: where the last one is missing, the first of `own` is zero.
        lacks = [
            int(number + (count - 1) * stride >= size)
            for number, count, stride, size in zip(phase, taps, strides, sizes, strict=True)
        ]
        taps_of_phase = taps_of_phase[tuple(slice(lack, None) for lack in lacks)]
        padding = [before - lack for before, lack in zip(window.padding[:half], lacks, strict=True)]
        narrower = replace(window, padding=[*padding, *window.padding[half:]])
        results.append(conv2d(rewriter, data, np.ascontiguousarray(taps_of_phase), narrower))
    return rewriter.emit(relax.op.concat(results, 3))


def _of_one_element(rewriter: CallRewriter, data: Any, weights: Array, dtype: str) -> Any:
    """The result (N, *K, O) for data (N, 1, …, I) with weights (I, O, *K): each tap is used once."""
    batch, channels_in, channels_out = shape_of(data)[0], *map(int, weights.shape[:2])
    kernel = [int(size) for size in weights.shape[2:]]
    last = np.moveaxis(weights, 1, -1).reshape(channels_in, -1)
    rows = rewriter.emit(relax.op.reshape(data, relax.ShapeExpr([batch, channels_in])))
    product = rewriter.emit(
        relax.op.matmul(rows, const(np.ascontiguousarray(last), str(weights.dtype)), dtype)
    )
    return rewriter.emit(relax.op.reshape(product, relax.ShapeExpr([batch, *kernel, channels_out])))


def _cropped(
    rewriter: CallRewriter, result: Any, gaps: list[int], padding: list[int], need: list[Any]
) -> Any:
    """The elements from `padding` to `need` of the axes of `result` (N, *size, O), `gaps` of them zero."""
    rank = len(padding)
    more = [max(0, gap) for gap in gaps]
    if any(more):
        widths = [0, 0, *(width for gap in more for width in (0, gap)), 0, 0]
        result = rewriter.emit(relax.op.nn.pad(result, widths, "constant", 0.0))
    if any(padding) or gaps != more:
        axes = list(range(1, rank + 1))
        result = rewriter.emit(
            relax.op.strided_slice(
                result, axes=axes, begin=padding, end=need, strides=[1] * rank, assume_inbound=True
            )
        )
    return result


@dataclass(frozen=True)
class TransposedWindow:
    """The window of a transposed convolution along each spatial axis.

    `padding`: before the first element. `out`: sizes of the result.
    """

    strides: list[int]
    dilation: list[int]
    padding: list[int]
    out: list[Any]


def interleaved(
    rewriter: CallRewriter, call: relax.Call, data: Any, weights: Array, transposed: TransposedWindow,
    convolve: Convolve | None = None, covers: bool = False,
) -> Any:  # fmt: skip
    """The result (N, *out, O) of `call` on data (N, *size, I) with weights (I, O / groups, *K).

    `convolve`: emits the convolution of all phases, with float32 results. `covers`: zeros after the last
    input are part of its result, and not added after it. None where zeros after the result depend on a
    dynamic size.
    """
    groups, rank = int(call.attrs.groups), len(transposed.padding)
    strides, dilation = transposed.strides, transposed.dilation
    # Without a stride, the convolution itself is dilated.
    own = [distance if stride == 1 else 1 for stride, distance in zip(strides, dilation, strict=True)]
    kernel_dilation = [distance // one for distance, one in zip(dilation, own, strict=True)]
    kernel, taps = _phases(_dilated(weights, kernel_dilation), strides, groups)
    channels = int(weights.shape[1])
    edge = [(count - 1) * distance for count, distance in zip(taps, own, strict=True)]
    batch, *image, _ = shape_of(data)
    single = convolve is None and not covers and groups == 1 and image == [1] * rank
    if single:
        strides, own, extents = [1] * rank, [1] * rank, list(_dilated(weights, dilation).shape[2:])
    else:
        extents = [size + more for size, more in zip(image, edge, strict=True)]
    # Elements after the phases (output_padding) depend on no input: they are zero.
    size = [length * stride for length, stride in zip(extents, strides, strict=True)]
    need = [before + length for before, length in zip(transposed.padding, transposed.out, strict=True)]
    gaps = [_known(end - length) for end, length in zip(need, size, strict=True)]
    if not all(isinstance(gap, int) for gap in gaps):
        return None
    covered = [
        ceil_div(max(0, gap), stride) if covers else 0 for gap, stride in zip(gaps, strides, strict=True)
    ]
    extents = [length + further for length, further in zip(extents, covered, strict=True)]
    size = [length * stride for length, stride in zip(extents, strides, strict=True)]
    gaps = [gap - further * stride for gap, further, stride in zip(gaps, covered, strides, strict=True)]
    after = [length + further for length, further in zip(edge, covered, strict=True)]
    window = Window([1] * rank, [*edge, *after], own, groups, str(call.ty.dtype))
    if single:
        phases = _of_one_element(rewriter, data, _dilated(weights, dilation), str(call.ty.dtype))
    elif convolve is None and _wasteful(weights, strides, own, groups):
        phases = _results_of_phases(rewriter, data, kernel, strides, list(weights.shape[2:]), window)
    else:
        phases = (convolve or (conv2d if rank == 2 else conv3d))(rewriter, data, kernel, window)
    split = rewriter.emit(relax.op.reshape(phases, [batch, *extents, groups, *strides, channels]))
    order = [axis for i in range(rank) for axis in (1 + i, rank + 2 + i)]
    interleaved = rewriter.emit(relax.op.permute_dims(split, [0, *order, rank + 1, 2 * rank + 2]))
    result = rewriter.emit(relax.op.reshape(interleaved, [batch, *size, groups * channels]))
    return _cropped(rewriter, result, gaps, transposed.padding, need)
