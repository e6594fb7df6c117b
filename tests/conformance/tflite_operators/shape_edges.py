"""More cases of operators that move or reduce elements: axes, index types, masks, ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import FLOAT, INT8, case, data, held, result


def _reduced(d: str) -> Iterator[OperatorCase]:
    """Reductions over the last axis, one that is named twice, a scalar, none and all."""
    y = [result(d)]
    x4 = data(2, 3, 4, 2, dtype=d)
    for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
        kernels = "BUILTIN" if name == "SUM" and d == INT8 else "BUILTIN_REF"
        for label, axes in {"last": [-1], "twice": [1, -2], "scalar": 1, "image": [1, 2], "none": []}.items():
            for keep in (False, True):
                yield case(
                    name, f"{d}_{label}{keep}", [x4, held(axes)], [result(d, 2)], "ReducerOptions",
                    keepDims=keep, kernels_=kernels, levels_=2.5,
                )  # fmt: skip
        yield case(name, f"{d}_vector", [data(5, dtype=d), held([0])], y, "ReducerOptions", kernels_=kernels)
        yield case(
            name, f"{d}_rank5", [data(2, 1, 2, 2, 3, dtype=d), held([0, 3])], y, "ReducerOptions",
            kernels_=kernels,
        )  # fmt: skip


def _along(d: str) -> Iterator[OperatorCase]:
    """Operators along axes that count from either end."""
    y = [result(d)]
    x = data(2, 3, 4, dtype=d, low=-2, high=2)
    for axis in (-1, -3, 0):
        yield case("CONCATENATION", f"{d}{axis}", [x, x], y, "ConcatenationOptions", axis=axis)
        yield case("PACK", f"{d}{axis}", [x, x, x], y, "PackOptions", axis=axis, valuesCount=3)
        yield case(
            "UNPACK", f"{d}{axis}", [x], y * x.array.shape[axis], "UnpackOptions", num=x.array.shape[axis],
            axis=axis,
        )  # fmt: skip
        yield case("SPLIT", f"{d}{axis}", [held(axis), x], y * 2, "SplitOptions", numSplits=2)
        yield case("GATHER", f"{d}{axis}", [x, held(1)], y, "GatherOptions", axis=axis)
        yield case("GATHER", f"{d}{axis}_int64", [x, held([[1, 0]], "int64")], y, "GatherOptions", axis=axis)
        yield case("CUMSUM", f"{d}{axis}", [x, held(axis)], y, "CumsumOptions", exclusive=True)
        yield case("EXPAND_DIMS", f"{d}{axis}_int64", [x, held(axis, "int64")], y, "ExpandDimsOptions")
        yield case(
            "ARG_MAX", f"{d}{axis}_int64", [x, held(axis, "int64")], [Result("int32")], "ArgMaxOptions",
            outputType=2,
        )  # fmt: skip
        yield case(
            "ARG_MIN", f"{d}{axis}_ties", [Operand(np.ones((2, 3, 2), d)), held(axis)], [Result("int64")],
            "ArgMinOptions", outputType=4,
        )  # fmt: skip
        yield case("REVERSE_V2", f"{d}{axis}", [x, held([axis])], y, "ReverseV2Options")
        hot = Operand(np.array([[2, 0], [-1, 7]], "int64" if axis else "int32"))
        yield case(
            "ONE_HOT", f"{d}{axis}", [hot, held(4), held(3, d), held(1, d)], [Result(d)], "OneHotOptions",
            axis=axis if axis != -3 else 1,
        )  # fmt: skip


def _ties(d: str) -> Iterator[OperatorCase]:
    """Equal elements, scalars and reversed parts."""
    y = [result(d)]
    x = data(2, 3, 4, dtype=d, low=-2, high=2)
    yield case(
        "ARG_MAX", f"{d}_ties", [Operand(np.ones((2, 3), d)), held(1)], [Result("int32")], "ArgMaxOptions",
        outputType=2,
    )  # fmt: skip
    yield case(
        "PACK", f"{d}_scalars", [data(dtype=d), data(dtype=d, seed=3)], y, "PackOptions", axis=0,
        valuesCount=2,
    )  # fmt: skip
    # Of two axes LiteRT takes neighbours alone.
    yield case("REVERSE_V2", f"{d}_two", [x, held([1, 2])], y, "ReverseV2Options")
    yield case(
        "REVERSE_SEQUENCE", f"{d}_long", [x, held([4, 1, 2], "int64")], y, "ReverseSequenceOptions",
        seqDim=2, batchDim=1,
    )  # fmt: skip


def _gathered(d: str) -> Iterator[OperatorCase]:
    """Batches, types and ranks of the indices of GATHER and GATHER_ND."""
    y = [result(d)]
    x = data(2, 3, 4, dtype=d, low=-2, high=2)
    for batch, axis in ((1, 1), (1, 2), (2, 2), (-1, 2), (-2, 1), (1, -1)):
        operands = [data(2, 3, 4, dtype=d), Operand(np.array([[1, 0, 2], [0, 2, 1]], "int32"))]
        yield case(
            "GATHER", f"{d}_batch{batch}{axis}", operands, y, "GatherOptions", axis=axis, batchDims=batch
        )
    for t in ("int64", "int16"):
        yield case(
            "GATHER_ND", f"{d}_{t}", [x, Operand(np.array([[[1, 2]], [[0, 0]]], t))], y, "GatherNdOptions"
        )
        yield case("GATHER", f"{d}_{t}", [x, Operand(np.array([1, 0], t))], y, "GatherOptions", axis=1)
    yield case("GATHER_ND", f"{d}_whole", [x, held([[1], [0]])], y, "GatherNdOptions")
    yield case("GATHER_ND", f"{d}_elements", [x, held([1, 2, 3])], y, "GatherNdOptions")


def _scattered(d: str) -> Iterator[OperatorCase]:
    """Indices that occur twice or have 64 bits, dimensions that SQUEEZE leaves out."""
    y = [result(d)]
    add = [held([[1], [3], [1]]), data(3, 4, dtype=d), held([5, 4])]
    yield case("SCATTER_ND", f"{d}_twice", add, y, "ScatterNdOptions")
    add = [held([[[1, 0]], [[0, 3]]], "int64"), data(2, 1, dtype=d), held([2, 4], "int64")]
    yield case("SCATTER_ND", f"{d}_int64", add, y, "ScatterNdOptions")
    for dims in ([], [-1], [1, -1], [0]):
        shape = (1, 1, 3, 1)
        yield case(
            "SQUEEZE", f"{d}_{len(dims)}_{sum(dims)}", [data(*shape, dtype=d)], y, "SqueezeOptions",
            squeezeDims=dims,
        )  # fmt: skip
    for label, indices, shape in (("scalar", 2, [4]), ("vector", [0, 2], [4])):
        value = Operand(np.array(5, d)) if label == "scalar" else Operand(np.array([5, 6], d))
        yield case(
            "SPARSE_TO_DENSE", f"{d}_{label}", [held(indices), held(shape), value, held(1, d)], [Result(d)],
            "SparseToDenseOptions",
        )  # fmt: skip


def _greatest(d: str) -> Iterator[OperatorCase]:
    """TOPK_V2 of equal elements and of a vector."""
    yield case(
        "TOPK_V2", f"{d}_ties", [Operand(np.array([[1, 3, 3, 2, 1]], d)), held(4)],
        [Result(d), Result("int32")], "TopKV2Options",
    )  # fmt: skip
    yield case(
        "TOPK_V2", f"{d}_vector", [data(6, dtype=d), held(2)], [result(d), Result("int16")], "TopKV2Options"
    )


def _reshaped(d: str) -> Iterator[OperatorCase]:
    """Shapes with -1, as an input and as an option, and orders of up to 6 axes."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    for label, shape in {"rest": [-1, 4], "flat": [-1], "five": [2, 1, 3, 2, 2]}.items():
        yield case("RESHAPE", f"{d}_{label}", [x, held(shape)], y, "ReshapeOptions", newShape=shape)
        yield case("RESHAPE", f"{d}_{label}_option", [x], y, "ReshapeOptions", newShape=shape)
        yield case("RESHAPE", f"{d}_{label}_alone", [x, held(shape)], y)
    yield case("RESHAPE", f"{d}_scalar", [data(1, dtype=d), held(np.zeros(0))], y)
    for order in ([1, 0], [0, 2, 1], [3, 1, 0, 2], [4, 0, 3, 1, 2], [5, 0, 3, 1, 4, 2]):
        shape = range(2, 2 + len(order)) if len(order) < 5 else [1, 2, 3, 2, 2, 1][: len(order)]
        yield case(
            "TRANSPOSE", f"{d}_{len(order)}", [data(*shape, dtype=d), held(order)], y, "TransposeOptions"
        )
    yield case("TRANSPOSE", f"{d}_negative", [x, held([-1, 0, 1])], y, "TransposeOptions")


def _strided(d: str) -> Iterator[OperatorCase]:
    """Masks of STRIDED_SLICE, limits beyond the ends, negative steps."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    masks = {
        "ellipsis": ({"ellipsisMask": 1}, [0, 1], [0, 3], [1, 1]),
        "middle": ({"ellipsisMask": 2}, [1, 0, 1], [2, 0, 3], [1, 1, 1]),
        "axis": ({"newAxisMask": 1}, [0, 0, 1], [0, 2, 3], [1, 1, 1]),
        "axes": ({"newAxisMask": 5}, [0, 0, 0, 1], [0, 2, 0, 3], [1, 1, 1, 1]),
        "both": ({"newAxisMask": 4, "ellipsisMask": 2}, [0, 0, 0, 1], [1, 0, 0, 3], [1, 1, 1, 1]),
        "shrink_back": ({"shrinkAxisMask": 5}, [-1, 0, -2], [0, 3, 0], [1, 1, 1]),
        "shrinkall": ({"shrinkAxisMask": 7}, [1, 2, 3], [2, 3, 4], [1, 1, 1]),
        "offset": ({"offset": True}, [0, 1, 1], [2, 2, 2], [1, 1, 1]),
        "beyond": ({}, [-9, 1, 0], [9, 9, 9], [1, 1, 3]),
        "back": ({}, [1, -1, -1], [-9, 0, -9], [-1, -1, -2]),
        "short": ({}, [1], [2], [1]),
        "shortback": ({"endMask": 1}, [-1], [0], [-1]),
    }
    for label, (options, begin, end, step) in masks.items():
        yield case(
            "STRIDED_SLICE", f"{d}_{label}", [x, held(begin), held(end), held(step)], y,
            "StridedSliceOptions", **options,
        )  # fmt: skip


def _padded(d: str) -> Iterator[OperatorCase]:
    """Slices, paddings, tiles and shapes of 64 bits, and of 1, 5 and 6 axes."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    long = [held(values, "int64") for values in ([0, 1, 1], [1, -1, 2])]
    yield case("SLICE", f"{d}_int64", [x, *long], y, "SliceOptions")
    five = data(2, 1, 2, 3, 2, dtype=d)
    yield case("SLICE", f"{d}_five", [five, held([1, 0, 0, 1, 0]), held([1, 1, -1, 2, 1])], y, "SliceOptions")
    pads = [[1, 0], [0, 0], [0, 1], [2, 0], [0, 1]]
    yield case("PAD", f"{d}_five", [five, held(pads)], y, "PadOptions")
    yield case("PAD", f"{d}_int64", [x, held(pads[:3], "int64")], y, "PadOptions")
    yield case("PAD", f"{d}_vector", [data(4, dtype=d), held([[2, 1]])], y, "PadOptions")
    yield case(
        "MIRROR_PAD", f"{d}_int64", [x, held([[1, 1], [0, 2], [1, 0]], "int64")], y, "MirrorPadOptions",
        mode=0,
    )  # fmt: skip
    yield case("TILE", f"{d}_int64", [x, held([2, 1, 3], "int64")], y, "TileOptions")
    yield case("TILE", f"{d}_vector", [data(3, dtype=d), held([2])], y, "TileOptions")
    yield case(
        "BROADCAST_TO", f"{d}_six", [data(2, 1, 3, dtype=d), held([1, 2, 2, 2, 2, 3], "int64")], y,
        "BroadcastToOptions",
    )  # fmt: skip
    yield case(
        "FILL", f"{d}_int64", [held([2, 3], "int64"), held(np.array(1), d)], [Result(d)], "FillOptions"
    )
    yield case(
        "SPLIT_V", f"{d}_int64", [x, held([1, 2, 1], "int64"), held(2)], y * 3, "SplitVOptions", numSplits=3
    )


def _blocks(d: str) -> Iterator[OperatorCase]:
    """Blocks of 3 axes, of uneven sides and of three elements."""
    y = [result(d)]
    yield case("SPACE_TO_BATCH_ND", f"{d}_rank3", [data(1, 6, 2, dtype=d), held([2]), held([[1, 1]])], y)
    yield case("BATCH_TO_SPACE_ND", f"{d}_rank3", [data(4, 3, 2, dtype=d), held([2]), held([[1, 0]])], y)
    yield case(
        "SPACE_TO_BATCH_ND", f"{d}_uneven",
        [data(2, 4, 3, 2, dtype=d), held([2, 3]), held([[0, 0], [2, 1]])], y,
    )  # fmt: skip
    yield case(
        "BATCH_TO_SPACE_ND", f"{d}_uneven",
        [data(6, 2, 3, 1, dtype=d), held([3, 2]), held([[1, 2], [0, 1]])], y,
    )  # fmt: skip
    yield case(
        "DEPTH_TO_SPACE", f"{d}_three", [data(2, 1, 2, 18, dtype=d)], y, "DepthToSpaceOptions", blockSize=3
    )
    yield case(
        "SPACE_TO_DEPTH", f"{d}_three", [data(2, 3, 6, 2, dtype=d)], y, "SpaceToDepthOptions", blockSize=3
    )


def _images(d: str) -> Iterator[OperatorCase]:
    """Sizes and coordinates of resized images, diagonals, updated slices and dilated matrices."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    if d != "bool":  # LiteRT loses elements
        yield case("MATRIX_DIAG", f"{d}_vector", [data(3, dtype=d)], y, "MatrixDiagOptions")
        wide = [data(2, 4, dtype=d), data(2, dtype=d, seed=3)]
        yield case("MATRIX_SET_DIAG", f"{d}_wide", wide, y, "MatrixSetDiagOptions")
    for name, table in (
        ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    ):
        for size in ([7, 9], [2, 3], [1, 1], [1, 3], [4, 1], [4, 5]):
            for align, half in ((False, False), (True, False), (False, True)):
                yield case(
                    name, f"{d}_{size[0]}x{size[1]}_{align}_{half}", [data(2, 4, 5, 3, dtype=d), held(size)],
                    y, table, alignCorners=align, halfPixelCenters=half,
                )  # fmt: skip
    yield case(
        "DYNAMIC_UPDATE_SLICE", f"{d}_int64",
        [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([-1, 9, 1], "int64"))], y,
    )  # fmt: skip
    yield case("DILATE", f"{d}_two", [data(3, 2, dtype=d), held([2, 3]), held(1, d)], y)


def cases_of_axes() -> Iterator[OperatorCase]:
    """Axes that count from the end, of several types, none, all, and the same one twice."""
    for d in (FLOAT, INT8, "int64"):
        for group in (_reduced, _along, _ties, _gathered, _scattered, _greatest):
            yield from group(d)


def cases_of_shapes() -> Iterator[OperatorCase]:
    """Shapes and places: masks of STRIDED_SLICE, shapes with -1, paddings of 64 bits, up to 6 axes."""
    for d in (FLOAT, INT8, "bool"):
        for group in (_reshaped, _strided, _padded, _blocks, _images):
            yield from group(d)
