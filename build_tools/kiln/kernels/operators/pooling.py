"""Legalisation rule for relax.nn.avg_pool2d of integers: averages rounded to nearest, halves away from zero.

TVM's own rule truncates. lower/fixed_point.py makes such operators from TensorFlow Lite's AVERAGE_POOL_2D of
quantised tensors, whose reference kernel rounds in this way.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx, topi
from tvm.ir import Op

MOST_POOLED = (1 << 14) - 1  # elements of a window: twice their sum fits 32 bits if they are int16


def average_pool(builder: Any, call: Any) -> Any:
    """The average of each window of an NHWC tensor of 8 or 16 bits; positions in the padding are not counted.

    Other layouts and types, and windows that count their padding, are left to TVM's rule.
    """
    attrs = call.attrs
    stored, dtype = str(call.ty.dtype), "int32"
    plain = str(attrs.layout) == "NHWC" and not attrs.ceil_mode and all(int(d) == 1 for d in attrs.dilation)
    if (
        stored not in ("int8", "uint8", "int16")
        or not plain
        or (attrs.count_include_pad and any(int(p) for p in attrs.padding))
    ):
        return Op.get("relax.nn.avg_pool2d").get_attr("FLegalize")(builder, call)
    (high, wide), (down, right) = ([int(n) for n in sizes] for sizes in (attrs.pool_size, attrs.strides))
    top, left, bottom, beyond = (int(n) for n in attrs.padding)

    def compute(data: Any) -> Any:
        batch, height, width, channels = data.shape
        framed = data
        if top or left or bottom or beyond:
            framed = topi.nn.pad(data, [0, top, left, 0], [0, bottom, beyond, 0], tirx.const(0, stored))
        rows, columns = te.reduce_axis((0, high), "row"), te.reduce_axis((0, wide), "column")
        shape = [
            batch,
            tirx.floordiv(height + (top + bottom - high), down) + 1,
            tirx.floordiv(width + (left + beyond - wide), right) + 1,
            channels,
        ]
        sums = te.compute(
            shape,
            lambda n, h, w, c: te.sum(
                tirx.Cast(dtype, framed[n, h * down + rows, w * right + columns, c]), [rows, columns]
            ),
            name="pool_sum",
        )

        def counted(place: Any, step: int, size: int, before: int, after: int, extent: Any) -> Any:
            """Positions of the window at `place` that are inside the tensor."""
            if not before and not after:
                return tirx.const(size, dtype)
            first = place * step - before
            inside = tirx.min(first + size, extent) - tirx.max(first, 0)
            return tirx.Cast(dtype, inside)

        def mean(n: Any, h: Any, w: Any, c: Any) -> Any:
            count = counted(h, down, high, top, bottom, height) * counted(w, right, wide, left, beyond, width)
            value = sums[n, h, w, c]
            lower = tirx.shift_right(value, tirx.const(31, dtype))  # -1 for negative sums
            return tirx.Cast(stored, tirx.floordiv(value + value + count + lower, count + count))

        return te.compute(shape, mean, name="pool_mean")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="avg_pool2d")
