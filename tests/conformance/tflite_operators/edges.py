"""More cases: the attributes of each operator, ranks from 0 to 6, negative axes, several index types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .cases import FLOAT, INT8, INT16, STEPS_3D, UINT8, bias, case, data, draw, filter_of, held, result
from .files import Operand, OperatorCase, Result

_FOUR = (FLOAT, INT8, UINT8, INT16)
_ARITHMETIC = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}


def _activations() -> Iterator[OperatorCase]:
    """Each fused activation that LiteRT applies: RELU, RELU_N1_TO_1, RELU6."""
    for act in range(1, 4):
        chosen = {"fusedActivationFunction": act}
        for d in (FLOAT, INT8, UINT8, INT16, "int32"):
            for name, table in _ARITHMETIC.items():
                b = data(2, 3, 4, dtype=d, low=1, seed=7)
                if name == "DIV" and d == UINT8:
                    b = Operand(np.full((2, 3, 4), 170, UINT8), False, 0.05, 130)
                more = {"potScaleInt16": False} if d == INT16 and name in ("ADD", "SUB") else {}
                given = [data(2, 3, 4, dtype=d, low=-9, high=9), b]
                yield case(name, f"{d}_act{act}", given, [result(d)], table, **chosen, **more, levels_=2.5)
        for d in _FOUR:
            image, window = data(1, 6, 5, 4, dtype=d), {"padding": 0, "strideW": 1, "strideH": 2}
            for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
                size = {"filterWidth": 2, "filterHeight": 3}
                yield case(
                    name, f"{d}_act{act}", [image], [result(d)], "Pool2DOptions", **window, **size, **chosen
                )
            w = filter_of(8, 3, 2, 4, dtype=d)
            dilated = {"dilationWFactor": 1, "dilationHFactor": 1}
            yield case(
                "CONV_2D",
                f"{d}_act{act}",
                [image, w, bias(8, d, w)],
                [result(d, 2)],
                "Conv2DOptions",
                **window,
                **chosen,
                **dilated,
            )
            w = filter_of(1, 3, 2, 4, dtype=d, axis=3)
            yield case(
                "DEPTHWISE_CONV_2D",
                f"{d}_act{act}",
                [image, w, bias(4, d, w)],
                [result(d, 2)],
                "DepthwiseConv2DOptions",
                **window,
                **chosen,
                **dilated,
                depthMultiplier=1,
            )
            w = filter_of(3, 3, 2, 4, dtype=d)
            yield case(
                "TRANSPOSE_CONV",
                f"{d}_act{act}",
                [held([1, 12, 5, 3]), w, image, bias(3, d, w)],
                [result(d, 2)],
                "TransposeConvOptions",
                **window,
                **chosen,
            )
            w = filter_of(5, 8, dtype=d)
            yield case(
                "FULLY_CONNECTED",
                f"{d}_act{act}",
                [data(3, 8, dtype=d), w, bias(5, d, w)],
                [result(d, 2)],
                "FullyConnectedOptions",
                **chosen,
            )
        yield case("L2_NORMALIZATION", f"act{act}", [data(2, 5)], [Result()], "L2NormOptions", **chosen)
        w = Operand(draw(2, 2, 3, 3, 4, seed=3), True)
        options = {**STEPS_3D, "padding": 0}
        yield case(
            "CONV_3D",
            f"act{act}",
            [data(1, 4, 5, 6, 3), w, Operand(draw(4), True)],
            [Result()],
            "Conv3DOptions",
            **options,
            **chosen,
        )


def _broadcasts() -> Iterator[OperatorCase]:
    """Operands of rank 0 to 6, which are made wider on both sides."""
    pairs = {
        "scalar": ((2, 3), ()),
        "scalars": ((), ()),
        "left": ((1,), (2, 3)),
        "both": ((2, 1, 4), (3, 1)),
        "rank5": ((2, 1, 2, 1, 3), (1, 2, 1, 2, 3)),
        "rank6": ((1, 2, 1, 2, 1, 3), (2, 1, 2, 1, 3, 1)),
    }
    names = (
        "MAXIMUM",
        "MINIMUM",
        "SQUARED_DIFFERENCE",
        "POW",
        "FLOOR_DIV",
        "FLOOR_MOD",
        "ATAN2",
        "EQUAL",
        "LESS",
        "NOT_EQUAL",
        "GREATER",
        "GREATER_EQUAL",
        "LESS_EQUAL",
    )
    for name in (*_ARITHMETIC, *names):
        for what, (a, b) in pairs.items():
            for d in (FLOAT, INT8, "int32"):
                compares = name[:4] in ("EQUA", "LESS", "NOT_", "GREA")
                low = 1 if name in ("DIV", "POW", "FLOOR_DIV", "FLOOR_MOD") else -3
                one = data(*a, dtype=d, low=0.5 if name == "POW" else -5, high=5)
                two = data(*b, dtype=d, low=low, seed=7)
                made = (
                    Result("bool") if compares else result(d, 1 if name[0] == "M" and name[2] in "XN" else 2)
                )
                if name == "DIV" and d == INT8:
                    two = Operand(np.full(b, 40, INT8), False, 0.05, 0)
                yield case(name, f"{d}_{what}", [one, two], [made], _ARITHMETIC.get(name, ""), levels_=2.5)
                if what == "both":
                    kept = Operand(two.array, True, two.scale, two.zero_point)
                    yield case(name, f"{d}_held", [one, kept], [made], _ARITHMETIC.get(name, ""), levels_=2.5)
    for name in ("DIV", "FLOOR_DIV", "FLOOR_MOD", "POW"):  # signs
        for d in (FLOAT, "int32", "int64"):
            one = Operand(np.array([7, -7, 7, -7, 6, -6, 0], d))
            two = Operand(np.array([2, 2, -2, -2, 3, -3, -3], d))
            if name == "POW":
                two = Operand(np.array([2, 3, 1, 0, 3, 2, 4], d))
            yield case(name, f"{d}_signs", [one, two], [Result(d)], _ARITHMETIC.get(name, ""))
    for name in ("EQUAL", "LESS", "GREATER_EQUAL", "NOT_EQUAL"):
        for d in (INT8, UINT8):  # operands of two scales
            two = Operand(draw(2, 6, dtype=d, seed=5), False, 0.08, 0 if d == INT16 else 5)
            yield case(name, f"{d}_scales", [data(2, 6, dtype=d), two], [Result("bool")])
    for name in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "MUL", "ADD", "SUB"):
        two = Operand(draw(2, 6, dtype=INT8, seed=5), False, 0.08, 5)
        yield case(
            name, "int8_scales", [data(2, 6, dtype=INT8), two], [result(INT8, 3)], _ARITHMETIC.get(name, "")
        )
    for name in ("ADD", "SUB", "MUL", "DIV"):
        for d in ("uint32", "int64"):  # LiteRT aborts for others without a scale
            one = Operand(draw(2, 6, dtype="int32", low=1, high=9).astype(d))
            two = Operand(draw(2, 6, dtype="int32", low=1, high=9, seed=4).astype(d))
            yield case(name, f"{d}_plain", [one, two], [Result(d)], _ARITHMETIC[name])
    for d in (FLOAT, INT8, "int32"):
        for what, shape in {"scalar": (), "rows": (2,), "same": (2, 3, 4), "rank5": (2, 1, 2, 3, 4)}.items():
            for name in ("SELECT", "SELECT_V2"):
                value = (2, 1, 2, 3, 4) if what == "rank5" else (2, 3, 4)
                given = [data(*shape, dtype="bool"), data(*value, dtype=d), data(*value, dtype=d, seed=2)]
                yield case(name, f"{d}_{what}", given, [result(d)], f"{name.title().replace('_', '')}Options")


def _unaries() -> Iterator[OperatorCase]:
    """Attributes of the operators of one operand, and values at the ends of their ranges."""
    for d in _FOUR:
        fixed = {
            INT8: Result(INT8, 1 / 256, -128),
            UINT8: Result(UINT8, 1 / 256, 0),
            INT16: Result(INT16, 1 / 32768),
        }
        levels = 48.0 if d == INT16 else 2.5
        for shape in ((5,), (2, 5), (1, 2, 2, 5), (2, 1, 2, 2, 3)):
            yield case(
                "SOFTMAX",
                f"{d}_beta_{len(shape)}",
                [data(*shape, dtype=d)],
                [fixed.get(d, Result())],
                "SoftmaxOptions",
                beta=0.5,
                levels_=levels,
            )
            x = data(*shape, dtype=d)
            yield case(
                "LOG_SOFTMAX",
                f"{d}_{len(shape)}",
                [x],
                [{INT8: Result(INT8, 16 / 256, 127), UINT8: Result(UINT8, 16 / 256, 255)}.get(d, Result(d))],
                "LogSoftmaxOptions",
                levels_=2.5,
            )
        for alpha in (-0.5, 0.0, 1.5):
            x = data(3, 5, dtype=d)
            yield case("LEAKY_RELU", f"{d}_{alpha}", [x], [result(d)], "LeakyReluOptions", alpha=alpha)
        yield case(
            "GELU",
            f"{d}_approximate",
            [data(3, 5, dtype=d)],
            [result(d)],
            "GeluOptions",
            approximate=True,
            levels_=levels,
        )
    half = Operand(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.0, 1e9, -1e9, 3.4e38], FLOAT))
    odd = Operand(np.array([0.0, -0.0, np.inf, -np.inf, 1e-30, 80.0, -80.0, 100.0, -100.0], FLOAT))
    for name in (
        "ROUND",
        "FLOOR",
        "CEIL",
        "SIGN",
        "ABS",
        "NEG",
        "RELU",
        "RELU6",
        "RELU_N1_TO_1",
        "SQUARE",
        "TANH",
        "LOGISTIC",
        "HARD_SWISH",
        "EXP",
        "SQRT",
        "RSQRT",
        "LOG",
        "ELU",
        "GELU",
    ):
        if name != "EXP":  # ours saturates where LiteRT's overflows
            yield case(name, "halves", [half], [Result()])
        if name not in ("GELU", "EXP"):
            yield case(name, "limits", [odd], [Result()])
    for d in ("int32", "int64"):
        for name in ("ABS", "NEG", "SQUARE", "RELU", "SIGN", "RSQRT"):
            yield case(name, f"{d}_plain", [Operand(np.array([1, 2, 3, 100], d))], [Result(d)])
    for shape in ((), (1,), (2, 1, 3, 1, 2)):
        yield case(
            "SHAPE", f"int64_{len(shape)}", [data(*shape)], [Result("int64")], "ShapeOptions", outType=4
        )
        yield case("RANK", f"{len(shape)}", [data(*shape)], [Result("int32")], "RankOptions")
        yield case("ZEROS_LIKE", f"{len(shape)}", [data(*shape)], [Result()])
        yield case("ABS", f"rank{len(shape)}", [data(*shape)], [Result()])
    for bits in (4, 8, 16):
        for what, least, more in (
            ("narrow", -1.3, {"narrowRange": True}),
            ("wide", -1.3, {}),
            ("positive", 0.5, {}),
        ):
            limits = {"min": least, "max": 2.1, "numBits": bits, **more}
            yield case("FAKE_QUANT", f"{what}{bits}", [data(2, 9)], [Result()], "FakeQuantOptions", **limits)
    for radius, beta in ((0, 0.5), (5, 1.0), (2, 0.5)):
        yield case(
            "LOCAL_RESPONSE_NORMALIZATION",
            f"{radius}_{beta}",
            [data(1, 2, 3, 8)],
            [Result()],
            "LocalResponseNormalizationOptions",
            radius=radius,
            bias=0.5,
            alpha=0.7,
            beta=beta,
            kernels_="BUILTIN",
        )
    for a in ("float16", "float64", "uint16", "uint32"):
        for b in (FLOAT, "int32", "int64", "bool"):
            values = Operand(draw(2, 4, dtype="int32", low=0).astype(a))
            yield case("CAST", f"{a}_{b}", [values], [Result(b)], "CastOptions")
            yield case("CAST", f"{b}_{a}", [Operand(values.array.astype(b))], [Result(a)], "CastOptions")


def _axes() -> Iterator[OperatorCase]:
    """Axes that count from the end, of several types, none, all, and the same one twice."""
    for d in (FLOAT, INT8, "int64"):
        y = [result(d)]
        x4, x = data(2, 3, 4, 2, dtype=d), data(2, 3, 4, dtype=d, low=-2, high=2)
        for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
            kernels = "BUILTIN" if name == "SUM" and d == INT8 else "BUILTIN_REF"
            for what, axes in {
                "last": [-1],
                "twice": [1, -2],
                "scalar": 1,
                "image": [1, 2],
                "none": [],
            }.items():
                for keep in (False, True):
                    yield case(
                        name,
                        f"{d}_{what}{keep}",
                        [x4, held(axes)],
                        [result(d, 2)],
                        "ReducerOptions",
                        keepDims=keep,
                        kernels_=kernels,
                        levels_=2.5,
                    )
            yield case(
                name, f"{d}_vector", [data(5, dtype=d), held([0])], y, "ReducerOptions", kernels_=kernels
            )
            yield case(
                name,
                f"{d}_rank5",
                [data(2, 1, 2, 2, 3, dtype=d), held([0, 3])],
                y,
                "ReducerOptions",
                kernels_=kernels,
            )
        for axis in (-1, -3, 0):
            yield case("CONCATENATION", f"{d}{axis}", [x, x], y, "ConcatenationOptions", axis=axis)
            yield case("PACK", f"{d}{axis}", [x, x, x], y, "PackOptions", axis=axis, valuesCount=3)
            yield case(
                "UNPACK",
                f"{d}{axis}",
                [x],
                y * x.array.shape[axis],
                "UnpackOptions",
                num=x.array.shape[axis],
                axis=axis,
            )
            yield case(
                "SPLIT",
                f"{d}{axis}",
                [held(axis), x],
                y * 2,
                "SplitOptions",
                numSplits=2,
            )
            yield case("GATHER", f"{d}{axis}", [x, held(1)], y, "GatherOptions", axis=axis)
            yield case(
                "GATHER", f"{d}{axis}_int64", [x, held([[1, 0]], "int64")], y, "GatherOptions", axis=axis
            )
            yield case("CUMSUM", f"{d}{axis}", [x, held(axis)], y, "CumsumOptions", exclusive=True)
            yield case("EXPAND_DIMS", f"{d}{axis}_int64", [x, held(axis, "int64")], y, "ExpandDimsOptions")
            yield case(
                "ARG_MAX",
                f"{d}{axis}_int64",
                [x, held(axis, "int64")],
                [Result("int32")],
                "ArgMaxOptions",
                outputType=2,
            )
            yield case(
                "ARG_MIN",
                f"{d}{axis}_ties",
                [Operand(np.ones((2, 3, 2), d)), held(axis)],
                [Result("int64")],
                "ArgMinOptions",
                outputType=4,
            )
            yield case("REVERSE_V2", f"{d}{axis}", [x, held([axis])], y, "ReverseV2Options")
            hot = Operand(np.array([[2, 0], [-1, 7]], "int64" if axis else "int32"))
            yield case(
                "ONE_HOT",
                f"{d}{axis}",
                [hot, held(4), held(3, d), held(1, d)],
                [Result(d)],
                "OneHotOptions",
                axis=axis if axis != -3 else 1,
            )
        yield case(
            "ARG_MAX",
            f"{d}_ties",
            [Operand(np.ones((2, 3), d)), held(1)],
            [Result("int32")],
            "ArgMaxOptions",
            outputType=2,
        )
        yield case(
            "PACK",
            f"{d}_scalars",
            [data(dtype=d), data(dtype=d, seed=3)],
            y,
            "PackOptions",
            axis=0,
            valuesCount=2,
        )
        # Of two axes LiteRT takes neighbours alone.
        yield case("REVERSE_V2", f"{d}_two", [x, held([1, 2])], y, "ReverseV2Options")
        yield case(
            "REVERSE_SEQUENCE",
            f"{d}_long",
            [x, held([4, 1, 2], "int64")],
            y,
            "ReverseSequenceOptions",
            seqDim=2,
            batchDim=1,
        )
        for batch, axis in ((1, 1), (1, 2), (2, 2), (-1, 2), (-2, 1), (1, -1)):
            given = [data(2, 3, 4, dtype=d), Operand(np.array([[1, 0, 2], [0, 2, 1]], "int32"))]
            yield case(
                "GATHER", f"{d}_batch{batch}{axis}", given, y, "GatherOptions", axis=axis, batchDims=batch
            )
        for t in ("int64", "int16"):
            yield case(
                "GATHER_ND", f"{d}_{t}", [x, Operand(np.array([[[1, 2]], [[0, 0]]], t))], y, "GatherNdOptions"
            )
            yield case("GATHER", f"{d}_{t}", [x, Operand(np.array([1, 0], t))], y, "GatherOptions", axis=1)
        yield case("GATHER_ND", f"{d}_whole", [x, held([[1], [0]])], y, "GatherNdOptions")
        yield case("GATHER_ND", f"{d}_elements", [x, held([1, 2, 3])], y, "GatherNdOptions")
        add = [held([[1], [3], [1]]), data(3, 4, dtype=d), held([5, 4])]
        yield case("SCATTER_ND", f"{d}_twice", add, y, "ScatterNdOptions")
        add = [held([[[1, 0]], [[0, 3]]], "int64"), data(2, 1, dtype=d), held([2, 4], "int64")]
        yield case("SCATTER_ND", f"{d}_int64", add, y, "ScatterNdOptions")
        for dims in ([], [-1], [1, -1], [0]):
            shape = (1, 1, 3, 1)
            yield case(
                "SQUEEZE",
                f"{d}_{len(dims)}_{sum(dims)}",
                [data(*shape, dtype=d)],
                y,
                "SqueezeOptions",
                squeezeDims=dims,
            )
        for what, indices, shape in (("scalar", 2, [4]), ("vector", [0, 2], [4])):
            value = Operand(np.array(5, d)) if what == "scalar" else Operand(np.array([5, 6], d))
            yield case(
                "SPARSE_TO_DENSE",
                f"{d}_{what}",
                [held(indices), held(shape), value, held(1, d)],
                [Result(d)],
                "SparseToDenseOptions",
            )
        yield case(
            "TOPK_V2",
            f"{d}_ties",
            [Operand(np.array([[1, 3, 3, 2, 1]], d)), held(4)],
            [Result(d), Result("int32")],
            "TopKV2Options",
        )
        yield case(
            "TOPK_V2",
            f"{d}_vector",
            [data(6, dtype=d), held(2)],
            [result(d), Result("int16")],
            "TopKV2Options",
        )


def _shapes() -> Iterator[OperatorCase]:
    """Shapes and places: masks of STRIDED_SLICE, shapes with -1, paddings of 64 bits, up to 6 axes."""
    for d in (FLOAT, INT8, "bool"):
        x, y = data(2, 3, 4, dtype=d), [result(d)]
        for what, shape in {"rest": [-1, 4], "flat": [-1], "five": [2, 1, 3, 2, 2]}.items():
            yield case("RESHAPE", f"{d}_{what}", [x, held(shape)], y, "ReshapeOptions", newShape=shape)
            yield case("RESHAPE", f"{d}_{what}_option", [x], y, "ReshapeOptions", newShape=shape)
            yield case("RESHAPE", f"{d}_{what}_alone", [x, held(shape)], y)
        yield case("RESHAPE", f"{d}_scalar", [data(1, dtype=d), held(np.zeros(0))], y)
        for order in ([1, 0], [0, 2, 1], [3, 1, 0, 2], [4, 0, 3, 1, 2], [5, 0, 3, 1, 4, 2]):
            given = (
                data(*range(2, 2 + len(order)), dtype=d)
                if len(order) < 5
                else data(*[1, 2, 3, 2, 2, 1][: len(order)], dtype=d)
            )
            yield case("TRANSPOSE", f"{d}_{len(order)}", [given, held(order)], y, "TransposeOptions")
        yield case("TRANSPOSE", f"{d}_negative", [x, held([-1, 0, 1])], y, "TransposeOptions")
        begin, end, step = held([0, 0, 1]), held([2, 3, 3]), held([1, 1, 1])
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
        for what, (options, begin, end, step) in masks.items():
            yield case(
                "STRIDED_SLICE",
                f"{d}_{what}",
                [x, held(begin), held(end), held(step)],
                y,
                "StridedSliceOptions",
                **options,
            )
        long = [held(values, "int64") for values in ([0, 1, 1], [1, -1, 2])]
        yield case("SLICE", f"{d}_int64", [x, *long], y, "SliceOptions")
        five = data(2, 1, 2, 3, 2, dtype=d)
        yield case(
            "SLICE", f"{d}_five", [five, held([1, 0, 0, 1, 0]), held([1, 1, -1, 2, 1])], y, "SliceOptions"
        )
        pads = [[1, 0], [0, 0], [0, 1], [2, 0], [0, 1]]
        yield case("PAD", f"{d}_five", [five, held(pads)], y, "PadOptions")
        yield case("PAD", f"{d}_int64", [x, held(pads[:3], "int64")], y, "PadOptions")
        yield case("PAD", f"{d}_vector", [data(4, dtype=d), held([[2, 1]])], y, "PadOptions")
        yield case(
            "MIRROR_PAD",
            f"{d}_int64",
            [x, held([[1, 1], [0, 2], [1, 0]], "int64")],
            y,
            "MirrorPadOptions",
            mode=0,
        )
        yield case("TILE", f"{d}_int64", [x, held([2, 1, 3], "int64")], y, "TileOptions")
        yield case("TILE", f"{d}_vector", [data(3, dtype=d), held([2])], y, "TileOptions")
        yield case(
            "BROADCAST_TO",
            f"{d}_six",
            [data(2, 1, 3, dtype=d), held([1, 2, 2, 2, 2, 3], "int64")],
            y,
            "BroadcastToOptions",
        )
        yield case(
            "FILL", f"{d}_int64", [held([2, 3], "int64"), held(np.array(1), d)], [Result(d)], "FillOptions"
        )
        yield case(
            "SPLIT_V",
            f"{d}_int64",
            [x, held([1, 2, 1], "int64"), held(2)],
            y * 3,
            "SplitVOptions",
            numSplits=3,
        )
        yield case("SPACE_TO_BATCH_ND", f"{d}_rank3", [data(1, 6, 2, dtype=d), held([2]), held([[1, 1]])], y)
        yield case("BATCH_TO_SPACE_ND", f"{d}_rank3", [data(4, 3, 2, dtype=d), held([2]), held([[1, 0]])], y)
        yield case(
            "SPACE_TO_BATCH_ND",
            f"{d}_uneven",
            [data(2, 4, 3, 2, dtype=d), held([2, 3]), held([[0, 0], [2, 1]])],
            y,
        )
        yield case(
            "BATCH_TO_SPACE_ND",
            f"{d}_uneven",
            [data(6, 2, 3, 1, dtype=d), held([3, 2]), held([[1, 2], [0, 1]])],
            y,
        )
        yield case(
            "DEPTH_TO_SPACE",
            f"{d}_three",
            [data(2, 1, 2, 18, dtype=d)],
            y,
            "DepthToSpaceOptions",
            blockSize=3,
        )
        yield case(
            "SPACE_TO_DEPTH", f"{d}_three", [data(2, 3, 6, 2, dtype=d)], y, "SpaceToDepthOptions", blockSize=3
        )
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
                        name,
                        f"{d}_{size[0]}x{size[1]}_{align}_{half}",
                        [data(2, 4, 5, 3, dtype=d), held(size)],
                        y,
                        table,
                        alignCorners=align,
                        halfPixelCenters=half,
                    )
        yield case(
            "DYNAMIC_UPDATE_SLICE",
            f"{d}_int64",
            [x, data(1, 2, 2, dtype=d, seed=5), Operand(np.array([-1, 9, 1], "int64"))],
            y,
        )
        yield case("DILATE", f"{d}_two", [data(3, 2, dtype=d), held([2, 3]), held(1, d)], y)


def cases_of_attributes() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for group in (_activations, _broadcasts, _unaries, _axes, _shapes):
        yield from group()
