"""Average pooling of integers: the sums of windows in int32, and the averages computed from them.

Windows are of 1 to 3 axes in any layout without blocks of channels, with gaps, and their number may be
rounded up. Elements beyond the padding, which a window has where that is so, never count.

`average_pool` is the legalisation rule for relax.nn.avg_pool2d of integers, whose averages are rounded to
nearest, halves away from zero. TVM's own rule truncates. lower/fixed_point.py makes such operators from
TensorFlow Lite's AVERAGE_POOL_2D of quantised tensors, whose reference kernel rounds in this way.
`real_average` computes the averages of dequantised integers in float32, see lower/integer_pools.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx, topi
from tvm.ir import Op

MOST_POOLED = (1 << 14) - 1  # elements of a window: twice their sum fits 32 bits if they are int16
_SUM = "int32"  # the type of sums and of numbers of elements
_TYPES = ("int8", "uint8", "int16")


def average_pool(builder: Any, call: Any) -> Any:
    """The average of each window of a tensor of 8 or 16 bits; other types are left to TVM's rule."""
    stored = str(call.ty.dtype)
    if stored not in _TYPES:
        return Op.get("relax.nn.avg_pool2d").get_attr("FLegalize")(builder, call)

    def rounded(total: Any, count: Any, _inside: Any) -> Any:
        lower = tirx.shift_right(total, tirx.const(31, _SUM))  # -1 for negative sums
        return tirx.Cast(stored, tirx.floordiv(total + total + count + lower, count + count))

    return builder.call_te(_pool(call, rounded), call.args[0], primfunc_name_hint="avg_pool2d")


def real_average(call: Any, scale: float, zero_point: int) -> Callable[[Any], Any]:
    """The function from a tensor of levels to scale * (average of each window - zero point) in float32.

    call: of relax.nn.avg_pool1d, 2d or 3d. Padding that is counted is 0 after scaling.
    """

    def real(total: Any, count: Any, inside: Any) -> Any:
        total = total if not zero_point else total - inside * tirx.const(zero_point, _SUM)
        value = tirx.Cast("float32", total)
        if isinstance(count, tirx.IntImm) and scale != 1.0:
            return value * tirx.const(scale / int(count), "float32")
        average = value / tirx.Cast("float32", count)
        return average if scale == 1.0 else average * tirx.const(scale, "float32")

    return _pool(call, real)


@dataclass(frozen=True)
class _Axis:
    """The windows along an axis of a tensor: window i has the elements i * stride - before + tap * gap.

    `size`: of the tensor, `windows`: their number, which with `ceil` may lack one that would begin after the
    tensor.
    """

    position: int
    size: Any
    windows: Any
    taps: int
    stride: int
    gap: int
    before: int
    after: int
    ceil: bool

    @property
    def frame(self) -> tuple[int, int]:
        """Numbers of elements of the padding that windows read, before and after the tensor."""
        return self.before, self.after + (self.stride - 1 if self.ceil else 0)

    def counted(self, place: Any, padding: bool) -> Any:
        """The number of elements of window `place` inside the tensor; with `padding`, also of its padding."""
        if not any(self.frame) or (padding and not self.ceil):
            return tirx.const(self.taps, _SUM)
        first = tirx.Cast(_SUM, place) * tirx.const(self.stride, _SUM) - tirx.const(self.before, _SUM)
        begin = -self.before if padding else 0
        end = tirx.Cast(_SUM, self.size) + tirx.const(self.after if padding else 0, _SUM)

        def taps_before(limit: Any) -> Any:
            """The number of taps of the window at positions less than `limit`."""
            number = tirx.floordiv(limit - first + tirx.const(self.gap - 1, _SUM), tirx.const(self.gap, _SUM))
            return tirx.max(tirx.min(number, tirx.const(self.taps, _SUM)), tirx.const(0, _SUM))

        return taps_before(end) - taps_before(tirx.const(begin, _SUM))


def _pool(call: Any, result: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """The function from a tensor to result(sum, count, inside) for each window of a pool `call`.

    Its count is the number of elements by which a sum is divided, at least 1, and inside that of those in the
    tensor. Elements of the padding are 0 and count if `count_include_pad` is set.
    """
    attrs = call.attrs

    def compute(data: Any) -> Any:
        axes = _axes(attrs, data.shape, call.ty.shape)
        framed, shape = data, list(data.shape)
        if any(any(axis.frame) for axis in axes):
            pads = [[0] * len(shape), [0] * len(shape)]
            for axis in axes:
                for side, width in zip(pads, axis.frame, strict=True):
                    side[axis.position] = width
            framed = topi.nn.pad(data, *pads, tirx.const(0, data.dtype))
        for axis in axes:
            shape[axis.position] = axis.windows
        taps = [te.reduce_axis((0, axis.taps), "tap") for axis in axes]

        def window_sum(*place: Any) -> Any:
            at = list(place)
            for axis, tap in zip(axes, taps, strict=True):
                at[axis.position] = place[axis.position] * axis.stride + tap * axis.gap
            return te.sum(tirx.Cast(_SUM, framed[tuple(at)]), taps)

        sums = te.compute(shape, window_sum, name="pool_sum")

        def element(*place: Any) -> Any:
            count, inside = (
                math.prod(
                    (axis.counted(place[axis.position], padding) for axis in axes),
                    start=tirx.const(1, _SUM),
                )
                for padding in (bool(attrs.count_include_pad), False)
            )
            if not isinstance(count, tirx.IntImm):
                count = tirx.max(count, tirx.const(1, _SUM))
            return result(sums[place], count, inside)

        return te.compute(shape, element, name="pool_mean")

    return compute


def _axes(attrs: Any, shape: Any, result: Any) -> list[_Axis]:
    """The axes of a tensor of `shape` that windows move along; `result`: the shape of the windows' tensor."""
    layout, values = str(attrs.layout), [list(map(int, v)) for v in (attrs.pool_size, attrs.strides)]
    spatial = [axis for axis in "DHW" if axis in layout]
    padding, gaps = list(map(int, attrs.padding)), list(map(int, attrs.dilation))
    return [
        _Axis(
            layout.index(name), shape[layout.index(name)], result[layout.index(name)], values[0][number],
            values[1][number], gaps[number], padding[number], padding[len(spatial) + number],
            bool(attrs.ceil_mode),
        )
        for number, name in enumerate(spatial)
    ]  # fmt: skip
