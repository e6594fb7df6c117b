"""Limits of a model's `tolerance` that no output reads are refused."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config.interface import PortRecord, Quantisation
from kiln.config.tolerance import Tolerance
from kiln.errors import KilnError
from kiln.golden.limits import check_limits


def check(tolerance: dict[str, Any], **dtypes: str) -> None:
    """Check the limits of a model with an output of each type; `q` before a type: quantised."""
    quant = Quantisation(scale=0.5, zero_point=0)
    outputs = [
        PortRecord(
            name=name, c_name=name, dtype=dtype.removeprefix("q"), shape=[2],
            quant=quant if dtype[0] == "q" else None,
        )
        for name, dtype in dtypes.items()
    ]  # fmt: skip
    limits = Tolerance.model_validate(tolerance)
    check_limits("m", {"tolerance": limits.model_dump(), "stated": limits.stated}, outputs)


OWN = [
    ("yy", {}, "yy: the model has no such output; did you mean 'y'?"),
    ("y", {"levels": 2}, "y.levels: 2, but the output is of floats, whose limits are: absolute, relative"),
    (
        "q",
        {"relative": 0.1},
        "q.relative: 0.1, but the output is of quantised integers, whose limits are: lev",
    ),
    (
        "i",
        {"levels": 2},
        "i.levels: 2, but the output is of integers or booleans that are not quantised, whi",
    ),
]


@pytest.mark.parametrize(("name", "limits", "message"), OWN)
def test_limits_that_an_output_does_not_have_are_refused(
    name: str, limits: dict[str, float], message: str
) -> None:
    with pytest.raises(KilnError) as raised:
        check({"outputs": {name: limits}}, y="float32", q="qint8", i="int64")
    assert str(raised.value).startswith(f"model 'm': tolerance.outputs.{message}")


ALL = [
    ({"levels": 3}, "float16", "levels: every output is of floats, whose limits are: absolute, relative"),
    ({"levels": 3}, "int64", "levels: every output is of integers or booleans that are not quantised"),
    (
        {"absolute": 0.5},
        "quint8",
        "absolute: every output is of quantised integers, whose limits are: levels",
    ),
    ({"relative": 0.5}, "bool", "relative: every output is of integers or booleans that are not quantised"),
]


@pytest.mark.parametrize(("limits", "dtype", "message"), ALL)
def test_limits_that_no_output_reads_are_refused(limits: dict[str, Any], dtype: str, message: str) -> None:
    with pytest.raises(KilnError) as raised:
        check(limits, y=dtype)
    assert str(raised.value).startswith(f"model 'm': tolerance.{message}")
    check(limits, y=dtype, a="float32", b="qint8")
    check({key: getattr(Tolerance(), key) for key in limits}, y=dtype)
