"""More cases of elementwise operators: attributes, ranks from 0 to 6, signs and limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import (
    FLOAT,
    INT8,
    INT16,
    STEPS_3D,
    UINT8,
    WEIGHTED,
    bias,
    case,
    data,
    draw,
    filter_of,
    held,
    result,
)

_ARITHMETIC = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}


def _fused_arithmetic(act: int) -> Iterator[OperatorCase]:
    """Sums, differences, products and quotients with a fused activation."""
    chosen = {"fusedActivationFunction": act}
    for d in (FLOAT, INT8, UINT8, INT16, "int32"):
        for name, table in _ARITHMETIC.items():
            b = data(2, 3, 4, dtype=d, low=1, seed=7)
            if name == "DIV" and d == UINT8:
                b = Operand(np.full((2, 3, 4), 170, UINT8), False, 0.05, 130)
            more = {"potScaleInt16": False} if d == INT16 and name in ("ADD", "SUB") else {}
            operands = [data(2, 3, 4, dtype=d, low=-9, high=9), b]
            yield case(name, f"{d}_act{act}", operands, [result(d)], table, **chosen, **more, levels_=2.5)


def _fused_windows(act: int, d: str) -> Iterator[OperatorCase]:
    """Convolutions, poolings and products of a type with a fused activation."""
    chosen = {"fusedActivationFunction": act}
    image, window = data(1, 6, 5, 4, dtype=d), {"padding": 0, "strideW": 1, "strideH": 2}
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        size = {"filterWidth": 2, "filterHeight": 3}
        yield case(name, f"{d}_act{act}", [image], [result(d)], "Pool2DOptions", **window, **size, **chosen)
    w = filter_of(8, 3, 2, 4, dtype=d)
    dilated = {"dilationWFactor": 1, "dilationHFactor": 1}
    yield case(
        "CONV_2D", f"{d}_act{act}", [image, w, bias(8, d, w)], [result(d, 2)], "Conv2DOptions", **window,
        **chosen, **dilated,
    )  # fmt: skip
    w = filter_of(1, 3, 2, 4, dtype=d, axis=3)
    yield case(
        "DEPTHWISE_CONV_2D", f"{d}_act{act}", [image, w, bias(4, d, w)], [result(d, 2)],
        "DepthwiseConv2DOptions", **window, **chosen, **dilated, depthMultiplier=1,
    )  # fmt: skip
    w = filter_of(3, 3, 2, 4, dtype=d)
    yield case(
        "TRANSPOSE_CONV", f"{d}_act{act}", [held([1, 12, 5, 3]), w, image, bias(3, d, w)], [result(d, 2)],
        "TransposeConvOptions", **window, **chosen,
    )  # fmt: skip
    w = filter_of(5, 8, dtype=d)
    yield case(
        "FULLY_CONNECTED", f"{d}_act{act}", [data(3, 8, dtype=d), w, bias(5, d, w)], [result(d, 2)],
        "FullyConnectedOptions", **chosen,
    )  # fmt: skip


def _fused_floats(act: int) -> Iterator[OperatorCase]:
    """L2_NORMALIZATION and CONV_3D with a fused activation."""
    chosen = {"fusedActivationFunction": act}
    yield case("L2_NORMALIZATION", f"act{act}", [data(2, 5)], [Result()], "L2NormOptions", **chosen)
    w = Operand(draw(2, 2, 3, 3, 4, seed=3), True)
    options = {**STEPS_3D, "padding": 0}
    yield case(
        "CONV_3D", f"act{act}", [data(1, 4, 5, 6, 3), w, Operand(draw(4), True)], [Result()],
        "Conv3DOptions", **options, **chosen,
    )  # fmt: skip


def _broadcasts() -> Iterator[OperatorCase]:
    """Operands of rank 0 to 6, which are broadcast on both sides."""
    pairs = {
        "scalar": ((2, 3), ()),
        "scalars": ((), ()),
        "left": ((1,), (2, 3)),
        "both": ((2, 1, 4), (3, 1)),
        "rank5": ((2, 1, 2, 1, 3), (1, 2, 1, 2, 3)),
        "rank6": ((1, 2, 1, 2, 1, 3), (2, 1, 2, 1, 3, 1)),
    }
    names = (
        "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV", "FLOOR_MOD", "ATAN2", "EQUAL",
        "LESS", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS_EQUAL",
    )  # fmt: skip
    for name in (*_ARITHMETIC, *names):
        for label, (a, b) in pairs.items():
            for d in (FLOAT, INT8, "int32"):
                compares = name[:4] in ("EQUA", "LESS", "NOT_", "GREA")
                low = 1 if name in ("DIV", "POW", "FLOOR_DIV", "FLOOR_MOD") else -3
                one = data(*a, dtype=d, low=0.5 if name == "POW" else -5, high=5)
                two = data(*b, dtype=d, low=low, seed=7)
                output = (
                    Result("bool") if compares else result(d, 1 if name[0] == "M" and name[2] in "XN" else 2)
                )
                if name == "DIV" and d == INT8:
                    two = Operand(np.full(b, 40, INT8), False, 0.05, 0)
                yield case(name, f"{d}_{label}", [one, two], [output], _ARITHMETIC.get(name, ""), levels_=2.5)
                if label == "both":
                    constant = Operand(two.array, True, two.scale, two.zero_point)
                    yield case(
                        name, f"{d}_held", [one, constant], [output], _ARITHMETIC.get(name, ""), levels_=2.5
                    )


def _signs() -> Iterator[OperatorCase]:
    """Quotients, remainders and powers of all pairs of signs."""
    for name in ("DIV", "FLOOR_DIV", "FLOOR_MOD", "POW"):
        for d in (FLOAT, "int32", "int64"):
            one = Operand(np.array([7, -7, 7, -7, 6, -6, 0], d))
            two = Operand(np.array([2, 2, -2, -2, 3, -3, -3], d))
            if name == "POW":
                two = Operand(np.array([2, 3, 1, 0, 3, 2, 4], d))
            yield case(name, f"{d}_signs", [one, two], [Result(d)], _ARITHMETIC.get(name, ""))


def _scales() -> Iterator[OperatorCase]:
    """Operands of two scales, and of integers without one."""
    for name in ("EQUAL", "LESS", "GREATER_EQUAL", "NOT_EQUAL"):
        for d in (INT8, UINT8):
            two = Operand(draw(2, 6, dtype=d, seed=5), False, 0.08, 5)
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


def _selections() -> Iterator[OperatorCase]:
    """Conditions that are broadcast, or select rows."""
    for d in (FLOAT, INT8, "int32"):
        for label, shape in {"scalar": (), "rows": (2,), "same": (2, 3, 4), "rank5": (2, 1, 2, 3, 4)}.items():
            for name in ("SELECT", "SELECT_V2"):
                value = (2, 1, 2, 3, 4) if label == "rank5" else (2, 3, 4)
                operands = [data(*shape, dtype="bool"), data(*value, dtype=d), data(*value, dtype=d, seed=2)]
                yield case(
                    name, f"{d}_{label}", operands, [result(d)], f"{name.title().replace('_', '')}Options"
                )


def _near() -> Iterator[OperatorCase]:
    """Comparisons of quantised numbers less apart than the multiples of 2^-8 that LiteRT compares."""
    for d, scales in (("int8", (0.0017, 0.0023)), ("uint8", (0.03, 0.0021)), ("int16", (4e-5, 6e-5))):
        info = np.iinfo(d)
        x = np.linspace(info.min, info.max, 400).astype(d)
        zeros = (0, 0) if d == "int16" else (3, -5) if d == "int8" else (120, 131)
        y = np.clip((x.astype("float64") - zeros[0]) * scales[0] / scales[1] + zeros[1], info.min, info.max)
        y = (y // 3 * 3).clip(info.min, info.max).astype(d)
        for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
            pair = [Operand(x, False, scales[0], zeros[0]), Operand(y, False, scales[1], zeros[1])]
            yield case(name, f"{d}_near", pair, [Result("bool")])
            alike = [pair[0], Operand(y, False, scales[0], zeros[0])]
            yield case(name, f"{d}_alike", alike, [Result("bool")])


def _softmax(d: str) -> Iterator[OperatorCase]:
    """Softmax of ranks 1 to 5, and the attributes of activations."""
    fixed = {
        INT8: Result(INT8, 1 / 256, -128),
        UINT8: Result(UINT8, 1 / 256, 0),
        INT16: Result(INT16, 1 / 32768),
    }
    levels = 48.0 if d == INT16 else 2.5
    for shape in ((5,), (2, 5), (1, 2, 2, 5), (2, 1, 2, 2, 3)):
        yield case(
            "SOFTMAX", f"{d}_beta_{len(shape)}", [data(*shape, dtype=d)], [fixed.get(d, Result())],
            "SoftmaxOptions", beta=0.5, levels_=levels,
        )  # fmt: skip
        x = data(*shape, dtype=d)
        yield case(
            "LOG_SOFTMAX", f"{d}_{len(shape)}", [x],
            [{INT8: Result(INT8, 16 / 256, 127), UINT8: Result(UINT8, 16 / 256, 255)}.get(d, Result(d))],
            "LogSoftmaxOptions", levels_=2.5,
        )  # fmt: skip
    for alpha in (-0.5, 0.0, 1.5):
        x = data(3, 5, dtype=d)
        yield case("LEAKY_RELU", f"{d}_{alpha}", [x], [result(d)], "LeakyReluOptions", alpha=alpha)
    yield case(
        "GELU", f"{d}_approximate", [data(3, 5, dtype=d)], [result(d)], "GeluOptions", approximate=True,
        levels_=levels,
    )  # fmt: skip


def _limits() -> Iterator[OperatorCase]:
    """Values halfway between integers, and at the ends of their ranges."""
    halves = Operand(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.0, 1e9, -1e9, 3.4e38], FLOAT))
    limits = Operand(np.array([0.0, -0.0, np.inf, -np.inf, 1e-30, 80.0, -80.0, 100.0, -100.0], FLOAT))
    for name in (
        "ROUND", "FLOOR", "CEIL", "SIGN", "ABS", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "SQUARE",
        "TANH", "LOGISTIC", "HARD_SWISH", "EXP", "SQRT", "RSQRT", "LOG", "ELU", "GELU",
    ):  # fmt: skip
        if name != "EXP":  # ours saturates where LiteRT's overflows
            yield case(name, "halves", [halves], [Result()])
        if name not in ("GELU", "EXP"):
            yield case(name, "limits", [limits], [Result()])


def _plain() -> Iterator[OperatorCase]:
    """Integers without a scale, and ranks 0, 1 and 5."""
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


def _attributes() -> Iterator[OperatorCase]:
    """Attributes of FAKE_QUANT and LOCAL_RESPONSE_NORMALIZATION, and casts of less usual types."""
    for bits in (4, 8, 16):
        for label, least, more in (
            ("narrow", -1.3, {"narrowRange": True}),
            ("wide", -1.3, {}),
            ("positive", 0.5, {}),
        ):
            limits = {"min": least, "max": 2.1, "numBits": bits, **more}
            yield case("FAKE_QUANT", f"{label}{bits}", [data(2, 9)], [Result()], "FakeQuantOptions", **limits)
    for radius, beta in ((0, 0.5), (5, 1.0), (2, 0.5)):
        yield case(
            "LOCAL_RESPONSE_NORMALIZATION", f"{radius}_{beta}", [data(1, 2, 3, 8)], [Result()],
            "LocalResponseNormalizationOptions", radius=radius, bias=0.5, alpha=0.7, beta=beta,
            kernels_="BUILTIN",
        )  # fmt: skip
    for a in ("float16", "float64", "uint16", "uint32"):
        for b in (FLOAT, "int32", "int64", "bool"):
            values = Operand(draw(2, 4, dtype="int32", low=0).astype(a))
            yield case("CAST", f"{a}_{b}", [values], [Result(b)], "CastOptions")
            yield case("CAST", f"{b}_{a}", [Operand(values.array.astype(b))], [Result(a)], "CastOptions")


def cases_of_activations() -> Iterator[OperatorCase]:
    """Each fused activation that LiteRT applies: RELU, RELU_N1_TO_1, RELU6."""
    for act in range(1, 4):
        yield from _fused_arithmetic(act)
        for d in WEIGHTED:
            yield from _fused_windows(act, d)
        yield from _fused_floats(act)


def cases_of_operands() -> Iterator[OperatorCase]:
    """Shapes, scales and values of the operands of elementwise operators, and their attributes."""
    for group in (_broadcasts, _signs, _scales, _near, _selections):
        yield from group()
    for d in WEIGHTED:
        yield from _softmax(d)
    for group in (_limits, _plain, _attributes):
        yield from group()
