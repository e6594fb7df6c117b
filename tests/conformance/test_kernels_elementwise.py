"""Elementwise functions, chains of them, and every data type, against numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from .lowered import Array, const
from .operators import Case, agree, one

op = relax.op


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + _erf(x / np.sqrt(2)))


def _erf(x: Array) -> Array:
    """erf of each element, by the C library."""
    return np.vectorize(math.erf, otypes=["f8"])(x.astype("f8"))


CASES: dict[str, Case] = {
    "gelu": one((3, 37), op.nn.gelu, _gelu),
    "gelu_tanh": one(
        (3, 37),
        op.nn.gelu_tanh,
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype("f8") ** 3))),
    ),
    "erf": one((3, 37), op.erf, _erf),
    "tanh_exp_chain": one(
        (2, 41),
        lambda x: op.exp(op.tanh(op.sigmoid(x))),
        lambda x: np.exp(np.tanh(1 / (1 + np.exp(-x.astype("f8"))))),
    ),
    "log_of_square": one(
        (2, 19),
        lambda x: op.log(op.add(op.multiply(x, x), const(0.5))),
        lambda x: np.log(x.astype("f8") ** 2 + 0.5),
    ),
    "power_constant": one((2, 19), lambda x: op.power(x, const(3.0)), lambda x: x.astype("f8") ** 3),
    "power_half": one(
        (2, 19), lambda x: op.power(op.abs(x), const(0.5)), lambda x: np.abs(x.astype("f8")) ** 0.5
    ),
    "rsqrt": one((2, 19), lambda x: op.rsqrt(op.exp(x)), lambda x: np.exp(x.astype("f8")) ** -0.5),
    "mish": one(
        (2, 19),
        lambda x: op.multiply(x, op.tanh(op.log(op.add(op.exp(x), const(1.0))))),
        lambda x: x * np.tanh(np.log1p(np.exp(x.astype("f8")))),
    ),
    "leaky_relu": one(
        (3, 17), lambda x: op.nn.leakyrelu(x, 0.1), lambda x: np.where(x > 0, x, x * np.float32(0.1))
    ),
    "where": Case(
        ((3, 17), (3, 17)),
        lambda a, b: op.where(op.greater(a, b), a, const(2.0)),
        lambda a, b: np.where(a > b, a, np.float32(2)),
        True,
    ),
    "round_ties": one(
        (4, 9),
        lambda x: op.round(op.multiply(op.floor(x), const(0.5))),
        lambda x: np.round(np.floor(x) * np.float32(0.5)),
        True,
    ),
    "floor_ceil_trunc": one(
        (3, 11),
        lambda x: op.add(op.floor(x), op.multiply(op.ceil(x), op.trunc(x))),
        lambda x: np.floor(x) + np.ceil(x) * np.trunc(x),
        True,
    ),
    "sin_cos": one(
        (2, 33),
        lambda x: op.add(op.sin(x), op.cos(x)),
        lambda x: np.sin(x.astype("f8")) + np.cos(x.astype("f8")),
    ),
    "power_of_two_inputs": Case(
        ((2, 9), (2, 9)),
        lambda a, b: op.power(op.add(op.abs(a), const(0.1)), b),
        lambda a, b: (np.abs(a.astype("f8")) + np.float32(0.1)) ** b,
    ),
    "int64_arithmetic": one(
        (3, 17),
        lambda x: op.add(op.multiply(x, const(3, "int64")), const(2**40, "int64")),
        lambda x: x * 3 + 2**40,
        True,
        "int64",
    ),
    "int32_divide": one(
        (3, 17), lambda x: op.floor_divide(x, const(7, "int32")), lambda x: x // 7, True, "int32"
    ),
    "uint8_to_float": one(
        (2, 3, 5),
        lambda x: op.multiply(op.astype(x, "float32"), const(0.25)),
        lambda x: x * np.float32(0.25),
        True,
        "uint8",
    ),
    "int8_max": one((3, 50), lambda x: op.max(x, [1]), lambda x: x.max(axis=1), True, "int8"),
    "compare_to_bool": Case(((3, 19), (3, 19)), op.greater, lambda a, b: a > b, True),
    "bool_not": one((3, 19), op.logical_not, lambda x: ~x, True, "bool"),
    "bool_to_float": one((3, 19), lambda x: op.astype(x, "float32"), lambda x: x.astype("f4"), True, "bool"),
    "float64": one((3, 9), lambda x: op.multiply(x, x), lambda x: x * x, True, "float64"),
    "cast_to_int64": one((3, 19), lambda x: op.astype(x, "int64"), lambda x: x.astype("int64"), True),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Path) -> None:
    agree(CASES[name], tmp_path)
