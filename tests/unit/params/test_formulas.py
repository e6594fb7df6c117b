"""Formulas describe tensors, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kiln.params.formulas import Affine, Repeated, formula

RANDOM = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
ROWS, COLUMNS = np.arange(64).reshape(64, 1), np.arange(48)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
def test_fills_of_every_type(dtype: str) -> None:
    element_formula = formula(np.full((3, 5), 1, dtype))
    assert element_formula == Affine(dtype, 1, (0, 0))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.arange(3, 40, 4, dtype="int64"), Affine("int64", 3, (4,))),
        (np.arange(7, -7, -1, dtype="int8"), Affine("int8", 7, (-1,))),
        (np.arange(4096, dtype="float32").reshape(64, 64), Affine("float32", 0, (64, 1))),
        ((ROWS - COLUMNS).astype("int32"), Affine("int32", 0, (1, -1))),
        (np.broadcast_to(np.arange(5), (3, 5)).astype("int64"), Affine("int64", 0, (0, 1))),
        (np.full((2, 3), -0.0, "float32"), Affine("float32", -0.0, (0, 0))),
        (np.full((2, 3), -np.inf, "float32"), Affine("float32", -np.inf, (0, 0))),
        (np.full((2, 3), 0.5, ml_dtypes.bfloat16), Affine("bfloat16", 0.5, (0, 0))),
        (
            np.arange(100, dtype="float32") * np.float32(0.1),
            Affine("float32", 0.0, (float(np.float32(0.1)),)),
        ),
    ],
)
def test_formulas(value: Any, expected: Affine) -> None:
    element_formula = formula(value)
    assert isinstance(element_formula, Affine) and repr(element_formula) == repr(expected)


def test_equal_elements_along_an_axis() -> None:
    element_formula = formula(np.broadcast_to(RANDOM.reshape(4, 1, 6), (4, 3, 6)))
    assert isinstance(element_formula, Repeated) and element_formula.axes == (1,)
    np.testing.assert_array_equal(element_formula.value, RANDOM.reshape(4, 1, 6))


@pytest.mark.parametrize(
    "value",
    [
        RANDOM,
        np.zeros((0, 4), "float32"),
        np.float32(1),
        np.full((2, 2), np.nan, "float32"),
        np.array([0.0, -0.0], "float32"),
        np.array([1, 2, 3, 5]),
        np.array([0, 1 << 40], "int64"),
        np.array([0.0, np.inf], "float32"),
        np.arange(10, dtype="float64") * 0.1,
        np.array([True, False]),
    ],
)
def test_no_formula(value: Any) -> None:
    assert formula(value) is None
