"""interface: stage that merges the interface.json files of a model's buckets into one for the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kiln.config import sizes
from kiln.config.boxes import BoxList
from kiln.config.dims import Segment
from kiln.config.interface import CountedDimension, Interface, PortRecord
from kiln.config.model import Tensor
from kiln.config.records import read
from kiln.config.sizes import SizeExpr
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.stages.model import InterfaceStage

# The sizes that a bucket accepts, by dimension.
_Ranges = Mapping[str, Segment]


def run(args: InterfaceStage) -> None:
    """Write the interface of the model, which is valid in every bucket."""
    interfaces = [read(Interface, path) for path in args.interfaces]
    merged = merge(interfaces, read(BoxList, args.buckets), read(ImportConfig, args.config))
    write_json(args.out, merged.model_dump())


def merge(interfaces: Sequence[Interface], buckets: BoxList, config: ImportConfig) -> Interface:
    """Merge interfaces into one whose shapes are size expressions of the dimensions.

    Shapes of inputs name the dimensions in every bucket. The axis of an output is a number in a bucket that
    was imported with fixed sizes. The expression that gives the right number in all buckets comes from the
    model's configuration, from a bucket with dynamic shapes, or from a search over a*n, n//a, n+a, n-a and
    a*n*m. Raises KilnError, naming the input or output, if no expression fits all buckets or if the number
    of axes differs between buckets.
    """
    first = interfaces[0]
    dims = [dim for dim in buckets.dims if dim.min != dim.max]
    dynamic_dims = {dim.name for dim in dims}
    boxes: list[_Ranges] = [box.dims for box in buckets.buckets]
    counted = _counted(interfaces, boxes, dynamic_dims)
    boxes = [_with_counted(box, interface.counted) for box, interface in zip(boxes, interfaces, strict=True)]
    dynamic_dims |= {counted_dim.name for counted_dim in counted}
    fixed = {dim.name: dim.min for dim in buckets.dims if dim.min == dim.max}

    def ports(
        side: str, ports_of: Callable[[Interface], Sequence[PortRecord]], configured: Mapping[str, Tensor]
    ) -> list[PortRecord]:
        merged = []
        for index, port in enumerate(ports_of(first)):
            shapes = [ports_of(interface)[index].shape for interface in interfaces]
            declared = configured[port.name].shape if port.name in configured else None
            name = f"{first.model}: {side} '{port.name}'"
            shape = _shape(name, shapes, boxes, dynamic_dims, fixed, declared)
            merged.append(port.model_copy(update={"shape": shape}))
        return merged

    return first.model_copy(
        update={
            "inputs": ports("input", lambda interface: interface.inputs, config.inputs),
            "outputs": ports("output", lambda interface: interface.outputs, config.outputs),
            "dims": dims,
            "counted": counted,
        }
    )


def _counted(
    interfaces: Sequence[Interface], boxes: Sequence[_Ranges], dynamic_dims: set[str]
) -> list[CountedDimension]:
    """The sizes that a run counts, with bounds that are right in every bucket.

    Raises KilnError where a size is counted in some buckets only, and as `_shape` for a bound.
    """
    model, merged = interfaces[0].model, list[CountedDimension]()
    by_name = [
        {counted_dim.name: counted_dim for counted_dim in interface.counted} for interface in interfaces
    ]
    for name in dict.fromkeys(name for by_name_of_bucket in by_name for name in by_name_of_bucket):
        rows = [by_name_of_bucket[name] for by_name_of_bucket in by_name if name in by_name_of_bucket]
        tensor = rows[0].tensor
        if len(rows) < len(by_name):
            raise KilnError(
                f"{model}: tensor '{tensor}' has a size that is in the data in some buckets only: leave out "
                "the buckets of one size"
            )
        bounds = [[counted_dim.bound] for counted_dim in rows]
        about = f"{model}: the bound of tensor '{tensor}',"
        before = {counted_dim.name for counted_dim in merged}  # a bound may be a size that is counted before
        inner = [
            _with_counted(
                box, [counted_dim for counted_dim in by_name_of_bucket.values() if counted_dim.name in before]
            )
            for box, by_name_of_bucket in zip(boxes, by_name, strict=True)
        ]
        (bound,) = _shape(about, bounds, inner, dynamic_dims | before, {}, None)
        merged.append(CountedDimension(name=name, tensor=tensor, bound=bound))
    return merged


def _with_counted(box: _Ranges, counted: Sequence[CountedDimension]) -> _Ranges:
    """The dimensions of a bucket, and the sizes that a run counts there: from 1 to their bounds."""
    ranges = dict(box)
    for counted_dim in counted:
        greatest = {name: segment.size or segment.max for name, segment in ranges.items()}
        bound = sizes.evaluate(counted_dim.bound, greatest)
        ranges[counted_dim.name] = Segment(strategy="dynamic", min=min(1, bound), max=bound, multiple=1)
    return ranges


def _shape(
    name: str,
    shapes: Sequence[Sequence[SizeExpr]],
    boxes: Sequence[_Ranges],
    dynamic_dims: set[str],
    fixed: Mapping[str, int],
    declared: Sequence[Any] | None,
) -> list[SizeExpr]:
    """The shape of one input or output, as size expressions that are right in every bucket.

    name: for errors. shapes: that of each bucket. boxes: the dimensions of each bucket. fixed:
    by dimension that is not dynamic, its size. declared: shape in the model's configuration, if any. Raises
    KilnError for different numbers of axes, and for an axis that no candidate expression fits.
    """
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1:
        raise KilnError(f"{name} has {' and '.join(map(str, sorted(ranks)))} axes, depending on the bucket")
    shape_sizes = []
    for axis in range(ranks.pop()):
        sizes_in_buckets = [shape[axis] for shape in shapes]
        declared_size = declared[axis] if declared is not None else None
        likely = [*([] if declared_size is None else [declared_size]), *_padded_to(sizes_in_buckets, boxes)]
        candidates = itertools.chain(likely, _distinct(sizes_in_buckets), _simple(sizes_in_buckets, boxes))
        for expr in candidates:
            expr = fixed.get(expr, expr) if isinstance(expr, str) else expr
            if sizes.names(expr) <= dynamic_dims and _fits(expr, sizes_in_buckets, boxes):
                shape_sizes.append(expr)
                break
        else:
            distinct = ", ".join(sizes.show(size) for size in _distinct(sizes_in_buckets))
            raise KilnError(
                f"{name} axis {axis} is {distinct} in its buckets, which no simple expression of "
                f"{', '.join(sorted(dynamic_dims))} gives; "
                "add a bucket of strategy range, or let the fallback be dynamic"
            )
    return shape_sizes


def _padded_to(sizes_in_buckets: Sequence[Any], boxes: Sequence[_Ranges]) -> list[str]:
    """Dimensions that every bucket pads to one and the same size, which is the axis's: its likely meaning.

    A single size cannot tell the dimension from a constant; the golden vectors find a wrong guess.
    """
    return [
        name
        for name, segment in boxes[0].items()
        if all(box[name].strategy == "pad" and box[name].size == segment.size for box in boxes)
        and all(size == segment.size for size in sizes_in_buckets)
    ]


def _distinct(sizes_in_buckets: Sequence[Any]) -> list[Any]:
    distinct: list[Any] = []
    for size in sizes_in_buckets:
        if size not in distinct:
            distinct.append(size)
    # Expressions first: a number that is right in one bucket may be wrong in the others.
    return sorted(distinct, key=lambda size: isinstance(size, int))


def _points(box: _Ranges, dims: Collection[str]) -> Iterator[dict[str, int]]:
    """The sizes of `dims` at which a bucket is checked.

    A dimension with a fixed size contributes this size, any other dimension its min and its max.
    """
    segments = {name: box[name] for name in sorted(dims)}
    ends = [
        [segment.size] if segment.size is not None else [segment.min, segment.max]
        for segment in segments.values()
    ]
    return (dict(zip(segments, corner, strict=True)) for corner in itertools.product(*ends))


def _fits(expr: Any, sizes_in_buckets: Sequence[Any], boxes: Sequence[_Ranges]) -> bool:
    return all(
        sizes.evaluate(expr, point) == sizes.evaluate(size, point)
        for size, box in zip(sizes_in_buckets, boxes, strict=True)
        for point in _points(box, sizes.names(expr) | sizes.names(size))
    )


def _simple(sizes_in_buckets: Sequence[Any], boxes: Sequence[_Ranges]) -> Iterator[Any]:
    """Candidate expressions of common forms, each with the constant that fits the first bucket."""
    names = list(boxes[0])
    point = next(_points(boxes[0], names))
    value = sizes.evaluate(sizes_in_buckets[0], point)
    yield from names
    for name in names:
        size = point[name]
        if value % size == 0:
            yield ["*", name, value // size]
        if value and size % value == 0:
            yield ["//", name, size // value]
        if value > size:
            yield ["+", name, value - size]
        if value < size:
            yield ["-", name, size - value]
    for left, right in itertools.combinations(names, 2):
        product = point[left] * point[right]
        if value % product == 0:
            yield ["*", ["*", left, right], value // product]
