"""Random operators that move elements: reshapes, slices, concatenations, gathers, pads, blocks, resizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..random_graphs.drawing import FLOAT, INT32, INT64
from .elementwise import fits_memory
from .graph import INT8, INT16, QUANTISED, UINT8, Activation, TfliteGraph

IMAGES = (
    (1, 5, 7, 4),
    (2, 6, 6, 3),
    (1, 9, 8, 8),
    (1, 4, 4, 16),
    (3, 8, 3, 2),
    (1, 1, 13, 5),
    (1, 12, 12, 1),
)


def _any(graph: TfliteGraph, least: int = 0, most: int = 5, types: Sequence[str] = ()) -> Activation:
    """A value of any type, or of one of `types`, with `least` to `most` axes."""
    dtype = graph.choice.choice([graph.dtype, graph.dtype, graph.dtype, graph.dtype, INT32, INT64])
    if types and dtype not in types:
        dtype = graph.choice.choice([d for d in graph.dtypes if d in types] or [INT32])
    return graph.pick(dtype, lambda v: least <= v.rank <= most)


def _ints(graph: TfliteGraph, values: object, is_long: bool = False) -> Activation:
    """A constant of indices; is_long: of 64 bits or of 32."""
    return graph.constant(values, graph.choice.choice([INT32, INT64]) if is_long else INT32)


def reshape(graph: TfliteGraph) -> None:
    """RESHAPE: axes joined or split, with a -1 where one can be, by a constant or by its options."""
    x = _any(graph)
    shape = graph.regrouped(x.shape)
    written = list(shape)
    if shape and graph.choice.random() < 0.5:
        written[graph.choice.randrange(len(shape))] = -1
    operands = [x, _ints(graph, np.asarray(written, INT32))] if graph.choice.random() < 0.8 else [x]
    graph.add("RESHAPE", operands, [replace(x, shape=shape)], "ReshapeOptions", newShape=written)


def transpose(graph: TfliteGraph) -> None:
    """TRANSPOSE by a random permutation."""
    x = _any(graph, 2)
    perm = list(range(x.rank))
    graph.choice.shuffle(perm)
    result = replace(x, shape=tuple(x.shape[a] for a in perm))
    graph.add("TRANSPOSE", [x, _ints(graph, perm)], [result], "TransposeOptions")


def axes_of_one(graph: TfliteGraph) -> None:
    """SQUEEZE or EXPAND_DIMS."""
    x = _any(graph)
    if 1 in x.shape and graph.choice.random() < 0.5:
        ones = [a for a, size in enumerate(x.shape) if size == 1]
        chosen = graph.choice.choice([[], ones[:1], ones[-1:], ones])
        shape = tuple(s for a, s in enumerate(x.shape) if a not in (chosen or ones))
        written = [a - x.rank if graph.choice.random() < 0.4 else a for a in chosen]
        graph.add("SQUEEZE", [x], [replace(x, shape=shape)], "SqueezeOptions", squeezeDims=written)
    elif x.rank < 5:
        axis = graph.choice.randint(0, x.rank)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        written = axis - len(shape) if graph.choice.random() < 0.4 else axis
        where = graph.constant(written if graph.choice.random() < 0.5 else [written], INT32)
        graph.add("EXPAND_DIMS", [x, where], [replace(x, shape=shape)], "ExpandDimsOptions")


def cut(graph: TfliteGraph) -> None:
    """SLICE, or STRIDED_SLICE with its masks, backwards and beyond the ends."""
    x = _any(graph, 1)
    if graph.choice.random() < 0.4:
        begins = [graph.choice.randint(0, size - 1) for size in x.shape]
        sizes = [graph.choice.randint(1, size - at) for size, at in zip(x.shape, begins, strict=True)]
        written = [
            -1 if s == n - b and graph.choice.random() < 0.4 else s
            for s, n, b in zip(sizes, x.shape, begins, strict=True)
        ]
        dtype = graph.choice.choice([INT32, INT64])
        operands = [x, graph.constant(begins, dtype), graph.constant(written, dtype)]
        graph.add("SLICE", operands, [replace(x, shape=tuple(sizes))], "SliceOptions")
        return
    begin, end, step, shape = [], [], [], []
    masks = {"beginMask": 0, "endMask": 0, "shrinkAxisMask": 0, "newAxisMask": 0, "ellipsisMask": 0}
    axis, at = 0, 0
    skipped = graph.choice.choice([0, 0, 0, 1]) if x.rank > 1 else 0
    while axis < x.rank - skipped:
        how = graph.choice.choice(["cut", "cut", "all", "all", "shrink", "new", "ellipsis"])
        size = x.shape[axis]
        if how == "new" and x.rank + len(shape) < 8 and len(begin) < 5:
            masks["newAxisMask"] |= 1 << at
            one, made = (0, 1, 1), [1]
            axis -= 1
        elif how == "ellipsis" and not masks["ellipsisMask"] and not skipped and graph.choice.random() < 0.5:
            count = graph.choice.randint(1, x.rank - axis)
            # The entries after an ellipsis are those of the last axes.
            masks["ellipsisMask"] |= 1 << at
            one, made = (0, 0, 1), list(x.shape[axis : axis + count])
            axis += count - 1
        elif how == "shrink":
            masks["shrinkAxisMask"] |= 1 << at
            place = graph.choice.randint(-size, size - 1)
            one, made = (place, place + 1, 1), []
        elif how == "cut":
            first, last, stride, count = graph.section(size)
            one, made = (first, last, stride), [count]
        else:
            masks["beginMask"] |= 1 << at
            masks["endMask"] |= 1 << at
            stride = graph.choice.choice([1, 1, 2, -1])
            one, made = (0, 0, stride), [-(-size // abs(stride))]
        for values, value in zip((begin, end, step), one, strict=True):
            values.append(value)
        shape += made
        axis, at = axis + 1, at + 1
    shape += x.shape[x.rank - skipped :]
    if not all(shape) or len(shape) > 5 or len(begin) > 5:
        return
    operands = [x, *(_ints(graph, np.asarray(v, INT32)) for v in (begin, end, step))]
    graph.add("STRIDED_SLICE", operands, [replace(x, shape=tuple(shape))], "StridedSliceOptions", **masks)


def concat(graph: TfliteGraph) -> None:
    """CONCATENATION of parts of the graph, of constants, of one tensor twice; uint8 of several scales."""
    x = _any(graph, 1)
    axis = graph.choice.randrange(x.rank)
    others = [x] if graph.choice.random() < 0.2 else []
    rescaled = x.dtype == UINT8 and graph.choice.random() < 0.5
    for _ in range(graph.choice.randint(1, 3)):
        candidates = [
            v for v in graph.values
            if v.dtype == x.dtype and v.rank == x.rank
            and (rescaled or (v.scale, v.zero) == (x.scale, x.zero))
            and v.shape[:axis] == x.shape[:axis] and v.shape[axis + 1 :] == x.shape[axis + 1 :]
        ]  # fmt: skip
        size = graph.choice.choice([1, 2, x.shape[axis]])
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        is_found = graph.choice.random() < 0.6
        like = None if rescaled or x.scale is None else x
        others.append(graph.choice.choice(candidates) if is_found else graph.operand(shape, x.dtype, like))
    parts = [x, *others]
    graph.choice.shuffle(parts)
    shape = (*x.shape[:axis], sum(v.shape[axis] for v in parts), *x.shape[axis + 1 :])
    most, error = max(v.most for v in parts), max(v.error for v in parts)
    if fits_memory(shape):
        result = replace(x, shape=shape, most=most, exact=all(v.exact for v in parts), error=error)
        if rescaled:
            result = graph.result(x.dtype, shape, most, error, True)
        written = axis - x.rank if graph.choice.random() < 0.3 else axis
        graph.add("CONCATENATION", parts, [result], "ConcatenationOptions", axis=written)


def split(graph: TfliteGraph) -> None:
    """SPLIT, SPLIT_V and UNPACK."""
    x = _any(graph, 1, types=(FLOAT, *QUANTISED, INT32))
    axis = graph.choice.randrange(x.rank)
    size, given = x.shape[axis], axis - x.rank if graph.choice.random() < 0.3 else axis
    if size == 1 or size > 17:
        return

    def part(count: int) -> Activation:
        return replace(x, shape=(*x.shape[:axis], count, *x.shape[axis + 1 :]))

    way = graph.choice.choice(["SPLIT", "SPLIT_V", "UNPACK"])
    if way == "UNPACK" and size < 6:
        result = [replace(x, shape=(*x.shape[:axis], *x.shape[axis + 1 :])) for _ in range(size)]
        graph.add(way, [x], result, "UnpackOptions", num=size, axis=given)
    elif way == "SPLIT":
        number = graph.choice.choice([n for n in range(2, size + 1) if size % n == 0])
        result = [part(size // number) for _ in range(number)]
        graph.add(way, [_ints(graph, given), x], result, "SplitOptions", numSplits=number)
    elif way == "SPLIT_V":
        first = graph.choice.randint(1, size - 1)
        sizes = [first, size - first]
        written = [first, -1] if graph.choice.random() < 0.3 else sizes
        inputs = [x, _ints(graph, written), _ints(graph, given)]
        graph.add(way, inputs, [part(s) for s in sizes], "SplitVOptions", numSplits=2)


def pack(graph: TfliteGraph) -> None:
    """PACK of two or three tensors of a shape."""
    x = _any(graph, 0, 4, (FLOAT, *QUANTISED, INT32, INT64))
    like = x if x.dtype in QUANTISED else None
    parts = [x, *(graph.operand(x.shape, x.dtype, like) for _ in range(graph.choice.randint(1, 2)))]
    graph.choice.shuffle(parts)
    axis = graph.choice.randint(0, x.rank)
    shape = (*x.shape[:axis], len(parts), *x.shape[axis:])
    result = replace(
        x, shape=shape, most=max(v.most for v in parts), exact=all(v.exact for v in parts),
        error=max(v.error for v in parts),
    )  # fmt: skip
    written = axis - len(shape) if graph.choice.random() < 0.3 else axis
    graph.add("PACK", parts, [result], "PackOptions", axis=written, valuesCount=len(parts))


def pad(graph: TfliteGraph) -> None:
    """PAD, PADV2 with a value, MIRROR_PAD in both modes."""
    name = graph.choice.choice(["PAD", "PADV2", "MIRROR_PAD"])
    x = _any(graph, 1, 5 if name != "MIRROR_PAD" else 4)
    mode = graph.choice.choice([0, 1])
    most = [s - 1 + mode if name == "MIRROR_PAD" else 3 for s in x.shape]
    amounts = [[graph.choice.choice([0, 0, min(1, m), min(2, m)]) for _ in range(2)] for m in most]
    shape = tuple(s + a + b for s, (a, b) in zip(x.shape, amounts, strict=True))
    if not fits_memory(shape):
        return
    operands = [x, _ints(graph, amounts, True)]
    if name == "PADV2":
        value = graph.contents(x.dtype, (), 3.0)
        operands.append(graph.constant(value, x.dtype, x.scale, x.zero))
    options = {"mode": mode} if name == "MIRROR_PAD" else {}
    table = {"PAD": "PadOptions", "PADV2": "PadV2Options", "MIRROR_PAD": "MirrorPadOptions"}[name]
    graph.add(name, operands, [replace(x, shape=shape, most=max(x.most, 3.0))], table, **options)


def repeated(graph: TfliteGraph) -> None:
    """TILE, BROADCAST_TO or REVERSE_V2."""
    x = _any(graph, 1, 4)
    name = graph.choice.choice(["TILE", "BROADCAST_TO", "REVERSE_V2"])
    if name == "REVERSE_V2":
        first = graph.choice.randrange(x.rank)
        axes = list(range(first, graph.choice.randint(first + 1, x.rank)))  # LiteRT takes neighbours only
        graph.add(name, [x, _ints(graph, axes)], [x], "ReverseV2Options")
        return
    if name == "TILE":
        counts = [graph.choice.choice([1, 1, 2, 3]) for _ in x.shape]
        shape = tuple(size * count for size, count in zip(x.shape, counts, strict=True))
    else:
        grown = [graph.choice.choice([1, 2, 5]) if size == 1 else size for size in x.shape]
        shape = (*([graph.choice.choice([1, 2, 3])] if graph.choice.random() < 0.3 else []), *grown)
        counts = list(shape)
    if fits_memory(shape):
        table = "TileOptions" if name == "TILE" else "BroadcastToOptions"
        graph.add(name, [x, _ints(graph, counts, True)], [replace(x, shape=shape)], table)


def gather(graph: TfliteGraph) -> None:
    """GATHER along an axis, after batch axes, or GATHER_ND; by constants or inputs."""
    x = _any(graph, 1)
    axis = graph.choice.randrange(x.rank)
    if graph.choice.random() < 0.3:
        depth = graph.choice.randint(1, min(x.rank, 3))
        columns = [graph.data.integers(0, s, (4,)) for s in x.shape[:depth]]
        result = replace(x, shape=(4, *x.shape[depth:]))
        if fits_memory(result.shape):
            graph.add(
                "GATHER_ND", [x, _ints(graph, np.stack(columns, -1), True)], [result], "GatherNdOptions"
            )
        return
    batch = graph.choice.choice([0, 0, 0, axis])
    indices = (*x.shape[:batch], *graph.choice.choice([(), (1,), (3,), (2, 3)]))
    shape = (*x.shape[:axis], *indices[batch:], *x.shape[axis + 1 :])
    if len(shape) > 5 or not fits_memory(shape):
        return
    values = graph.data.integers(0, x.shape[axis], indices).astype(graph.choice.choice([INT32, INT64]))
    where = graph.constant(values, str(values.dtype))
    options = {"axis": axis - x.rank if graph.choice.random() < 0.3 else axis, "batchDims": batch}
    graph.add("GATHER", [x, where], [replace(x, shape=shape)], "GatherOptions", **options)


def blocks(graph: TfliteGraph) -> None:
    """SPACE_TO_DEPTH, DEPTH_TO_SPACE, SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND."""
    name = graph.choice.choice(["SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"])
    types = (FLOAT, INT8, UINT8) if "DEPTH" in name else (FLOAT, *QUANTISED)
    dtype = graph.choice.choice([d for d in graph.dtypes if d in types] or [INT32])
    size = graph.choice.choice([2, 2, 3])
    n, h, w, c = (
        graph.choice.choice([1, 2]),
        graph.choice.randint(1, 3),
        graph.choice.randint(1, 4),
        graph.choice.randint(1, 3),
    )
    if name == "SPACE_TO_DEPTH":
        x = graph.operand((n, h * size, w * size, c), dtype)
        result = replace(x, shape=(n, h, w, c * size * size))
        graph.add(name, [x], [result], "SpaceToDepthOptions", blockSize=size)
    elif name == "DEPTH_TO_SPACE":
        x = graph.operand((n, h, w, c * size * size), dtype)
        result = replace(x, shape=(n, h * size, w * size, c))
        graph.add(name, [x], [result], "DepthToSpaceOptions", blockSize=size)
    else:
        other = graph.choice.choice([1, 2])
        a, b = graph.choice.randint(0, 1), graph.choice.randint(0, 1)
        amounts = [[a, 0], [0, b]]
        batch = n * size * other
        long, wide = h * size, w * other
        if name == "SPACE_TO_BATCH_ND":
            if long <= a or wide <= b:
                return
            x = graph.operand((n, long - a, wide - b, c), dtype)
            result = replace(x, shape=(batch, h, w, c))
        else:
            if long <= a or wide <= b:
                return
            x = graph.operand((batch, h, w, c), dtype)
            result = replace(x, shape=(n, long - a, wide - b, c))
        table = "SpaceToBatchNDOptions" if name == "SPACE_TO_BATCH_ND" else "BatchToSpaceNDOptions"
        graph.add(name, [x, _ints(graph, [size, other]), _ints(graph, amounts)], [result], table)


def resize(graph: TfliteGraph) -> None:
    """RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR to a size, in all ways to place the corners."""
    x = graph.pick(graph.dtype, lambda v: v.rank == 4, IMAGES)
    n, h, w, c = x.shape
    sizes = tuple(graph.choice.choice([2, s, 2 * s, s + 1, 3 * s - 1]) for s in (h, w))
    if not fits_memory((n, *sizes, c)):
        return
    align, half = graph.choice.choice([(False, False), (True, False), (False, True)])
    name = graph.choice.choice(["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
    result = replace(x, shape=(n, *sizes, c))
    if name == "RESIZE_BILINEAR":
        result = replace(result, exact=x.dtype != FLOAT)
        if x.dtype == INT16 and x.error:
            result = graph.rounded(result)
        if x.dtype in (INT8, UINT8):
            # LiteRT's steps along an axis are multiples of 2^-10: its places are so far off at the end.
            off = sum((size + 1) * 2**-11 for size in sizes)
            result = graph.rounded(result, 1 + off * float(np.iinfo(x.dtype).max - np.iinfo(x.dtype).min))
    table = "ResizeBilinearOptions" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    graph.add(name, [x, _ints(graph, sizes)], [result], table, alignCorners=align, halfPixelCenters=half)


ALL: tuple[Callable[[TfliteGraph], None], ...] = (
    reshape, reshape, transpose, transpose, axes_of_one, cut, cut, cut, concat, concat, split, split, pack,
    pad, pad, repeated, gather, gather, blocks, resize,
)  # fmt: skip
