"""Legalisation rule for relax.vision.roi_align with mode `max`, as ONNX defines it.

ONNX takes the greatest of the four neighbours of every sampling point, each times its weight of the bilinear
interpolation; TVM 0.27 takes the greatest of the interpolated values. An image index is clipped before
(lower/prepare.py).
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Op


def roi_align(builder: Any, call: Any) -> Any:
    """The maximum over sampling points and neighbours; mode `avg` is TVM's own rule."""
    attrs = call.attrs
    if str(attrs.mode) != "max":
        return Op.get("relax.vision.roi_align").get_attr("FLegalize")(builder, call)
    if str(attrs.layout) != "NCHW":
        raise ValueError(f"layout {attrs.layout} with mode max, allowed: NCHW")

    def compute(data: Any, regions: Any) -> Any:
        return _greatest(data, regions, attrs)

    return builder.call_te(compute, *call.args, primfunc_name_hint="roi_align")


def _greatest(data: Any, regions: Any, attrs: Any) -> Any:
    """The result (regions, C, rows, columns) of images (N, C, H, W) and regions (R, 5)."""
    dtype = str(regions.dtype)
    _, channels, height, width = data.shape
    rows, columns = (int(size) for size in attrs.pooled_size)
    scale, ratio, aligned = float(attrs.spatial_scale), int(attrs.sample_ratio), bool(attrs.aligned)

    def number(value: Any) -> Any:
        return tirx.const(value, dtype)

    def part(region: Any, low: int, count: int) -> tuple[Any, Any, Any]:
        """Along one axis: the start, the size of a bin, and the sampling points in a bin."""
        start = regions[region, low] * number(scale)
        size = regions[region, low + 2] * number(scale) - start
        size = (size if aligned else tirx.max(size, number(1.0))) / number(count)
        points = tirx.const(ratio, "int32") if ratio > 0 else tirx.ceil(size).astype("int32")
        return start, size, points

    def neighbours(start: Any, size: Any, points: Any, cell: Any, point: Any, most: Any) -> Any:
        """(index, weight) of the two neighbours of a sampling point along one axis; weight 0 outside."""
        step = (point.astype(dtype) + number(0.5)) * size / points.astype(dtype)
        at = start + cell.astype(dtype) * size + step
        inside = tirx.all(at >= number(-1.0), at <= most.astype(dtype))
        held = tirx.min(tirx.max(at, number(0.0)), (most - 1).astype(dtype))
        low = held.astype("int32")
        weight = held - low.astype(dtype)
        kept = tirx.Select(inside, number(1.0), number(0.0))
        high = tirx.min(low + 1, most - 1)
        return [(low, (number(1.0) - weight) * kept), (high, weight * kept)]

    def element(region: Any, channel: Any, row: Any, column: Any) -> Any:
        (y, bin_y, count_y), (x, bin_x, count_x) = part(region, 2, rows), part(region, 1, columns)
        down, across = te.reduce_axis((0, count_y), "down"), te.reduce_axis((0, count_x), "across")
        image = regions[region, 0].astype("int32")
        products = [
            data[image, channel, i, j] * (a * b)
            for i, a in neighbours(y, bin_y, count_y, row, down.var, height)
            for j, b in neighbours(x, bin_x, count_x, column, across.var, width)
        ]
        best = products[0]
        for product in products[1:]:
            best = tirx.max(best, product)
        return te.max(best, axis=[down, across])

    return te.compute([regions.shape[0], channels, rows, columns], element, name="roi_align")
