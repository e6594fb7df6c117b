"""Cases of operators that move elements, or change their type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import FLOAT, INT16, SCALES, TYPES, case, data, draw, held, result

_MOVED = (*TYPES, "bool")


def _reshaped(d: str) -> Iterator[OperatorCase]:
    """RESHAPE, EXPAND_DIMS, SQUEEZE and TRANSPOSE."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    yield case("RESHAPE", d, [x, held([6, 4])], y, "ReshapeOptions", newShape=[6, 4])
    yield case("EXPAND_DIMS", d, [x, held([1])], y, "ExpandDimsOptions")
    yield case("EXPAND_DIMS", f"{d}_last", [x, held([-1])], y, "ExpandDimsOptions")
    yield case("SQUEEZE", d, [data(2, 1, 3, 1, dtype=d)], y, "SqueezeOptions", squeezeDims=[1])
    yield case("TRANSPOSE", d, [x, held([2, 0, 1])], y, "TransposeOptions")


def _sliced(d: str) -> Iterator[OperatorCase]:
    """SLICE and STRIDED_SLICE, and operators that split tensors or join them."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    yield case("SLICE", d, [x, held([0, 1, 1]), held([2, -1, 2])], y, "SliceOptions", shape_=(2, 2, 2))
    yield case(
        "STRIDED_SLICE", d, [x, held([0, 2, 3]), held([2, 0, 0]), held([1, -1, -2])], y,
        "StridedSliceOptions", endMask=4, beginMask=1,
    )  # fmt: skip
    yield case(
        "STRIDED_SLICE", f"{d}_shrink", [x, held([0, 1, 1]), held([2, 2, 4]), held([1, 1, 2])], y,
        "StridedSliceOptions", shrinkAxisMask=2,
    )  # fmt: skip
    yield case("SPLIT", d, [held(2), x], y * 2, "SplitOptions", numSplits=2)
    yield case("SPLIT_V", d, [x, held([1, 3]), held(2)], y * 2, "SplitVOptions", numSplits=2)
    yield case("SPLIT_V", f"{d}_rest", [x, held([2, -1]), held(-2)], y * 2, "SplitVOptions", numSplits=2)
    yield case("PACK", d, [x, data(2, 3, 4, dtype=d, seed=3)], y, "PackOptions", axis=1, valuesCount=2)
    yield case("UNPACK", d, [x], y * 3, "UnpackOptions", num=3, axis=1)
    yield case("CONCATENATION", d, [x, data(2, 1, 4, dtype=d)], y, "ConcatenationOptions", axis=1)
    yield case("TILE", d, [x, held([1, 2, 2])], y, "TileOptions")


def _filled(d: str) -> Iterator[OperatorCase]:
    """PAD and its kin, REVERSE_V2, REVERSE_SEQUENCE, BROADCAST_TO and FILL."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    yield case("PAD", d, [x, held([[0, 1], [1, 0], [2, 1]])], y, "PadOptions")
    fill = held(np.array(1), d, *SCALES.get(d, (None, 0)))
    yield case("PADV2", d, [x, held([[0, 1], [1, 0], [2, 1]]), fill], y, "PadV2Options")
    for mode in (0, 1):
        yield case(
            "MIRROR_PAD", f"{d}_{mode}", [x, held([[0, 1], [1, 0], [2, 1]])], y, "MirrorPadOptions",
            mode=mode,
        )  # fmt: skip
    yield case("REVERSE_V2", d, [x, held([1])], y, "ReverseV2Options")
    yield case(
        "REVERSE_SEQUENCE", d, [x, held([2, 1], "int32")], y, "ReverseSequenceOptions", seqDim=1, batchDim=0
    )
    yield case("BROADCAST_TO", d, [data(3, 1, dtype=d), held([2, 3, 4])], y, "BroadcastToOptions")
    yield case("FILL", d, [held([2, 3]), fill], y, "FillOptions")
    yield case(
        "FILL", f"{d}_data",
        [held([2, 3]), Operand(draw(1, dtype=d).reshape(()), False, *SCALES.get(d, (None, 0)))], y,
        "FillOptions",
    )  # fmt: skip


def _blocks(d: str) -> Iterator[OperatorCase]:
    """Operators that exchange blocks of an image with channels or batches."""
    y = [result(d)]
    image = data(1, 4, 4, 2, dtype=d)
    yield case("DEPTH_TO_SPACE", d, [data(1, 2, 2, 8, dtype=d)], y, "DepthToSpaceOptions", blockSize=2)
    yield case("SPACE_TO_DEPTH", d, [image], y, "SpaceToDepthOptions", blockSize=2)
    yield case(
        "BATCH_TO_SPACE_ND", d, [data(4, 2, 2, 1, dtype=d), held([2, 2]), held([[0, 1], [0, 0]])], y,
        "BatchToSpaceNDOptions",
    )  # fmt: skip
    yield case(
        "SPACE_TO_BATCH_ND", d, [data(1, 3, 4, 1, dtype=d), held([2, 2]), held([[0, 1], [0, 0]])], y,
        "SpaceToBatchNDOptions",
    )  # fmt: skip


def _gathered(d: str) -> Iterator[OperatorCase]:
    """Operators that read or write the elements of indices, or of a condition."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    yield case("GATHER", d, [x, held([2, 0])], y, "GatherOptions", axis=1)
    yield case(
        "GATHER", f"{d}_data", [x, Operand(np.array([[1, 0], [0, 2]], "int32"))], y, "GatherOptions", axis=2
    )
    yield case("GATHER_ND", d, [x, held([[1, 2], [0, 0]])], y, "GatherNdOptions")
    yield case("SCATTER_ND", d, [held([[1], [3]]), data(2, 4, dtype=d), held([5, 4])], y, "ScatterNdOptions")
    yield case(
        "SELECT", d, [data(2, 3, 4, dtype="bool"), x, data(2, 3, 4, dtype=d, seed=2)], y, "SelectOptions"
    )
    yield case("SELECT_V2", d, [data(3, 1, dtype="bool"), x, data(4, dtype=d, seed=2)], y, "SelectV2Options")
    if d != "bool":  # LiteRT loses elements
        yield case("MATRIX_DIAG", d, [data(2, 3, dtype=d)], y, "MatrixDiagOptions")
        matrix = [data(2, 3, 3, dtype=d), data(2, 3, dtype=d)]
        yield case("MATRIX_SET_DIAG", d, matrix, y, "MatrixSetDiagOptions")
    yield case(
        "ONE_HOT",
        d,
        [
            Operand(np.array([2, 0, 5], "int32")),
            held(4),
            held(3, d) if d != "bool" else held(1, d),
            held(0, d),
        ],
        [Result(d)],
        "OneHotOptions",
        axis=-1,
    )
    yield case(
        "SPARSE_TO_DENSE", d, [held([[0, 1], [2, 3]]), held([3, 4]), Operand(draw(2, dtype=d)), held(0, d)],
        [Result(d)], "SparseToDenseOptions",
    )  # fmt: skip
    yield case(
        "DYNAMIC_UPDATE_SLICE", d,
        [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([1, 1, 1], "int32"))], y, "",
    )  # fmt: skip
    yield case(
        "DYNAMIC_UPDATE_SLICE", f"{d}_rows",
        [data(2, 5, 3, 8, dtype=d), data(1, 2, 3, 8, dtype=d, seed=5), held([1, 9, 0, 0], "int32")], y, "",
    )  # fmt: skip
    yield case(
        "DYNAMIC_UPDATE_SLICE", f"{d}_beyond",
        [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([9, -1, 3], "int32"))], y, "",
    )  # fmt: skip


def _resized(d: str) -> Iterator[OperatorCase]:
    """RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR."""
    y = [result(d)]
    image = data(1, 4, 4, 2, dtype=d)
    yield case("RESIZE_NEAREST_NEIGHBOR", d, [image, held([6, 3])], y, "ResizeNearestNeighborOptions")
    yield case(
        "RESIZE_NEAREST_NEIGHBOR", f"{d}_half", [image, held([6, 3])], y, "ResizeNearestNeighborOptions",
        halfPixelCenters=True,
    )  # fmt: skip
    yield case(
        "RESIZE_BILINEAR", d, [image, held([6, 3])], y, "ResizeBilinearOptions",
        levels_=0.1 if d == INT16 else 0.0,
    )  # fmt: skip
    yield case(
        "RESIZE_BILINEAR", f"{d}_half", [image, held([6, 3])], y, "ResizeBilinearOptions",
        halfPixelCenters=True, levels_=0.1 if d == INT16 else 0.0,
    )  # fmt: skip
    yield case(
        "RESIZE_BILINEAR", f"{d}_corners", [image, held([6, 3])], y, "ResizeBilinearOptions",
        alignCorners=True, levels_=0.1 if d == INT16 else 0.0,
    )  # fmt: skip


def _ordered(d: str) -> Iterator[OperatorCase]:
    """DILATE, and operators that compare or add the elements along an axis."""
    x = data(2, 3, 4, dtype=d)
    y = [result(d)]
    yield case("DILATE", d, [x, held([1, 2, 3]), held(0, d)], y, "")
    yield case("CUMSUM", d, [x, held(1)], y, "CumsumOptions")
    yield case("CUMSUM", f"{d}_exclusive", [x, held(-1)], y, "CumsumOptions", exclusive=True, reverse=True)
    yield case("TOPK_V2", d, [data(2, 6, dtype=d), held(3)], [*y, Result("int32")], "TopKV2Options")
    for arg in ("ARG_MAX", "ARG_MIN"):
        table = "ArgMaxOptions" if arg == "ARG_MAX" else "ArgMinOptions"
        yield case(arg, d, [x, held(1)], [Result("int32")], table, outputType=2)
        yield case(arg, f"{d}_int64", [x, held([-1])], [Result("int64")], table, outputType=4)


def _casts() -> Iterator[OperatorCase]:
    """BROADCAST_ARGS, BITCAST and CAST."""
    for d in ("int32", "int64"):
        yield case("BROADCAST_ARGS", d, [held([3, 1], d), held([2, 1, 4], d)], [Result(d)], "")
    for a, b in (
        (FLOAT, "int32"),
        ("int32", FLOAT),
        ("int16", "uint8"),
        ("int32", "int16"),
        ("int64", FLOAT),
    ):
        yield case("BITCAST", f"{a}_{b}", [Operand(draw(2, 4, dtype="int32").astype(a))], [Result(b)], "")
    for a in (FLOAT, "int8", "uint8", "int16", "int32", "int64", "bool"):
        for b in (FLOAT, "int8", "uint8", "int16", "int32", "int64", "bool"):
            low = 0.0 if "u" in b[0] else -3.0  # in C, a negative float has no unsigned value
            integers = Operand(draw(2, 4, dtype="int32", low=0).astype(a))
            operand = data(2, 4, low=low) if a == FLOAT else integers
            if a != b:
                yield case("CAST", f"{a}_{b}", [operand], [Result(b)], "CastOptions")


def moving_cases() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for d in _MOVED:
        for group in (_reshaped, _sliced, _filled, _blocks, _gathered, _resized, _ordered):
            yield from group(d)
    yield from _casts()
