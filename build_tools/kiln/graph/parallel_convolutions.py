"""ParallelConvolutions: the sum of convolutions of one tensor becomes one convolution.

    conv(x, a) + conv(x, b) = conv(x, a + b)        conv(x, a) + s x = conv(x, a + s at the tap that reads x)
    s (conv(x, a) - conv(x, b)) = conv(x, s (a - b))

Networks that are trained with several branches, as RepVGG, MobileOne, FastViT and YOLOv6 are, and exported as
trained, have convolutions of 3x3 and 1x1, and a batch normalisation of x with a scale s for each channel,
next to each other. A convolution takes up another one whose taps are all at its own, so that no result needs
more multiplications than before. Guarantees: same results up to rounding. Does not change convolutions whose
results have other readers, tensors that are not float, and kernels that are not finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import (
    Array,
    CallRewriter,
    const,
    constant,
    count_uses,
    integers,
    operator,
    rewrite_calls,
)
from kiln.graph.convolutions import conv2d_nhwc
from kiln.graph.reshapes import same_shape

_LAYOUTS = ("NHWC", "HWIO", "NHWC")
Pair = tuple[int, int]


@dataclass(frozen=True)
class _Branch:
    """A term of a sum: a convolution of `data`, or `data` times a scale for each channel, plus `added`.

    `kernel`: (H, W, I, O), of a scaled tensor (1, 1, 1, O); sums of kernels are of double precision.
    `added`: (O,). `start`: the place of the first tap on both axes, as minus the padding. `call`: the
    convolution; None for a scaled tensor. `term`: the expression; None if it is a part of a scaled sum, which
    nothing in the graph computes. `sign`: -1 where the term is subtracted; the kernel and what is added have
    this sign already.
    """

    term: Any | None
    data: Any
    kernel: Array
    added: Array
    start: Pair = (0, 0)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    groups: int = 0
    call: Any = None
    sign: int = 1

    @property
    def is_conv(self) -> bool:
        """Whether the term is a convolution."""
        return self.call is not None

    @property
    def is_data(self) -> bool:
        """Whether the term is `data`, or minus it, which a kernel with small weights should not contain."""
        return not self.is_conv and bool((np.abs(self.kernel) == 1).all()) and not self.added.any()

    def negated(self, sign: int) -> _Branch:
        """This branch times 1 or -1."""
        return replace(self, kernel=self.kernel * sign, added=self.added * sign, sign=self.sign * sign)

    def scaled(self, factor: Array, term: Any | None, more: Array | float = 0.0) -> _Branch:
        """This branch with `more` added, times `factor`, as a part of `term`."""
        added = (self.added + more) * factor
        return replace(self, kernel=self.kernel * factor, added=added, term=term, sign=1)

    def takes(self, other: _Branch) -> tuple[slice, slice] | None:
        """The taps of `self`, on both axes, that read what the taps of `other` read.

        None if a tap of `other` is at none of `self`, or if the two do not have the same data and groups.
        """
        if not self.is_conv or not other.data.same_as(self.data) or other.strides != self.strides:
            return None
        if other.is_conv and other.groups != self.groups:
            return None
        if not other.is_conv and self.kernel.shape[2] * self.groups != self.kernel.shape[3]:
            return None
        taps = []
        for axis in (0, 1):
            count, step = other.kernel.shape[axis], self.dilation[axis]
            away = other.start[axis] - self.start[axis]
            other_step = other.dilation[axis] if count > 1 else step
            if away % step or other_step % step:
                return None
            first, every = away // step, other_step // step
            end = first + (count - 1) * every + 1
            if first < 0 or end > self.kernel.shape[axis]:
                return None
            taps.append(slice(first, end, every))
        return taps[0], taps[1]

    def with_added(self, other: _Branch, taps: tuple[slice, slice]) -> _Branch:
        """`self` with the kernel of `other` added at `taps`."""
        kernel = self.kernel.astype(np.float64)  # a copy in any case
        if other.is_conv:
            kernel[taps] += other.kernel
        else:
            channels = np.arange(kernel.shape[3])
            kernel[taps][0, 0, channels % kernel.shape[2], channels] += other.kernel[0, 0, 0]
        return replace(self, kernel=kernel, added=self.added + other.added)


class _SumsOfBranches:
    """Takes sums apart into branches."""

    def __init__(self, rewriter: CallRewriter, uses: dict[Any, int]) -> None:
        self.rewriter, self.uses = rewriter, uses

    def parts(self, expr: Any) -> tuple[list[_Branch], Array]:
        """The branches whose sum `expr` (N, H, W, C) is, and what is added to each channel, (C,) or (1,)."""
        call = self.rewriter.definition(expr) if self.uses.get(expr, 1) == 1 else expr
        name, zero = operator(call), np.zeros(1)
        if name == "relax.nn.conv2d" and (branch := _convolution(expr, call)) is not None:
            return [branch], zero
        if name in ("relax.add", "relax.subtract"):
            sign = 1 if name == "relax.add" else -1
            left, right = (self._operand(operand, call) for operand in call.args)
            if left is not None and right is not None:
                return [*left[0], *(branch.negated(sign) for branch in right[0])], left[1] + sign * right[1]
        if name in ("relax.multiply", "relax.divide"):
            data, factor = _factor(call)
            if factor is not None and same_shape(data.ty.shape, call.ty.shape):
                return self._scaled(expr, data, factor)
        channels = shape_of(call)[-1]
        return [_Branch(expr, expr, np.ones((1, 1, 1, channels)), np.zeros(channels))], zero

    def _operand(self, operand: Any, call: Any) -> tuple[list[_Branch], Array] | None:
        """The parts of an operand of the sum `call`; None where it is broadcast."""
        if constant(operand) is not None:
            value = _per_channel(operand, call)
            return None if value is None else ([], value)
        return self.parts(operand) if same_shape(operand.ty.shape, call.ty.shape) else None

    def _scaled(self, expr: Any, data: Any, factor: Array) -> tuple[list[_Branch], Array]:
        """The parts of `expr`, which is `data` times `factor`."""
        branches, added = self.parts(data)
        if len(branches) == 1:
            return [branches[0].scaled(factor, expr, added)], np.zeros(1)
        return [branch.scaled(factor, None) for branch in branches], added * factor


def _per_channel(expr: Any, call: Any) -> Array | None:
    """A constant operand of `call` with a value for each channel, the last axis, in double precision."""
    value, channels = constant(expr), shape_of(call)[-1]
    if value is None or not isinstance(channels, int) or value.size not in (1, channels):
        return None
    if value.ndim > len(call.ty.shape) or (value.size > 1 and value.shape[-1] != channels):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (channels,))


def _factor(call: Any) -> tuple[Any, Array | None]:
    """What a product or quotient scales, and by how much for each channel; None if that is not finite."""
    data, number = call.args
    if operator(call) == "relax.multiply" and constant(data) is not None:
        data, number = number, data
    value = _per_channel(number, call)
    if value is not None and operator(call) == "relax.divide":
        value = 1.0 / value if value.all() else None
    return data, value if value is not None and np.isfinite(value).all() else None


def _convolution(term: Any, call: Any) -> _Branch | None:
    attrs, weights = call.attrs, constant(call.args[1])
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if weights is None or layouts != _LAYOUTS or str(call.ty.dtype) != str(weights.dtype):
        return None
    (top, left, *_), strides = integers(attrs.padding), integers(attrs.strides)
    dilation = integers(attrs.dilation)
    return _Branch(
        term, call.args[0], weights, np.zeros(weights.shape[3]), (-top, -left),
        (strides[0], strides[1]), (dilation[0], dilation[1]), int(attrs.groups), call,
    )  # fmt: skip


def _merged(branches: list[_Branch]) -> list[list[_Branch]]:
    """Groups of branches; the first of each has taken up the others. Most taps first."""
    groups: list[list[_Branch]] = []
    for branch in sorted(branches, key=lambda branch: -math.prod(branch.kernel.shape[:2]) * branch.is_conv):
        for group in groups:
            taps = group[0].takes(branch)
            if taps is not None:
                group[0] = group[0].with_added(branch, taps)
                group.append(branch)
                break
        else:
            groups.append([branch])
    return groups


def _sum(uses: dict[Any, int], rewriter: CallRewriter, call: Any) -> Any:
    dtype, op = str(call.ty.dtype), relax.op
    if not dtype.startswith("float") or len(call.ty.shape) != 4 or not isinstance(shape_of(call)[-1], int):
        return None
    branches, bias = _SumsOfBranches(rewriter, uses).parts(call)
    groups = _merged([branch for branch in branches if not branch.is_data])
    alone = [branch for branch in branches if branch.is_data]
    alone += [group[0] for group in groups if len(group) == 1]
    merged = [group[0] for group in groups if len(group) > 1]
    if not merged or any(branch.term is None for branch in alone):
        return None
    bias = sum((one.added for one in merged), bias)
    with np.errstate(over="ignore"):
        kernels = [one.kernel.astype(dtype) for one in merged]
        if not all(np.isfinite(values).all() for values in (*kernels, bias.astype(dtype))):
            return None
    convs = [conv2d_nhwc(one.call, one.data, const(k, dtype)) for one, k in zip(merged, kernels, strict=True)]
    total = convs[0]
    for conv in convs[1:]:
        total = op.add(rewriter.emit(total), rewriter.emit(conv))
    if bias.any():
        total = op.add(rewriter.emit(total), const(bias.reshape(1, 1, 1, -1), dtype))
    for branch in alone:
        total = (op.add if branch.sign == 1 else op.subtract)(rewriter.emit(total), branch.term)
    return total


def parallel_convolutions(mod: tvm.IRModule) -> tvm.IRModule:
    """Merge conv2d (NHWC, HWIO) and scales of one tensor whose results are added."""
    rule = partial(_sum, count_uses(mod))
    return rewrite_calls(mod, {"relax.add": rule, "relax.subtract": rule})
