"""The comparison rule: which values agree, which do not, and the text of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.errors import KilnError
from kiln.golden.compare import ErrorLimits, compare, limits_for, read_tensor

EXACT = ErrorLimits(0.0, 0.0, 0)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_equal_is_equal_at_any_limit() -> None:
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"):
        value = np.array([0, 1, 1], dtype)
        assert compare(value, value.copy(), EXACT).passed


def test_the_relative_limit_is_of_the_greatest_magnitude() -> None:
    limits = ErrorLimits(absolute=0.001, relative=0.01)
    result = compare(floats(0.05, -2.0), floats(0.03, -2.0), limits)
    assert result.passed
    assert result.limit == pytest.approx(0.001 + 0.01 * 2.0)
    assert result.error == pytest.approx(0.02)
    assert not compare(floats(0.0515, -2.0), floats(0.03, -2.0), limits).passed


def test_what_fails_is_named() -> None:
    got, want = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    got[1, 2], got[0, 1] = 5, 1
    detail = compare(got, want, ErrorLimits()).detail
    assert detail == "2 of 6 elements differ by more than 1e-05, most at [1, 2]: 5.0 instead of 0.0"


def test_nan_and_infinity_agree_only_with_themselves() -> None:
    nan, inf = float("nan"), float("inf")
    loose = ErrorLimits(absolute=1e30, relative=1.0)
    assert compare(floats(nan, inf, -inf, 1), floats(nan, inf, -inf, 1), loose).passed
    for got, want in ((nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf), (nan, inf), (inf, nan)):
        result = compare(floats(got, 1), floats(want, 1), loose)
        assert not result.passed and result.error == inf, (got, want)
    # An infinity in the reference must not make every other error small in comparison.
    assert not compare(floats(inf, 2), floats(inf, 1), ErrorLimits(0.0, 0.1)).passed
    assert compare(floats(nan), floats(nan), EXACT).passed


def test_levels_are_for_quantised_integers_only() -> None:
    got, want = np.array([-128, 127], np.int8), np.array([-127, 127], np.int8)
    assert compare(got, want, ErrorLimits(levels=1), quantised=True).passed
    assert not compare(got, want, ErrorLimits(levels=0), quantised=True).passed
    assert not compare(got, want, ErrorLimits(levels=1), quantised=False).passed


def test_differences_do_not_wrap() -> None:
    result = compare(
        np.array([-128], np.int8), np.array([127], np.int8), ErrorLimits(levels=1), quantised=True
    )
    assert not result.passed and result.error == 255
    largest = np.iinfo(np.int64)
    result = compare(np.array([largest.min]), np.array([largest.max]), EXACT)
    assert not result.passed and result.error == float(2**64 - 1)
    # Neighbours beyond 2**53, where doubles would call them equal.
    assert not compare(np.array([2**60]), np.array([2**60 + 1]), EXACT).passed
    assert not compare(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64), EXACT).passed
    assert not compare(np.array([True]), np.array([False]), EXACT).passed


def test_type_and_shape_must_be_the_same() -> None:
    assert "float64[2] instead of float32[2]" in compare(np.zeros(2), floats(0, 0), ErrorLimits()).detail
    assert (
        "float32[2] instead of float32[1, 2]"
        in compare(floats(0, 0), floats(0, 0)[None], ErrorLimits()).detail
    )


def test_nothing_agrees_with_nothing() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert compare(empty, empty, EXACT).passed


def test_an_output_s_own_limits_win() -> None:
    tolerance = {"absolute": 1e-3, "levels": 2, "outputs": {"y": {"absolute": 0.0, "levels": None}}}
    assert limits_for(tolerance, "y") == ErrorLimits(0.0, ErrorLimits().relative, 2)
    assert limits_for(tolerance, "z") == ErrorLimits(1e-3, ErrorLimits().relative, 2)
    assert limits_for({}, "z") == ErrorLimits()


def test_defaults_are_those_of_the_configuration() -> None:
    from kiln.config.tolerance import Tolerance

    written = Tolerance.model_validate({}).model_dump()
    assert limits_for(written, "y") == ErrorLimits()


def test_tensor_files(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\x01\x00\x00\x00\xff\xff\xff\xff")
    assert read_tensor(path, "int32", [2, 1]).tolist() == [[1], [-1]]
    assert read_tensor(path, "bool", [8]).tolist()[:2] == [True, False]
    with pytest.raises(KilnError, match=r"x\.bin: 8 bytes, expected 12 for int32\[3\]"):
        read_tensor(path, "int32", [3])
    with pytest.raises(KilnError, match="cannot read"):
        read_tensor(tmp_path / "y.bin", "int32", [3])
