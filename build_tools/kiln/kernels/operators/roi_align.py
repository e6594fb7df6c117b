"""Legalisation rule for relax.vision.roi_align, as ONNX defines it.

With mode `max`, ONNX takes the greatest of the four neighbours of every sampling point, each times its weight
of the bilinear interpolation; TVM 0.27 takes the greatest of the interpolated values. With mode `avg`, TVM
computes places and weights, with divisions, for each channel anew; here they are tables of a region's rows
and columns. An image index is clipped before (lower/prepare.py).
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Op


def roi_align(builder: Any, call: Any) -> Any:
    """The mean, or the maximum over sampling points and neighbours.

    TVM's own rule takes means in other layouts, and of as many points as a region has pixels. A region
    without points, of size 0 or less, has the result 0: sums over no points would leave the result unwritten.
    """
    attrs = call.attrs
    if int(attrs.sample_ratio) > 0 or not attrs.aligned:
        return _of_points(builder, call)
    data, regions = call.args
    full = builder.emit(
        builder.call_te(lambda r: _filled(r, attrs), regions, primfunc_name_hint="roi_filled")
    )
    call = builder.normalize(relax.Call(call.op, [data, full], attrs))
    result = builder.emit(_of_points(builder, call))
    return builder.call_te(
        lambda value, r: te.compute(
            value.shape,
            lambda *i: tirx.Select(_has_points(r, i[0], attrs), value(*i), tirx.const(0.0, str(value.dtype))),
            name="roi_kept",
        ),
        result,
        regions,
        primfunc_name_hint="roi_kept",
    )


def _has_points(regions: Any, region: Any, attrs: Any) -> Any:
    """Whether a region has a size above 0 along both axes; not if that is NaN."""
    sizes = [_bin(regions, region, column, 1, attrs)[1] for column in (1, 2)]
    return tirx.all(*(size > tirx.const(0.0, str(regions.dtype)) for size in sizes))


def _filled(regions: Any, attrs: Any) -> Any:
    """The regions (R, 5), with one of a pixel in place of each one without points."""
    dtype, scale = str(regions.dtype), float(attrs.spatial_scale)

    def element(region: Any, column: Any) -> Any:
        pixel = tirx.Select(
            column < 3, tirx.const(0.0, dtype), tirx.const(1.0 / scale if scale else 0.0, dtype)
        )
        is_kept = tirx.any(column == 0, _has_points(regions, region, attrs))
        return tirx.Select(is_kept, regions[region, column], pixel)

    return te.compute(regions.shape, element, name="roi_filled")


def _of_points(builder: Any, call: Any) -> Any:
    """The result where every region has points."""
    attrs = call.attrs
    largest, plain = str(attrs.mode) == "max", str(attrs.layout) == "NCHW"
    if not largest and not (plain and int(attrs.sample_ratio) > 0):
        return Op.get("relax.vision.roi_align").get_attr("FLegalize")(builder, call)
    if not plain:
        raise ValueError(f"layout {attrs.layout} with mode max, allowed: NCHW")

    def compute(data: Any, regions: Any) -> Any:
        return (_greatest if largest else _mean)(data, regions, attrs)

    return builder.call_te(compute, *call.args, primfunc_name_hint="roi_align")


def _mean(data: Any, regions: Any, attrs: Any) -> Any:
    """The result (regions, C, rows, columns) of images (N, C, H, W) and regions (R, 5)."""
    dtype, ratio = str(regions.dtype), int(attrs.sample_ratio)
    _, channels, height, width = data.shape
    rows, columns = (int(size) for size in attrs.pooled_size)
    tops, sides = (
        _table(regions, first_column, count, extent, attrs)
        for first_column, count, extent in ((2, rows, height), (1, columns, width))
    )
    down, across = te.reduce_axis((0, ratio), "down"), te.reduce_axis((0, ratio), "across")

    def element(region: Any, channel: Any, row: Any, column: Any) -> Any:
        image = regions[region, 0].astype("int32")
        y, x = (region, row * ratio + down.var), (region, column * ratio + across.var)
        sum_of_samples = tirx.const(0.0, dtype)
        for i in (0, 1):
            line = tirx.const(0.0, dtype)
            for j in (0, 1):
                line = line + data[image, channel, tops[i](*y), sides[j](*x)] * sides[2 + j](*x)
            sum_of_samples = sum_of_samples + line * tops[2 + i](*y)
        return te.sum(sum_of_samples, axis=[down, across])

    shape = [regions.shape[0], channels, rows, columns]
    sums_of_samples = te.compute(shape, element, name="roi_sum")
    share = tirx.const(1.0 / (ratio * ratio), dtype)
    return te.compute(shape, lambda *indices: sums_of_samples(*indices) * share, name="roi_align")


def _bin(regions: Any, region: Any, first_column: int, count: int, attrs: Any) -> tuple[Any, Any]:
    """Start of a region along one axis, and the size of each of its `count` bins, in pixels of the images.

    `first_column`: the column of `regions` with the start.
    """
    scale, one = (tirx.const(value, str(regions.dtype)) for value in (float(attrs.spatial_scale), 1.0))
    start = regions[region, first_column] * scale
    size = regions[region, first_column + 2] * scale - start
    return start, (size if attrs.aligned else tirx.max(size, one)) / tirx.const(count, str(regions.dtype))


def _table(regions: Any, first_column: int, count: int, extent: Any, attrs: Any) -> list[Any]:
    """Along one axis, for each region and sampling point: both neighbours, and their weights, 0 outside.

    `first_column`: the column of `regions` with the start. `count`: bins. `extent`: the size of the images.
    """
    dtype, ratio = str(regions.dtype), int(attrs.sample_ratio)

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def place(region: Any, point: Any) -> Any:
        start, size = _bin(regions, region, first_column, count, attrs)
        cell, inner = tirx.floordiv(point, ratio), tirx.floormod(point, ratio)
        return start + cell.astype(dtype) * size + (inner.astype(dtype) + number(0.5)) * size / number(ratio)

    shape = [regions.shape[0], count * ratio]
    sample_position = te.compute(shape, place, name="roi_place")

    def held(*index: Any) -> Any:
        return tirx.min(tirx.max(sample_position(*index), number(0.0)), (extent - 1).astype(dtype))

    def kept(*index: Any) -> Any:
        inside = tirx.all(
            sample_position(*index) >= number(-1.0), sample_position(*index) <= extent.astype(dtype)
        )
        return tirx.Select(inside, number(1.0), number(0.0))

    first = te.compute(shape, lambda *index: held(*index).astype("int32"), name="roi_first")
    second = te.compute(shape, lambda *index: tirx.min(first(*index) + 1, extent - 1), name="roi_second")
    rest = te.compute(shape, lambda *i: (held(*i) - first(*i).astype(dtype)) * kept(*i), name="roi_rest")
    share = te.compute(shape, lambda *i: kept(*i) - rest(*i), name="roi_share")
    return [first, second, share, rest]


def _greatest(data: Any, regions: Any, attrs: Any) -> Any:
    """The result (regions, C, rows, columns) of images (N, C, H, W) and regions (R, 5)."""
    dtype = str(regions.dtype)
    _, channels, height, width = data.shape
    rows, columns = (int(size) for size in attrs.pooled_size)
    ratio = int(attrs.sample_ratio)

    def number(value: Any) -> Any:
        return tirx.const(value, dtype)

    def part(region: Any, low: int, count: int) -> tuple[Any, Any, Any]:
        """Along one axis: the start, the size of a bin, and the sampling points in a bin."""
        start, size = _bin(regions, region, low, count, attrs)
        points = tirx.const(ratio, "int32") if ratio > 0 else tirx.ceil(size).astype("int32")
        return start, size, points

    def neighbours(start: Any, size: Any, points: Any, cell: Any, point: Any, extent: Any) -> Any:
        """(index, weight) of the two neighbours of a sampling point along one axis; weight 0 outside."""
        step = (point.astype(dtype) + number(0.5)) * size / points.astype(dtype)
        sample_position = start + cell.astype(dtype) * size + step
        inside = tirx.all(sample_position >= number(-1.0), sample_position <= extent.astype(dtype))
        held = tirx.min(tirx.max(sample_position, number(0.0)), (extent - 1).astype(dtype))
        low = held.astype("int32")
        weight = held - low.astype(dtype)
        is_inside = tirx.Select(inside, number(1.0), number(0.0))
        high = tirx.min(low + 1, extent - 1)
        return [(low, (number(1.0) - weight) * is_inside), (high, weight * is_inside)]

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
