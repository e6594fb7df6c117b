"""The cases: for each builtin operator one per kind of operands, in every type that LiteRT takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .files import Array, Operand, OperatorCase, Result

FLOAT, INT8, UINT8, INT16 = "float32", "int8", "uint8", "int16"
# Strides and dilations of 1 of three axes.
STEPS_3D = dict.fromkeys(
    ("strideD", "strideW", "strideH", "dilationDFactor", "dilationWFactor", "dilationHFactor"), 1
)
_SCALES = {"int8": (0.05, 3), "uint8": (0.05, 130), "int16": (0.0005, 0)}


def draw(*shape: int, dtype: str = FLOAT, low: float = -3, high: float = 3, seed: int = 0) -> Array:
    """Drawn values: floats and integers between `low` and `high`, every value of quantised types."""
    generator = np.random.default_rng(seed + len(shape))
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype in _SCALES:
        info = np.iinfo(dtype)
        return generator.integers(info.min // 2, info.max // 2, shape).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return generator.integers(int(low), int(high) + 1, shape).astype(dtype)
    return generator.uniform(low, high, shape).astype(dtype)


def data(*shape: int, dtype: str = FLOAT, low: float = -3, high: float = 3, seed: int = 0) -> Operand:
    """An input of the graph; of a quantised type with the scale of that type."""
    scale, zero = _SCALES.get(dtype, (None, 0))
    return Operand(draw(*shape, dtype=dtype, low=low, high=high, seed=seed), False, scale, zero)


def held(values: Any, dtype: str = "int32", scale: Any = None, zero: int = 0) -> Operand:
    """A constant of the file."""
    return Operand(np.array(values, dtype), True, scale, zero)


def result(dtype: str = FLOAT, factor: float = 1.0) -> Result:
    """An output of a type, with the scale of that type times `factor`."""
    scale, zero = _SCALES.get(dtype, (None, 0))
    return Result(dtype, None if scale is None else scale * factor, zero)


def case(
    operator: str, what: str, operands: Sequence[Operand | None], results: Sequence[Result], table: str = "",
    **given: Any,
) -> OperatorCase:  # fmt: skip
    """One case; `given`: fields of the options, and with a trailing _ those of OperatorCase."""
    own = {key.rstrip("_"): value for key, value in given.items() if key.endswith("_")}
    options = {key: value for key, value in given.items() if not key.endswith("_")}
    return OperatorCase(f"{operator}/{what}", operator, operands, results, options, table, **own)


# Operators of one operand, with the range in which they are defined.
_FLOATS: dict[str, tuple[float, float]] = {
    "FLOOR": (-3, 3), "CEIL": (-3, 3), "ROUND": (-3, 3), "SIN": (-9, 9), "COS": (-9, 9), "EXP": (-3, 3),
    "LOG": (0.1, 9), "SQRT": (0.1, 9), "RSQRT": (0.1, 9), "SQUARE": (-3, 3), "ABS": (-3, 3), "NEG": (-3, 3),
    "TANH": (-3, 3), "LOGISTIC": (-5, 5), "RELU": (-3, 3), "RELU6": (-3, 9), "RELU_N1_TO_1": (-3, 3),
    "RELU_0_TO_1": (-3, 3), "ELU": (-3, 3), "HARD_SWISH": (-5, 5), "GELU": (-4, 4), "SIGN": (-3, 3),
    "ZEROS_LIKE": (-3, 3), "L2_NORMALIZATION": (-3, 3), "LOG_SOFTMAX": (-3, 3), "SOFTMAX": (-3, 3),
    "LEAKY_RELU": (-3, 3),
}  # fmt: skip
_TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "SOFTMAX": ("SoftmaxOptions", {"beta": 1.0}), "GELU": ("GeluOptions", {}),
    "LEAKY_RELU": ("LeakyReluOptions", {"alpha": 0.2}), "L2_NORMALIZATION": ("L2NormOptions", {}),
    "ADD": ("AddOptions", {}), "SUB": ("SubOptions", {}), "MUL": ("MulOptions", {}),
    "DIV": ("DivOptions", {}),
}  # fmt: skip
# What LiteRT prescribes for results: (scale, zero point) by type.
_FIXED = {
    "LOGISTIC": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0), INT16: (1 / 32768, 0)},
    "SOFTMAX": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0), INT16: (1 / 32768, 0)},
    "TANH": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128), INT16: (1 / 32768, 0)},
    "LOG_SOFTMAX": {INT8: (16 / 256, 127), UINT8: (16 / 256, 255)},
    "L2_NORMALIZATION": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128)},
}
# Functions that LiteRT interpolates between 513 values for int16.
_TABULATED = ("EXP", "LOG", "GELU", "RSQRT", "SQRT", "SIN", "COS", "ELU")
_TYPES = (FLOAT, INT8, UINT8, INT16, "int32", "int64")


def _unary() -> Iterator[OperatorCase]:
    for name, (low, high) in _FLOATS.items():
        table, options = _TABLES.get(name, ("", {}))
        for dtype in _TYPES:
            made = result(dtype)
            if dtype in _FIXED.get(name, {}):
                made = Result(dtype, *_FIXED[name][dtype])
            operand = data(2, 3, 4, dtype=dtype, low=low, high=high)
            if low >= 0 and dtype in _SCALES:  # real values above 0
                operand = Operand(
                    np.abs(operand.array.astype("int32") // 2 + 8).astype(dtype), False, 0.05, 0
                )
            if name == "NEG" and dtype == INT8:  # LiteRT's kernel negates the levels, whatever the zero point
                operand, made = replace(operand, zero_point=0), replace(made, zero_point=0)
            levels = {
                INT16: 48.0 if name in _FIXED or name in _TABULATED else 6.0,
                INT8: 2.5,
                UINT8: 2.5,
            }.get(dtype, 0.0)
            yield case(name, dtype, [operand], [made], table, **options, levels_=levels)
    for dtype in (FLOAT, "int32", "bool"):
        yield case("SHAPE", dtype, [data(2, 3, dtype=dtype)], [Result("int32")], "ShapeOptions", outType=2)
    yield case("RANK", FLOAT, [data(2, 3)], [Result("int32")], "RankOptions")
    yield case("LOGICAL_NOT", "bool", [data(2, 3, dtype="bool")], [Result("bool")])


def _binary() -> Iterator[OperatorCase]:
    names = [
        "ADD",
        "SUB",
        "MUL",
        "DIV",
        "MAXIMUM",
        "MINIMUM",
        "SQUARED_DIFFERENCE",
        "POW",
        "FLOOR_DIV",
        "FLOOR_MOD",
        "ATAN2",
    ]
    for name in names:
        table, options = _TABLES.get(name, ("", {}))
        for dtype in _TYPES:
            low = 1 if name in ("DIV", "POW", "FLOOR_DIV", "FLOOR_MOD") else -3
            for what, shape in (("", (2, 3, 4)), ("broadcast", (3, 1))):
                a, b = data(2, 3, 4, dtype=dtype), data(*shape, dtype=dtype, low=low, high=3, seed=7)
                if name == "POW" and dtype == FLOAT:
                    a = data(2, 3, 4, low=0.5)
                if name == "DIV" and dtype in _SCALES:
                    b = Operand(
                        np.abs(b.array.astype("int32") // 4).astype(dtype) + np.array(40, dtype),
                        False,
                        0.05,
                        0,
                    )
                made = result(dtype, 1.0 if name in ("MAXIMUM", "MINIMUM") else 2.0)
                if dtype == INT16 and name in ("ADD", "SUB"):
                    options = {**options, "potScaleInt16": False}
                yield case(name, f"{dtype}{what}", [a, b], [made], table, **options, levels_=2.5)
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        for dtype in (*_TYPES, "bool"):
            yield case(name, dtype, [data(2, 6, dtype=dtype), data(6, dtype=dtype, seed=5)], [Result("bool")])
    for name in ("LOGICAL_OR", "LOGICAL_AND"):
        yield case(name, "bool", [data(2, 6, dtype="bool"), data(6, dtype="bool", seed=5)], [Result("bool")])
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        x = Operand(draw(2, 6, dtype="int32", low=0 if dtype[0] == "u" else -100, high=100).astype(dtype))
        y = Operand(draw(2, 6, dtype="int32", low=0, high=6, seed=4).astype(dtype))
        for name in ("BITWISE_XOR", "RIGHT_SHIFT"):
            table = {"BITWISE_XOR": "BitwiseXorOptions", "RIGHT_SHIFT": "RightShiftOptions"}[name]
            yield case(name, dtype, [x, y], [Result(dtype)], "")
    for dtype in (FLOAT, "int32"):
        yield case(
            "ADD_N",
            dtype,
            [data(2, 3, dtype=dtype, seed=n) for n in range(3)],
            [result(dtype)],
            "AddNOptions",
        )


_MOVED = (FLOAT, INT8, UINT8, INT16, "int32", "int64", "bool")


def _moves() -> Iterator[OperatorCase]:
    for d in _MOVED:
        x, y = data(2, 3, 4, dtype=d), [result(d)]
        image = data(1, 4, 4, 2, dtype=d)
        yield case("RESHAPE", d, [x, held([6, 4])], y, "ReshapeOptions", newShape=[6, 4])
        yield case("EXPAND_DIMS", d, [x, held([1])], y, "ExpandDimsOptions")
        yield case("EXPAND_DIMS", f"{d}_last", [x, held([-1])], y, "ExpandDimsOptions")
        yield case("SQUEEZE", d, [data(2, 1, 3, 1, dtype=d)], y, "SqueezeOptions", squeezeDims=[1])
        yield case("TRANSPOSE", d, [x, held([2, 0, 1])], y, "TransposeOptions")
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
        yield case("PAD", d, [x, held([[0, 1], [1, 0], [2, 1]])], y, "PadOptions")
        fill = held(np.array(1), d, *_SCALES.get(d, (None, 0)))
        yield case("PADV2", d, [x, held([[0, 1], [1, 0], [2, 1]]), fill], y, "PadV2Options")
        for mode in (0, 1):
            yield case(
                "MIRROR_PAD",
                f"{d}_{mode}",
                [x, held([[0, 1], [1, 0], [2, 1]])],
                y,
                "MirrorPadOptions",
                mode=mode,
            )
        yield case("REVERSE_V2", d, [x, held([1])], y, "ReverseV2Options")
        yield case(
            "REVERSE_SEQUENCE",
            d,
            [x, held([2, 1], "int32")],
            y,
            "ReverseSequenceOptions",
            seqDim=1,
            batchDim=0,
        )
        yield case("BROADCAST_TO", d, [data(3, 1, dtype=d), held([2, 3, 4])], y, "BroadcastToOptions")
        yield case("FILL", d, [held([2, 3]), fill], y, "FillOptions")
        yield case(
            "FILL",
            f"{d}_data",
            [held([2, 3]), Operand(draw(1, dtype=d).reshape(()), False, *_SCALES.get(d, (None, 0)))],
            y,
            "FillOptions",
        )
        yield case("DEPTH_TO_SPACE", d, [data(1, 2, 2, 8, dtype=d)], y, "DepthToSpaceOptions", blockSize=2)
        yield case("SPACE_TO_DEPTH", d, [image], y, "SpaceToDepthOptions", blockSize=2)
        yield case(
            "BATCH_TO_SPACE_ND",
            d,
            [data(4, 2, 2, 1, dtype=d), held([2, 2]), held([[0, 1], [0, 0]])],
            y,
            "BatchToSpaceNDOptions",
        )
        yield case(
            "SPACE_TO_BATCH_ND",
            d,
            [data(1, 3, 4, 1, dtype=d), held([2, 2]), held([[0, 1], [0, 0]])],
            y,
            "SpaceToBatchNDOptions",
        )
        yield case("GATHER", d, [x, held([2, 0])], y, "GatherOptions", axis=1)
        yield case(
            "GATHER",
            f"{d}_data",
            [x, Operand(np.array([[1, 0], [0, 2]], "int32"))],
            y,
            "GatherOptions",
            axis=2,
        )
        yield case("GATHER_ND", d, [x, held([[1, 2], [0, 0]])], y, "GatherNdOptions")
        yield case(
            "SCATTER_ND", d, [held([[1], [3]]), data(2, 4, dtype=d), held([5, 4])], y, "ScatterNdOptions"
        )
        yield case(
            "SELECT", d, [data(2, 3, 4, dtype="bool"), x, data(2, 3, 4, dtype=d, seed=2)], y, "SelectOptions"
        )
        yield case(
            "SELECT_V2", d, [data(3, 1, dtype="bool"), x, data(4, dtype=d, seed=2)], y, "SelectV2Options"
        )
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
            "SPARSE_TO_DENSE",
            d,
            [held([[0, 1], [2, 3]]), held([3, 4]), Operand(draw(2, dtype=d)), held(0, d)],
            [Result(d)],
            "SparseToDenseOptions",
        )
        yield case(
            "DYNAMIC_UPDATE_SLICE",
            d,
            [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([1, 1, 1], "int32"))],
            y,
            "",
        )
        yield case(
            "DYNAMIC_UPDATE_SLICE",
            f"{d}_beyond",
            [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([9, -1, 3], "int32"))],
            y,
            "",
        )
        yield case("RESIZE_NEAREST_NEIGHBOR", d, [image, held([6, 3])], y, "ResizeNearestNeighborOptions")
        yield case(
            "RESIZE_NEAREST_NEIGHBOR",
            f"{d}_half",
            [image, held([6, 3])],
            y,
            "ResizeNearestNeighborOptions",
            halfPixelCenters=True,
        )
        yield case(
            "RESIZE_BILINEAR",
            d,
            [image, held([6, 3])],
            y,
            "ResizeBilinearOptions",
            levels_=64.0 if d == INT16 else 0.0,
        )
        yield case(
            "RESIZE_BILINEAR",
            f"{d}_half",
            [image, held([6, 3])],
            y,
            "ResizeBilinearOptions",
            halfPixelCenters=True,
            levels_=64.0 if d == INT16 else 0.0,
        )
        yield case(
            "RESIZE_BILINEAR",
            f"{d}_corners",
            [image, held([6, 3])],
            y,
            "ResizeBilinearOptions",
            alignCorners=True,
            levels_=64.0 if d == INT16 else 0.0,
        )
        yield case("DILATE", d, [x, held([1, 2, 3]), held(0, d)], y, "")
        yield case("CUMSUM", d, [x, held(1)], y, "CumsumOptions")
        yield case(
            "CUMSUM", f"{d}_exclusive", [x, held(-1)], y, "CumsumOptions", exclusive=True, reverse=True
        )
        yield case("TOPK_V2", d, [data(2, 6, dtype=d), held(3)], [*y, Result("int32")], "TopKV2Options")
        for arg in ("ARG_MAX", "ARG_MIN"):
            table = "ArgMaxOptions" if arg == "ARG_MAX" else "ArgMinOptions"
            yield case(arg, d, [x, held(1)], [Result("int32")], table, outputType=2)
            yield case(arg, f"{d}_int64", [x, held([-1])], [Result("int64")], table, outputType=4)
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
            whole = Operand(draw(2, 4, dtype="int32", low=0).astype(a))
            given = data(2, 4, low=low) if a == FLOAT else whole
            if a != b:
                yield case("CAST", f"{a}_{b}", [given], [Result(b)], "CastOptions")


def _reductions() -> Iterator[OperatorCase]:
    for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
        for d in _TYPES:
            for what, axes, keep in (("", [1], False), ("keep", [0, 2], True), ("all", [0, 1, 2], False)):
                if name == "REDUCE_PROD" and d == INT16 and what:  # LiteRT's product overflows
                    continue
                yield case(
                    name, d + what, [data(2, 3, 4, dtype=d, low=-2, high=2), held(axes)],
                    [result(d)], "ReducerOptions", keepDims=keep,
                    # The reference kernel of SUM gives one number for all quantised sums.
                    kernels_="BUILTIN" if name == "SUM" and d in _SCALES else "BUILTIN_REF",
                )  # fmt: skip
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        for keep in (False, True):
            yield case(
                name,
                f"bool{keep}",
                [data(2, 3, dtype="bool"), held([1])],
                [Result("bool")],
                "ReducerOptions",
                keepDims=keep,
            )
    for name in (
        "SEGMENT_SUM",
        "UNSORTED_SEGMENT_SUM",
        "UNSORTED_SEGMENT_PROD",
        "UNSORTED_SEGMENT_MAX",
        "UNSORTED_SEGMENT_MIN",
    ):
        for d in (FLOAT, "int32"):
            ids = held([0, 0, 1, 2]) if name == "SEGMENT_SUM" else held([2, 0, -1, 2])
            more = [] if name == "SEGMENT_SUM" else [held(4)]
            yield case(name, d, [data(4, 3, dtype=d), ids, *more], [Result(d)], "")
    yield case(
        "BUCKETIZE", FLOAT, [data(2, 5)], [Result("int32")], "BucketizeOptions", boundaries=[-1.0, 0.0, 1.5]
    )
    for d in (FLOAT, "int32"):
        window = [held([2, 2], "int64"), held([1, 2], "int64"), held([1, 1], "int64")]
        for function, start in ((1, 0), (2, 1), (3, 9), (4, -9)):
            given = [data(4, 6, dtype=d), held(start, d), *window]
            yield case(
                "REDUCE_WINDOW", f"{d}_{function}", given, [Result(d)], "ReduceWindowOptions",
                reduceFunction=function,
            )  # fmt: skip


def filter_of(*shape: int, dtype: str, axis: int = 0, per_channel: bool = True) -> Operand:
    """A constant filter: floats, or int8 with a scale per channel (uint8: one scale)."""
    if dtype == FLOAT:
        return Operand(draw(*shape, low=-1, high=1, seed=11), True)
    stored = UINT8 if dtype == UINT8 else INT8
    values = np.random.default_rng(5).integers(-127, 128, shape)
    if stored == UINT8:
        return Operand((values + 128).astype(UINT8), True, 0.01, 128)
    scales = list(np.linspace(0.005, 0.02, shape[axis])) if per_channel else 0.01
    return Operand(values.astype(INT8), True, scales, 0, axis)


def bias(count: int, dtype: str, weights: Operand) -> Operand:
    if dtype == FLOAT:
        return Operand(draw(count, seed=2), True)
    scale = _SCALES[dtype][0]
    scales = (
        [scale * s for s in weights.scale]
        if isinstance(weights.scale, list)
        else scale * float(weights.scale or 1)
    )
    values = np.random.default_rng(2).integers(-300, 300, count)
    return Operand(values.astype("int64" if dtype == INT16 else "int32"), True, scales, 0)


_NEURAL = (FLOAT, INT8, UINT8, INT16)


def _neural() -> Iterator[OperatorCase]:
    for d in _NEURAL:
        image = data(1, 6, 5, 4, dtype=d)
        pools = (
            ("same", {"padding": 0, "strideW": 2, "strideH": 2}),
            ("valid", {"padding": 1, "strideW": 1, "strideH": 1}),
        )
        for what, padding in pools:
            for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
                yield case(
                    name,
                    f"{d}_{what}",
                    [image],
                    [result(d)],
                    "Pool2DOptions",
                    filterWidth=3,
                    filterHeight=2,
                    **padding,
                )
            for act in (0, 1, 3):
                w = filter_of(8, 3, 2, 4, dtype=d)
                yield case(
                    "CONV_2D", f"{d}_{what}_{act}", [image, w, bias(8, d, w)], [result(d, 8)],
                    "Conv2DOptions", fusedActivationFunction=act, dilationWFactor=1, dilationHFactor=1,
                    **padding,
                )  # fmt: skip
            w = filter_of(8, 3, 2, 2, dtype=d)
            yield case(
                "CONV_2D",
                f"{d}_{what}_grouped",
                [image, w, bias(8, d, w)],
                [result(d, 8)],
                "Conv2DOptions",
                dilationWFactor=1,
                dilationHFactor=1,
                **padding,
            )
            w = filter_of(1, 3, 2, 8, dtype=d, axis=3)
            yield case(
                "DEPTHWISE_CONV_2D", f"{d}_{what}", [image, w, bias(8, d, w)], [result(d, 4)],
                "DepthwiseConv2DOptions", depthMultiplier=2, dilationWFactor=1, dilationHFactor=1, **padding,
            )  # fmt: skip
            w = filter_of(3, 3, 2, 4, dtype=d)
            size = [1, 11, 9, 3] if what == "same" else [1, 8, 6, 3]
            yield case(
                "TRANSPOSE_CONV", f"{d}_{what}", [held(size), w, image, bias(3, d, w)], [result(d, 8)],
                "TransposeConvOptions", **padding,
            )  # fmt: skip
        w = filter_of(5, 8, dtype=d)
        yield case(
            "FULLY_CONNECTED",
            d,
            [data(3, 8, dtype=d), w, bias(5, d, w)],
            [result(d, 8)],
            "FullyConnectedOptions",
        )
        w = filter_of(5, 8, dtype=d, per_channel=False)
        yield case(
            "FULLY_CONNECTED",
            f"{d}_relu",
            [data(3, 8, dtype=d), w, None],
            [result(d, 8)],
            "FullyConnectedOptions",
            fusedActivationFunction=1,
        )
        yield case(
            "BATCH_MATMUL",
            d,
            [data(2, 3, 4, dtype=d), data(2, 4, 5, dtype=d)],
            [result(d, 16)],
            "BatchMatMulOptions",
        )
        yield case(
            "BATCH_MATMUL",
            f"{d}_adj",
            [data(2, 4, 3, dtype=d), data(2, 5, 4, dtype=d)],
            [result(d, 16)],
            "BatchMatMulOptions",
            adjX=True,
            adjY=True,
        )
        slope = (
            Operand(draw(4, low=0, high=1), True) if d == FLOAT else Operand(draw(4, dtype=d), True, 0.01, 0)
        )
        if d != INT16:  # LiteRT's kernel takes it, and computes something else
            yield case("PRELU", d, [data(2, 3, 4, dtype=d), slope], [result(d)])
        if d != FLOAT:
            yield case("QUANTIZE", d, [data(2, 5)], [result(d)], "QuantizeOptions")
            yield case("DEQUANTIZE", d, [data(2, 5, dtype=d)], [Result()], "DequantizeOptions")
            for e in _NEURAL[1:]:
                yield case("QUANTIZE", f"{d}_{e}", [data(2, 5, dtype=d)], [result(e, 1.5)], "QuantizeOptions")
    ends = (
        held(127, INT8, 1 / 127, 0),
        held(-3, INT8, 0.5, -3),
    )  # each with a scale of its own, as converters write
    given = [Operand(np.array([2, 0, 5], "int32")), held(4), *ends]
    yield case("ONE_HOT", f"{INT8}_scales", given, [Result(INT8, 1 / 127, 0)], "OneHotOptions", axis=0)
    for scale in (0.7 * 2**-20, 1.5):
        wide = [data(2, 5, dtype=INT16)], [Result("int32", scale, 0)]
        yield case("QUANTIZE", f"int16_int32_{scale:g}", *wide, "QuantizeOptions")
    yield case("DEQUANTIZE", "float16", [held(draw(2, 5), "float16")], [Result()], "DequantizeOptions")
    yield case(
        "FAKE_QUANT", FLOAT, [data(2, 5)], [Result()], "FakeQuantOptions", min=-1.0, max=2.0, numBits=8
    )
    yield case(
        "LOCAL_RESPONSE_NORMALIZATION",
        FLOAT,
        [data(1, 3, 3, 8)],
        [Result()],
        "LocalResponseNormalizationOptions",
        radius=2,
        bias=1.0,
        alpha=0.3,
        beta=0.75,
        kernels_="BUILTIN",
    )
    for what, given in (
        ("", {"padding": 0}),
        ("_stride", {"padding": 1, "strideD": 2, "strideW": 2, "strideH": 1}),
    ):
        options = {**STEPS_3D, **given}
        w = Operand(draw(2, 2, 3, 3, 4, seed=3), True)
        yield case(
            "CONV_3D",
            FLOAT + what,
            [data(1, 4, 5, 6, 3), w, Operand(draw(4), True)],
            [Result()],
            "Conv3DOptions",
            **options,
        )
    w = Operand(draw(2, 2, 2, 4, 3, seed=3), True)
    options = {
        "strideD": 2,
        "strideW": 1,
        "strideH": 2,
        "dilationDFactor": 1,
        "dilationWFactor": 1,
        "dilationHFactor": 1,
        "padding": 0,
    }
    yield case(
        "CONV_3D_TRANSPOSE",
        FLOAT,
        [held([1, 4, 6, 4, 4]), w, data(1, 2, 3, 4, 3), Operand(draw(4), True)],
        [Result()],
        "Conv3DOptions",
        **options,
    )
    for d in (FLOAT, INT8):
        w = Operand(draw(5, 8, dtype=INT8), True, 0.02, 0)  # hybrid: int8 weights of a float operator
        if d == INT8:
            w = Operand(w.array, True, list(np.linspace(0.01, 0.03, 5)), 0, 0)
        yield case(
            "FULLY_CONNECTED",
            f"hybrid_{d}",
            [data(3, 8), w, Operand(draw(5), True)],
            [Result()],
            "FullyConnectedOptions",
            relative_=0.02,
        )
    w = Operand(draw(8, 3, 2, 4, dtype=INT8), True, list(np.linspace(0.01, 0.03, 8)), 0, 0)
    yield case(
        "CONV_2D",
        "hybrid",
        [data(1, 6, 5, 4), w, Operand(draw(8), True)],
        [Result()],
        "Conv2DOptions",
        strideW=1,
        strideH=1,
        padding=0,
        dilationWFactor=1,
        dilationHFactor=1,
        relative_=0.02,
    )
    w = Operand(draw(1, 3, 2, 8, dtype=INT8), True, list(np.linspace(0.01, 0.03, 8)), 0, 3)
    yield case(
        "DEPTHWISE_CONV_2D",
        "hybrid",
        [data(1, 6, 5, 4), w, Operand(draw(8), True)],
        [Result()],
        "DepthwiseConv2DOptions",
        strideW=1,
        strideH=1,
        padding=0,
        depthMultiplier=2,
        dilationWFactor=1,
        dilationHFactor=1,
        relative_=0.02,
    )
    yield case(
        "EMBEDDING_LOOKUP", FLOAT, [Operand(np.array([2, 0], "int32")), Operand(draw(4, 3), True)], [Result()]
    )
    yield case(
        "EMBEDDING_LOOKUP",
        "hybrid",
        [Operand(np.array([2, 0], "int32")), Operand(draw(4, 3, dtype=INT8), True, 0.02, 0)],
        [Result()],
    )
    for name in ("REAL", "IMAG", "COMPLEX_ABS"):
        for size in ([4, 8], [3, 5], [8, 4]):
            given = [data(2, 4, 8), held(size)]
            made = case(
                "RFFT2D", f"{name}_{size[0]}x{size[1]}", given, [Result("complex64")], "Rfft2dOptions"
            )
            yield replace(made, then=name, absolute=1e-4)


def _stablehlo() -> Iterator[OperatorCase]:
    one = ["LOGISTIC", "ABS", "COSINE", "EXPONENTIAL", "FLOOR", "LOG", "NEGATE", "RSQRT", "TANH", "CBRT"]
    two = [
        "ADD",
        "DIVIDE",
        "MULTIPLY",
        "MAXIMUM",
        "MINIMUM",
        "POWER",
        "REMAINDER",
        "SUBTRACT",
        "AND",
        "OR",
        "SHIFT_LEFT",
    ]
    for name in one:
        for d in (FLOAT, "int32"):
            yield case(f"STABLEHLO_{name}", d, [data(2, 3, dtype=d, low=0.5)], [Result(d)])
    for name in two:
        for d in (FLOAT, "int32", "bool"):
            yield case(
                f"STABLEHLO_{name}",
                d,
                [data(2, 3, dtype=d, low=1), data(2, 3, dtype=d, low=1, seed=4)],
                [Result(d)],
            )
    yield case(
        "STABLEHLO_SELECT", FLOAT, [data(2, 3, dtype="bool"), data(2, 3), data(2, 3, seed=4)], [Result()]
    )
    yield case("STABLEHLO_RESHAPE", FLOAT, [data(2, 3)], [Result()])
    yield case("STABLEHLO_CLAMP", FLOAT, [held(-1, FLOAT), data(2, 3), held(1, FLOAT)], [Result()])
    yield case(
        "STABLEHLO_CONCATENATE",
        FLOAT,
        [data(2, 3), data(2, 3)],
        [Result()],
        "StablehloConcatenateOptions",
        dimension=1,
    )
    yield case(
        "STABLEHLO_TRANSPOSE",
        FLOAT,
        [data(2, 3)],
        [Result()],
        "StablehloTransposeOptions",
        permutation=[1, 0],
    )
    yield case("STABLEHLO_CONVERT", FLOAT, [data(2, 3)], [Result("int32")])


def basic_cases() -> Iterator[OperatorCase]:
    """The cases of this file."""
    for group in (_unary, _binary, _moves, _reductions, _neural, _stablehlo):
        yield from group()
