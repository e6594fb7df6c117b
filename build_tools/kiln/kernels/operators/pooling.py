"""Average pooling of integers: the sums of windows in int32, and what becomes of them.

`average_pool` is the legalisation rule for relax.nn.avg_pool2d of integers, whose averages are rounded to
nearest, halves away from zero. TVM's own rule truncates. lower/fixed_point.py makes such operators from
TensorFlow Lite's AVERAGE_POOL_2D of quantised tensors, whose reference kernel rounds in this way.
`real_average` computes the averages of dequantised integers in float32, see lower/integer_pools.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx, topi
from tvm.ir import Op

MOST_POOLED = (1 << 14) - 1  # elements of a window: twice their sum fits 32 bits if they are int16
_SUM = "int32"  # the type of sums and of numbers of elements
_TYPES = ("int8", "uint8", "int16")


def is_plain(attrs: Any) -> bool:
    """Whether attributes of a pool are of windows without gaps, in NHWC, whose number is rounded down."""
    return str(attrs.layout) == "NHWC" and not attrs.ceil_mode and all(int(d) == 1 for d in attrs.dilation)


def average_pool(builder: Any, call: Any) -> Any:
    """The average of each window of an NHWC tensor of 8 or 16 bits; positions in the padding are not counted.

    Other layouts and types, and windows that count their padding, are left to TVM's rule.
    """
    attrs, stored = call.attrs, str(call.ty.dtype)
    counts_padding = attrs.count_include_pad and any(int(p) for p in attrs.padding)
    if stored not in _TYPES or not is_plain(attrs) or counts_padding:
        return Op.get("relax.nn.avg_pool2d").get_attr("FLegalize")(builder, call)

    def rounded(total: Any, count: Any) -> Any:
        lower = tirx.shift_right(total, tirx.const(31, _SUM))  # -1 for negative sums
        return tirx.Cast(stored, tirx.floordiv(total + total + count + lower, count + count))

    return builder.call_te(_pool(attrs, 0, rounded), call.args[0], primfunc_name_hint="avg_pool2d")


def real_average(attrs: Any, scale: float, zero_point: int) -> Callable[[Any], Any]:
    """The function from an NHWC tensor of levels to scale * (average of each window - zero point), float32.

    attrs: of relax.nn.avg_pool2d, for which `is_plain` holds. Padding that is counted is 0 after scaling.
    """

    def real(total: Any, count: Any) -> Any:
        total = total if not zero_point else total - count * tirx.const(zero_point, _SUM)
        value = tirx.Cast("float32", total)
        if isinstance(count, tirx.IntImm) and scale != 1.0:
            return value * tirx.const(scale / int(count), "float32")
        average = value / tirx.Cast("float32", count)
        return average if scale == 1.0 else average * tirx.const(scale, "float32")

    return _pool(attrs, zero_point if attrs.count_include_pad else 0, real)


def _pool(attrs: Any, fill: int, result: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The function from an NHWC tensor to result(sum, number of elements) of each window.

    attrs: of relax.nn.avg_pool2d. Elements of the padding are `fill`; they are counted if
    `count_include_pad` is set.
    """
    (high, wide), (down, right) = ([int(n) for n in sizes] for sizes in (attrs.pool_size, attrs.strides))
    top, left, bottom, beyond = (int(n) for n in attrs.padding)

    def compute(data: Any) -> Any:
        batch, height, width, channels = data.shape
        framed = data
        if top or left or bottom or beyond:
            value = tirx.const(fill, data.dtype)
            framed = topi.nn.pad(data, [0, top, left, 0], [0, bottom, beyond, 0], value)
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
                tirx.Cast(_SUM, framed[n, h * down + rows, w * right + columns, c]), [rows, columns]
            ),
            name="pool_sum",
        )

        def counted(place: Any, step: int, size: int, before: int, after: int, extent: Any) -> Any:
            """Positions of the window at `place` that are inside the tensor."""
            if attrs.count_include_pad or not (before or after):
                return tirx.const(size, _SUM)
            first = place * step - before
            inside = tirx.min(first + size, extent) - tirx.max(first, 0)
            return tirx.Cast(_SUM, inside)

        def element(n: Any, h: Any, w: Any, c: Any) -> Any:
            count = counted(h, down, high, top, bottom, height) * counted(w, right, wide, left, beyond, width)
            return result(sums[n, h, w, c], count)

        return te.compute(shape, element, name="pool_mean")

    return compute
