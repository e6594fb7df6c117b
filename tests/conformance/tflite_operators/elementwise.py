"""Cases of elementwise operators, in every type that LiteRT takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from .files import Operand, OperatorCase, Result
from .operands import FLOAT, INT8, INT16, SCALES, TYPES, UINT8, case, data, draw, held, result

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


def _unary() -> Iterator[OperatorCase]:
    """Operators of one operand, in every type."""
    for name, (low, high) in _FLOATS.items():
        table, options = _TABLES.get(name, ("", {}))
        for dtype in TYPES:
            output = result(dtype)
            if dtype in _FIXED.get(name, {}):
                output = Result(dtype, *_FIXED[name][dtype])
            operand = data(2, 3, 4, dtype=dtype, low=low, high=high)
            if low >= 0 and dtype in SCALES:  # real values above 0
                operand = Operand(
                    np.abs(operand.array.astype("int32") // 2 + 8).astype(dtype), False, 0.05, 0
                )
            if name == "NEG" and dtype == INT8:  # LiteRT's kernel negates the levels, whatever the zero point
                operand, output = replace(operand, zero_point=0), replace(output, zero_point=0)
            levels = {
                INT16: 48.0 if name in _FIXED or name in _TABULATED else 6.0,
                INT8: 2.5,
                UINT8: 2.5,
            }.get(dtype, 0.0)
            yield case(name, dtype, [operand], [output], table, **options, levels_=levels)
    for dtype in (FLOAT, "int32", "bool"):
        yield case("SHAPE", dtype, [data(2, 3, dtype=dtype)], [Result("int32")], "ShapeOptions", outType=2)
    yield case("RANK", FLOAT, [data(2, 3)], [Result("int32")], "RankOptions")
    yield case("LOGICAL_NOT", "bool", [data(2, 3, dtype="bool")], [Result("bool")])


def _binary() -> Iterator[OperatorCase]:
    """Operators of two operands of one shape, and of shapes that are broadcast, in every type."""
    names = [
        "ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV",
        "FLOOR_MOD", "ATAN2",
    ]  # fmt: skip
    for name in names:
        table, options = _TABLES.get(name, ("", {}))
        for dtype in TYPES:
            low = 1 if name in ("DIV", "POW", "FLOOR_DIV", "FLOOR_MOD") else -3
            for label, shape in (("", (2, 3, 4)), ("broadcast", (3, 1))):
                a, b = data(2, 3, 4, dtype=dtype), data(*shape, dtype=dtype, low=low, high=3, seed=7)
                if name == "POW" and dtype == FLOAT:
                    a = data(2, 3, 4, low=0.5)
                if name == "DIV" and dtype in SCALES:
                    b = Operand(
                        np.abs(b.array.astype("int32") // 4).astype(dtype) + np.array(40, dtype),
                        False,
                        0.05,
                        0,
                    )
                output = result(dtype, 1.0 if name in ("MAXIMUM", "MINIMUM") else 2.0)
                if dtype == INT16 and name in ("ADD", "SUB"):
                    options = {**options, "potScaleInt16": False}
                yield case(name, f"{dtype}{label}", [a, b], [output], table, **options, levels_=2.5)
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        for dtype in (*TYPES, "bool"):
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
            "ADD_N", dtype, [data(2, 3, dtype=dtype, seed=n) for n in range(3)], [result(dtype)],
            "AddNOptions",
        )  # fmt: skip


def _stablehlo() -> Iterator[OperatorCase]:
    """Operators of StableHLO, in floats, integers and booleans."""
    one = ["LOGISTIC", "ABS", "COSINE", "EXPONENTIAL", "FLOOR", "LOG", "NEGATE", "RSQRT", "TANH", "CBRT"]
    two = [
        "ADD", "DIVIDE", "MULTIPLY", "MAXIMUM", "MINIMUM", "POWER", "REMAINDER", "SUBTRACT", "AND",
        "OR", "SHIFT_LEFT",
    ]  # fmt: skip
    for name in one:
        for d in (FLOAT, "int32"):
            yield case(f"STABLEHLO_{name}", d, [data(2, 3, dtype=d, low=0.5)], [Result(d)])
    for name in two:
        for d in (FLOAT, "int32", "bool"):
            yield case(
                f"STABLEHLO_{name}", d, [data(2, 3, dtype=d, low=1), data(2, 3, dtype=d, low=1, seed=4)],
                [Result(d)],
            )  # fmt: skip
    yield case(
        "STABLEHLO_SELECT", FLOAT, [data(2, 3, dtype="bool"), data(2, 3), data(2, 3, seed=4)], [Result()]
    )
    yield case("STABLEHLO_RESHAPE", FLOAT, [data(2, 3)], [Result()])
    yield case("STABLEHLO_CLAMP", FLOAT, [held(-1, FLOAT), data(2, 3), held(1, FLOAT)], [Result()])
    yield case(
        "STABLEHLO_CONCATENATE", FLOAT, [data(2, 3), data(2, 3)], [Result()], "StablehloConcatenateOptions",
        dimension=1,
    )  # fmt: skip
    yield case(
        "STABLEHLO_TRANSPOSE", FLOAT, [data(2, 3)], [Result()], "StablehloTransposeOptions",
        permutation=[1, 0],
    )  # fmt: skip
    yield case("STABLEHLO_CONVERT", FLOAT, [data(2, 3)], [Result("int32")])


def elementwise_cases() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for group in (_unary, _binary, _stablehlo):
        yield from group()
