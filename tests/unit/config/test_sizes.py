"""Size expressions: values, bounds, text."""

from __future__ import annotations

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
    if operator in ("//", "%"):  # by numbers only, as shapes are
        right = generator.randrange(1, 9)
    if operator == "-":  # never below zero
        left = ["+", left, right]
    return [operator, left, right]


def test_bounds_hold_and_python_agrees_with_c_text() -> None:
    generator = random.Random(7)
    for _ in range(300):
        expr = sizes.check(_random(generator, 3))
        low, high = sizes.bounds(expr, DIMS)
        python = sizes.c_text(expr, {"seq": "seq", "width": "width"})
        for seq, width in itertools.product(range(1, 8), range(32, 41)):
            value = sizes.evaluate(expr, {"seq": seq, "width": width})
            assert low <= value <= high
            if "?" not in python:  # Python has another form of it
                assert eval(python.replace("/", "//"), {"seq": seq, "width": width}) == value
        assert sizes.names(expr) <= set(DIMS)


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
