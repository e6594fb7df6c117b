"""Transposed convolutions of quantised tensors: one convolution on integers, whose phases are interleaved.

All phases of the stride are one convolution (kiln.graph.transposed_conv). Where its result is quantised, at
most after a bias, ReLU and limits, these are computed on the phases, and what is interleaved and cropped are
8-bit values: a quarter of the bytes, and no step on floats between integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.graph.bindings import Array, CallRewriter, Rule, const, constant, integers, operator, shape_of
from kiln.graph.conv3d import Window
from kiln.graph.transposed_conv import interleaved, window_of

_LIMITS = ("relax.nn.relu", "relax.clip", "relax.maximum", "relax.minimum")


@dataclass(frozen=True)
class _Interleaved:
    """A rewritten convolution: `phases`, its result before the interleaving, and its `strides` and groups.

    `again`: emits the interleaving of other phases of the same shape.
    """

    phases: Any
    strides: list[int]
    groups: int
    channels: int
    again: Callable[[Any], Any]


class TransposedConvolutions:
    """The rules for nn.conv1d_transpose, nn.conv2d_transpose and quantize.

    `image` reads a dequantised tensor, `weights` constant weights along an axis, and `conv2d` computes a
    convolution of dequantised operands on integers, as in kiln.graph.integer. `uses`: reads of each variable.
    """

    def __init__(
        self, image: Callable[[CallRewriter, Any], Any], weights: Callable[[CallRewriter, Any, int], Any],
        conv2d: Rule, uses: Mapping[Any, int],
    ) -> None:  # fmt: skip
        self.image, self.weights, self.conv2d, self.uses = image, weights, conv2d, uses
        self.made: dict[Any, _Interleaved] = {}  # by the variable of the interleaved result

    def convolution(self, rewriter: CallRewriter, call: Any) -> Any:
        """A transposed convolution of images or lines; None for other layouts, weights and types."""
        attrs, lines = call.attrs, str(call.attrs.data_layout) == "NCW"
        if str(attrs.data_layout) not in ("NCHW", "NCW") or str(attrs.kernel_layout) not in ("IOHW", "IOW"):
            return None
        image, weights = self.image(rewriter, call.args[0]), self.weights(rewriter, call.args[1], 1)
        if image is None or image.scale.size != 1 or weights is None or weights.rest.any():
            return None
        batch, channels, *sizes = shape_of(image.data)
        data = rewriter.emit(relax.op.permute_dims(image.data, [0, *range(2, 2 + len(sizes)), 1]))
        value = weights.value
        if lines:
            data = rewriter.emit(relax.op.reshape(data, [batch, 1, *sizes, channels]))
            value = value[:, :, None]
        source, transposed = rewriter.definition(call.args[0]), window_of(call)
        phases: list[Any] = []

        def convolve(rewriter: CallRewriter, data: Any, kernel: Array, window: Window) -> Any:
            scale = weights.scale.astype("float32")
            if scale.size > 1:
                scale = np.tile(scale, kernel.shape[-1] // scale.size)
            zero = const(np.zeros(scale.shape), "int8")
            levels = const(np.ascontiguousarray(kernel), "int8")
            real = (
                rewriter.emit(relax.op.dequantize(data, *source.args[1:], 3, "float32")),
                rewriter.emit(relax.op.dequantize(levels, const(scale, "float32"), zero, 3, "float32")),
            )
            wide = relax.op.nn.conv2d(
                *real, strides=window.strides, padding=window.padding, dilation=window.dilation,
                groups=window.groups, data_layout="NHWC", kernel_layout="HWIO",
            )  # fmt: skip
            phases.append(rewriter.emit(self.conv2d(rewriter, wide)))
            return phases[-1]

        def joined(convolve: Any) -> Any:
            result = interleaved(rewriter, call, data, value, transposed, convolve, True)
            if result is None or not lines:
                return result
            batch, _, width, channels_out = shape_of(result)
            return rewriter.emit(relax.op.reshape(result, [batch, width, channels_out]))

        result = joined(convolve)
        if result is None:
            return None
        self.made[result] = _Interleaved(
            phases[-1], transposed.strides, int(attrs.groups), int(value.shape[1]),
            lambda other: joined(lambda *_: other),
        )  # fmt: skip
        return relax.op.permute_dims(result, [0, len(sizes) + 1, *range(1, len(sizes) + 1)])

    def quantize(self, rewriter: CallRewriter, call: Any) -> Any:
        """Quantise the phases of a transposed convolution, not the interleaved result; None for others."""
        if any(value is None or value.size != 1 for value in map(constant, call.args[1:])):
            return None
        steps: list[Any] = []
        inner, converted, channel_axis = call.args[0], None, 1
        while isinstance(inner, relax.Var) and self.uses.get(inner, 0) == 1:
            step = rewriter.definition(inner)
            if operator(step) == "relax.permute_dims":
                converted, channel_axis = self._transposed(rewriter, step)
                break
            if operator(step) not in ("relax.add", *_LIMITS):
                return None
            steps.append(step)
            inner = step.args[0]
        rank = len(call.ty.shape)
        if converted is None or not all(_by_channel(step, rank, channel_axis) for step in steps):
            return None
        value = converted.phases
        for step in reversed(steps):
            value = rewriter.emit(
                relax.Call(step.op, [value, *_of_phases(rewriter, step, converted)], step.attrs)
            )
        levels = rewriter.emit(relax.op.quantize(value, *call.args[1:], -1, str(call.attrs.out_dtype)))
        result = converted.again(levels)
        if channel_axis == rank - 1:
            return result
        return relax.op.permute_dims(result, [0, rank - 1, *range(1, rank - 1)])

    def _transposed(self, rewriter: CallRewriter, step: Any) -> tuple[_Interleaved | None, int]:
        """The convolution that a transpose reads, and the axis of channels of what the transpose gives.

        None for another operand. Channels are axis 1 after the transpose that `convolution` writes, and the
        last axis after a second transpose that undoes it, as in TFLite.
        """
        found, rank = self.made.get(step.args[0]), len(step.ty.shape)
        axes = None if step.attrs.axes is None else integers(step.attrs.axes)
        if found is not None or axes != [0, *range(2, rank), 1]:
            return found, 1
        inner = rewriter.definition(step.args[0])
        is_transpose = operator(inner) == "relax.permute_dims"
        return self.made.get(inner.args[0]) if is_transpose else None, rank - 1


def _by_channel(step: Any, rank: int, channel_axis: int) -> bool:
    """Whether the second operand of a sum or limit has one number, or one for each channel."""
    if operator(step) in ("relax.nn.relu", "relax.clip"):
        return True
    shape = shape_of(step.args[1])
    from_the_end = rank - 1 - channel_axis
    other_sizes = [size for axis, size in enumerate(reversed(shape)) if axis != from_the_end]
    return len(shape) <= rank and all(isinstance(size, int) and size == 1 for size in other_sizes)


def _of_phases(rewriter: CallRewriter, step: Any, made: _Interleaved) -> list[Any]:
    """The further operands of `step` for the phases, whose channels are [group, phase, channel]."""
    if operator(step) in ("relax.nn.relu", "relax.clip"):
        return list(step.args[1:])
    op, value = relax.op, step.args[1]
    if math.prod(shape_of(value)) > 1:  # it may be dequantised, and is a constant later
        value = rewriter.emit(op.reshape(value, [made.groups, 1, made.channels]))
        value = rewriter.emit(op.repeat(value, math.prod(made.strides), 1))
    return [rewriter.emit(op.reshape(value, [-1]))]
