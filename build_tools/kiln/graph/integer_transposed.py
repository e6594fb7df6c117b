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

from kiln.extents import shape_of
from kiln.graph.bindings import Array, CallRewriter, Rule, const, constant, integers, operator
from kiln.graph.conv3d import Window
from kiln.graph.quantised_operands import QuantisedWeights, along, constant_weights, dequantised
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


@dataclass(frozen=True)
class _Layout:
    """Layouts of a transposed convolution and of the convolution of its phases."""

    data: str
    kernel: str


# By the number of spatial axes: layouts of transposed convolutions; lines are images of height 1.
_LAYOUTS = {1: _Layout("NCW", "IOW"), 2: _Layout("NCHW", "IOHW"), 3: _Layout("NCDHW", "IODHW")}


class TransposedConvolutions:
    """The rules for nn.conv1d_transpose, nn.conv2d_transpose, nn.conv3d_transpose and quantize.

    `conv2d` and `conv3d` compute a convolution of dequantised operands on integers, as in kiln.graph.integer.
    `uses`: reads of each variable.
    """

    def __init__(self, conv2d: Rule, conv3d: Rule, uses: Mapping[Any, int]) -> None:
        self.conv2d, self.conv3d, self.uses = conv2d, conv3d, uses
        self.made: dict[Any, _Interleaved] = {}  # by the variable of the interleaved result

    def convolution(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        """A transposed convolution of lines, images or volumes; None for other layouts, weights and types."""
        attrs, rank = call.attrs, len(call.ty.shape) - 2
        if _Layout(str(attrs.data_layout), str(attrs.kernel_layout)) != _LAYOUTS[rank]:
            return None
        image, weights = dequantised(rewriter, call.args[0]), constant_weights(rewriter, call.args[1], 1)
        if image is None or image.scale.size != 1 or weights is None:
            return None
        batch, channels, *sizes = shape_of(image.data)
        data = rewriter.emit(relax.op.permute_dims(image.data, [0, *range(2, 2 + rank), 1]))
        # Zeros between taps and around phases are zeros less the zero point, too.
        value = weights.value.astype("int32") - along(weights.rest, 1, weights.value.ndim)
        if rank == 1:
            data = rewriter.emit(relax.op.reshape(data, [batch, 1, *sizes, channels]))
            value = value[:, :, None]
        source, transposed = rewriter.definition(call.args[0]), window_of(call)
        phases: list[Any] = []

        def convolve(rewriter: CallRewriter, data: Any, kernel: Array, window: Window) -> Any:
            real_data = rewriter.emit(relax.op.dequantize(data, *source.args[1:], kernel.ndim - 1, "float32"))
            real = (real_data, rewriter.emit(_phase_weights(kernel, weights)))
            options = {
                "strides": window.strides, "padding": window.padding, "dilation": window.dilation,
                "groups": window.groups,
            }  # fmt: skip
            if kernel.ndim == 4:
                rule = self.conv2d
                wide = relax.op.nn.conv2d(*real, **options, data_layout="NHWC", kernel_layout="HWIO")
            else:
                rule = self.conv3d
                wide = relax.op.nn.conv3d(*real, **options, data_layout="NDHWC", kernel_layout="DHWIO")
            phases.append(rewriter.emit(rule(rewriter, wide)))
            return phases[-1]

        def joined(convolve: Any) -> Any:
            result = interleaved(rewriter, call, data, value, transposed, convolve, True)
            if result is None or rank > 1:
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

    def quantize(self, rewriter: CallRewriter, call: relax.Call) -> Any:
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
        """The convolution that a transpose reads, and the axis of channels in the transpose's result.

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


def _phase_weights(kernel: Array, weights: QuantisedWeights) -> Any:
    """The dequantised kernel of all phases; `kernel`: its levels less the zero points of `weights`."""
    size = max(weights.scale.size, weights.rest.size)
    repeats = kernel.shape[-1] // size if size > 1 else 1

    def of_phases(numbers: Array) -> Array:
        return np.tile(np.broadcast_to(numbers, (size,)), repeats)

    rest = of_phases(weights.rest)
    kind = str(weights.value.dtype)
    levels = const(np.ascontiguousarray(kernel + rest), kind)
    scales, points = (of_phases(weights.scale), rest) if size > 1 else (weights.scale[0], rest[0])
    last = kernel.ndim - 1
    return relax.op.dequantize(levels, const(scales, "float32"), const(points, kind), last, "float32")


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
