"""Size expressions: values, bounds, text."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest
from kiln.config import sizes
from kiln.config.interface import Interface, PortRecord

DIMS = {"seq": (1, 7), "width": (32, 40)}


def _random(generator: random.Random, depth: int) -> Any:
    if depth == 0 or generator.random() < 0.2:
        return generator.choice(["seq", "width", generator.randrange(1, 9)])
    operator = generator.choice(["+", "*", "//", "%", "min", "max", "-"])
    left, right = _random(generator, depth - 1), _random(generator, depth - 1)
    if operator in ("//", "%"):
        right = generator.choice([*range(-6, 0), *range(1, 9), ["-", "seq", 3], "seq", ["-", 0, "width"]])
    return [operator, left, right]


def test_bounds_hold_for_all_sizes_whatever_the_sign() -> None:
    """Bounds, and that an expression that grows is greatest at the greatest sizes."""
    generator = random.Random(7)
    grown = 0
    for _ in range(500):
        expr = sizes.check(_random(generator, 3))
        values = []
        for seq, width in itertools.product(range(1, 8), range(32, 41)):
            with contextlib.suppress(ZeroDivisionError):
                values.append(sizes.evaluate(expr, {"seq": seq, "width": width}))
        if values:
            low, high = sizes.bounds(expr, DIMS)
            assert low <= min(values) and max(values) <= high, sizes.show(expr)
            if sizes.grows(expr):
                grown += 1
                assert max(values) == values[-1], sizes.show(expr)
        assert sizes.names(expr) <= set(DIMS)
    assert grown > 50


@pytest.mark.parametrize(
    ("expr", "grown"),
    [
        ("seq", True),
        (0, True),
        (-1, False),
        (["-", "seq", 1], True),
        (["-", 4, "seq"], False),
        (["-", "width", "seq"], False),
        (["//", "seq", 2], True),
        (["//", "seq", -2], False),
        (["//", 8, "seq"], False),
        (["%", "seq", 3], False),
        (["*", "seq", "width"], True),
        (["*", "seq", -2], False),
        (["*", ["-", "seq", 4], 2], True),
        (["*", ["-", "seq", 4], ["-", "seq", 4]], False),  # 9 for 1, and 9 for 7
        (["+", ["-", "seq", 9], "width"], True),
        (["max", "seq", 2], True),
    ],
)
def test_sizes_that_are_greatest_at_the_greatest_dimensions(expr: Any, grown: bool) -> None:
    assert sizes.grows(expr) == grown


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (["%", "seq", -5], (-4, 0)),
        (["-", "seq", ["%", "seq", -5]], (1, 11)),  # seq rounded up to a multiple of 5: 10 at most
        (["//", ["-", 0, "seq"], 3], (-3, -1)),
        (["//", "seq", -3], (-3, -1)),
        (["//", 12, ["-", "seq", 4]], (-12, 12)),
        (["%", "width", 100], (32, 40)),
        (["%", ["+", "seq", 9], 8], (0, 7)),
        (["%", ["+", "seq", 8], 16], (9, 15)),
    ],
)
def test_bounds_of_divisions(expr: Any, expected: tuple[int, int]) -> None:
    assert sizes.bounds(expr, DIMS) == expected


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (3, "3"),
        ("seq", "seq"),
        (["*", ["+", "seq", 1], 12], "(seq + 1) * 12"),
        (["//", "width", 8], "width // 8"),
        (["-", "width", ["-", "seq", 1]], "width - (seq - 1)"),
        (["min", "seq", 4], "min(seq, 4)"),
    ],
)
def test_people_can_read_them(expr: Any, text: str) -> None:
    assert sizes.show(expr) == text


@pytest.mark.parametrize("wrong", [True, 1.5, None, ["^", 1, 2], ["+", 1], ["+", 1, [2]]])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        sizes.check(wrong)


def test_an_interface_without_dimensions_keeps_the_sizes_that_are_counted() -> None:
    port = PortRecord(
        name="y", c_name="y", dtype="float32", shape=[["min", "n_y", 20], 4, ["+", "n_y", "seq"]]
    )
    fixed = Interface(inputs=[], outputs=[port]).at({"seq": 3})
    assert fixed.outputs[0].shape == [["min", "n_y", 20], 4, ["+", "n_y", 3]]
