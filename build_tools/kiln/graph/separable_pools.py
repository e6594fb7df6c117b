"""SeparablePools: a maximum over a large window becomes one over its columns, then one over its rows.

A window of 9x9 then reads 18 elements in place of 81. Over columns, all columns and channels of an image are
independent: they become the channels of an image one column wide, so that few channels fill vectors too; not
where the width is dynamic, whose padding a proof has to follow. Over rows with stride 1, so do the pixels and
channels of a row.
Guarantees: same results, as a maximum may be taken in any order. Windows stay where both steps together read
more than half as much as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, integers, rewrite_calls

# Pixels of fewer channels are not vectors of their own.
_FEW_CHANNELS = 8
_LEAST_GAIN = 2  # reads of one window over reads of two


def _max_pool(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs, x = call.attrs, call.args[0]
    if (str(attrs.layout), str(attrs.out_layout)) != ("NHWC", "NHWC"):
        return None
    high, wide = integers(attrs.pool_size)
    (down, right), (far_down, far_right) = integers(attrs.strides), integers(attrs.dilation)
    top, left, bottom, beyond = integers(attrs.padding)
    batch, height, width, channels = shape_of(x)
    _, rows, columns, _ = shape_of(call)
    if not _pays(high, wide, right, width, columns):
        return None
    ceil, joined = bool(attrs.ceil_mode), isinstance(width, int)
    if joined:
        x = rewriter.emit(relax.op.reshape(x, relax.ShapeExpr([batch, height, 1, width * channels])))
    x = rewriter.emit(
        relax.op.nn.max_pool2d(
            x, (high, 1), (down, 1), (top, 0, bottom, 0), (far_down, 1), ceil, layout="NHWC"
        )
    )
    if joined and right == 1 and isinstance(channels, int) and channels < _FEW_CHANNELS:
        return _along_rows(rewriter, x, wide, (left, beyond), far_right, [batch, rows, columns, channels])
    if joined:
        x = rewriter.emit(relax.op.reshape(x, relax.ShapeExpr([batch, rows, width, channels])))
    return relax.op.nn.max_pool2d(
        x, (1, wide), (1, right), (0, left, 0, beyond), (1, far_right), ceil, layout="NHWC"
    )


def _along_rows(
    rewriter: CallRewriter, x: Any, wide: int, padding: tuple[int, int], dilation: int, shape: list[Any]
) -> Any:
    """The maxima over `wide` columns of `x`, images of one column whose rows are its channels.

    Pixels and channels become the columns of an image of one channel, which vectors run along; the columns of
    a window are as far apart as a pixel has channels. `padding`: before and after. `shape`: of the result.
    """
    batch, rows, columns, channels = shape
    left, beyond = (channels * size for size in padding)
    x = rewriter.emit(relax.op.reshape(x, relax.ShapeExpr([batch, rows, shape_of(x)[-1], 1])))
    if left or beyond:  # in memory: vectors cannot be partly outside
        x = rewriter.emit(relax.op.nn.pad(x, [0, 0, 0, 0, left, beyond, 0, 0], "constant", _least(x)))
    x = rewriter.emit(relax.op.nn.max_pool2d(x, (1, wide), dilation=(1, channels * dilation), layout="NHWC"))
    return relax.op.reshape(x, relax.ShapeExpr([batch, rows, columns, channels]))


def _least(x: Any) -> float:
    """The least value of the type of `x`."""
    dtype = str(x.ty.dtype)
    return float("-inf") if dtype.startswith(("float", "bfloat")) else float(np.iinfo(dtype).min)


def _pays(high: int, wide: int, right: int, width: Any, columns: Any) -> bool:
    """Whether two steps read less, for each row of the result, by _LEAST_GAIN.

    `width`, `columns`: of the image and of the result; where they are dynamic, `right`, the stride, is their
    quotient.
    """
    if min(high, wide) < 2:
        return False
    if not isinstance(width, int) or not isinstance(columns, int):
        width, columns = right, 1
    return bool(columns * high * wide >= _LEAST_GAIN * (width * high + columns * wide))


def separable_pools(mod: tvm.IRModule) -> tvm.IRModule:
    """Split max_pool2d (NHWC) over large windows into a step for each axis."""
    return rewrite_calls(mod, {"relax.nn.max_pool2d": _max_pool})
