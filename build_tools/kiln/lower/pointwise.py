"""Pointwise: convolutions of single pixels between channels-first tensors become matmuls of such tensors.

    permute(conv2d(permute(x, NHWC), w), NCHW)    reshape(matmul(transposed(w), reshape(x, (N, C, H W))))

The convolution would copy x into NHWC, and its result back: of few channels, both take longer than the
products. The rows of the matmul are the results' channels, its columns the pixels, adjacent in memory before
and after. Elementwise operators between the convolution and the transpose move with it: operators of one
tensor, and of one tensor and a constant for each channel. So do reshapes that keep the first axis and the
channels, as around convolutions of lines and volumes.

Requires convolutions of NHWC and HWIO. Guarantees: the same sums. Applies to float32 and constant kernels of
1 x 1 without stride and padding, unless both numbers of channels of a group are so large that the packed
weights of a convolution save more than the copies cost, or one is 1 as in a depthwise convolution; and to
kernels of few terms (lower/few_terms.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from kiln.graph.layout import CHANNELS_FIRST, UNARY
from kiln.graph.reshapes import along_last, same_shape
from kiln.lower import few_terms

# Greatest product of both numbers of channels over their sum: operations of the convolution for each element
# that is copied. Measured with AVX2 and AVX-512: as fast with 128 to 205, faster below.
_MOST_PRODUCTS = 112

_UNARY = {f"relax.{name}" for name in UNARY}
_BINARY = {f"relax.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")}


@dataclass
class _PixelConvolution:
    """A convolution and what follows it up to the transpose: `x` of (N, C, …).

    `weights`: of (O, C), or of (groups, O of a group, C of a group) for several groups.
    `elementwise`: the calls after the convolution, in order, with the position of their tensor argument.
    """

    x: Any
    weights: Array
    elementwise: list[tuple[Any, int]]


class _Pointwise:
    """The rewriting rule of a transpose to channels first, for processors of `isa`.

    `uses`: number of reads of each variable.
    """

    def __init__(self, uses: dict[Any, int], isa: str) -> None:
        self.uses, self.isa = uses, isa

    def __call__(self, rewriter: CallRewriter, call: relax.Call) -> Any:
        rank = len(call.ty.shape)
        if call.attrs.axes is None or integers(call.attrs.axes) != CHANNELS_FIRST.get(rank):
            return None
        chain = self._chain(rewriter, call.args[0])
        if chain is None:
            return None
        batch, channels, *sizes = shape_of(chain.x)
        pixels, groups = math.prod(sizes[1:], start=sizes[0]), chain.weights.shape[:-2]
        rows = relax.ShapeExpr([batch, *groups, channels // math.prod(groups), pixels])
        data = rewriter.emit(relax.op.reshape(chain.x, rows))
        value = rewriter.emit(relax.op.matmul(const(chain.weights, "float32"), data))
        for elementwise, position in chain.elementwise:
            value = rewriter.emit(_of_rows(elementwise, position, value, chain.weights.shape[:-1]))
        return relax.op.reshape(value, relax.ShapeExpr(list(call.ty.shape)))

    def _chain(self, rewriter: CallRewriter, last: Any) -> _PixelConvolution | None:
        """The chain whose value, with channels last, is `last`; None if there is none."""
        elementwise: list[tuple[Any, int]] = []
        expr = last
        while isinstance(expr, relax.Var) and self.uses.get(expr) == 1:
            call = rewriter.definition(expr)
            name = operator(call)
            if name == "relax.nn.conv2d":
                return _of_convolution(rewriter, call, elementwise, self.isa)
            if name == "relax.reshape" and _keeps_ends(call.args[0], expr):
                expr = call.args[0]
                continue
            position = _tensor_argument(call)
            if position is None:
                return None
            elementwise.insert(0, (call, position))
            expr = call.args[position]
        return None


def _of_convolution(
    rewriter: CallRewriter, call: relax.Call, elementwise: list[tuple[Any, int]], isa: str
) -> _PixelConvolution | None:
    """The chain that begins with the conv2d `call`; None where it does not apply."""
    attrs, kernel = call.attrs, constant(call.args[1])
    if kernel is None or kernel.dtype != np.float32:
        return None
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NHWC", "HWIO"):
        return None
    if {str(call.ty.dtype), str(call.args[0].ty.dtype)} != {"float32"}:
        return None
    if kernel.shape[:2] != (1, 1):
        return _of_few_terms(rewriter, call, kernel, elementwise, isa)
    if any(integers(attrs.padding)) or {*integers(attrs.strides)} != {1}:
        return None
    groups = int(attrs.groups)
    before, after = kernel.shape[2], kernel.shape[3] // groups
    if before * after > _MOST_PRODUCTS * (before + after) or (groups > 1 and min(before, after) == 1):
        return None
    weights = kernel.T.reshape((*([groups] if groups > 1 else []), after, before))
    data = _channels_first(rewriter, call.args[0])
    return None if data is None else _PixelConvolution(data, weights, elementwise)


def _channels_first(rewriter: CallRewriter, data: Any) -> Any | None:
    """The tensor (N, C, …) whose transpose, perhaps reshaped, is `data`; None where there is none."""
    while operator(definition := rewriter.definition(data)) == "relax.reshape":
        if not _keeps_ends(definition.args[0], data):
            return None
        data = definition.args[0]
    if operator(definition) != "relax.permute_dims" or not _moves_channels_last(definition):
        return None
    return definition.args[0]


def _of_few_terms(
    rewriter: CallRewriter, call: relax.Call, kernel: Array, elementwise: list[tuple[Any, int]], isa: str
) -> _PixelConvolution | None:
    """The chain that begins with the conv2d `call` if that has few terms (lower/few_terms.py); else None."""
    if not few_terms.suits(kernel, call, isa):
        return None
    batch, height, width, channels = shape_of(call.args[0])
    data = call.args[0] if channels == 1 else _channels_first(rewriter, call.args[0])
    if data is None:
        return None
    image = relax.ShapeExpr([batch, channels, height, width])
    rows, weights = few_terms.rows_of_terms(
        rewriter, rewriter.emit(relax.op.reshape(data, image)), kernel, call
    )
    return _PixelConvolution(rows, weights, elementwise)


def _moves_channels_last(transpose: Any) -> bool:
    axes = [] if transpose.attrs.axes is None else integers(transpose.attrs.axes)
    return len(axes) in CHANNELS_FIRST and axes == [0, *range(2, len(axes)), 1]


def _keeps_ends(before: Any, after: Any) -> bool:
    """Whether a reshape keeps the first and the last axis: it then splits or merges positions alone."""
    old, new = list(before.ty.shape), list(after.ty.shape)
    return len(old) > 1 and len(new) > 1 and same_shape([old[0], old[-1]], [new[0], new[-1]])


def _tensor_argument(call: Any) -> int | None:
    """The position of the tensor in an elementwise call of it and, perhaps, a constant for each channel."""
    name = operator(call)
    if name in _UNARY:
        return 0
    if name not in _BINARY or str(call.ty.dtype) != "float32":
        return None
    for position, other in ((0, 1), (1, 0)):
        # The constant does not make the tensor larger: one channel of many, or another axis.
        if along_last(call.args[other]) and same_shape(call.args[position].ty.shape, call.ty.shape):
            return position
    return None


def _of_rows(call: Any, position: int, value: Any, rows: Sequence[int]) -> Any:
    """The elementwise `call` on `value` of shape (N, *`rows`, pixels) as its tensor argument."""
    arguments = list(call.args)
    arguments[position] = value
    if operator(call) in _BINARY:
        other = constant(arguments[1 - position])
        assert other is not None
        arguments[1 - position] = const(other.reshape([] if other.size == 1 else [*rows, 1]), "float32")
    return relax.Call(call.op, arguments, call.attrs)


def pointwise(mod: tvm.IRModule, isa: str) -> tvm.IRModule:
    """Make matmuls of convolutions of single pixels between transposes, for processors of `isa`."""
    mod = rewrite_calls(mod, {"relax.permute_dims": _Pointwise(count_uses(mod), isa)})
    return relax.transform.DeadCodeElimination()(mod)
