"""Sizes that a run counts, from the shapes of the reference's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.interface import CountedDimension, Interface, PortRecord
from kiln.errors import KilnError
from kiln.golden.counted import counted_sizes

LIMITS = {"a": 11, "b": 5, "c": 40}


def found(shapes: list[tuple[list[Any], tuple[int, ...]]], **limits: int) -> dict[str, int]:
    """The counted sizes, where each output has axes of the given expressions, and the given shape."""
    interface = Interface(
        inputs=[],
        outputs=[PortRecord(name="y", c_name="y", dtype="int64", shape=axes) for axes, _ in shapes],
        counted=[CountedDimension(name=n, tensor=f"of_{n}", bound=size) for n, size in limits.items()],
    )
    return counted_sizes(Path("m"), "random_1", interface, {"n": 2}, [np.zeros(size) for _, size in shapes])


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([([1, ["+", "a", "b"]], (1, 14))], 1),  # two joined lists
        ([([["+", ["*", 3, "a"], ["+", "b", ["*", "n", "c"]]]], (28,))], 0),
        ([([["+", ["*", 2, "a"], ["*", 3, "b"]]], (7,))], 0),  # the greatest a leaves no b
    ],
)
def test_an_axis_of_several_counted_sizes(shapes: list[Any], axis: int) -> None:
    sizes = found(shapes, **LIMITS)
    assert all(0 <= size <= LIMITS[name] for name, size in sizes.items())
    port = PortRecord(name="y", c_name="y", dtype="int64", shape=shapes[0][0]).at({**sizes, "n": 2})
    assert port.shape[axis] == shapes[0][1][axis]


def test_sizes_that_other_axes_determine_come_first() -> None:
    both = [([["+", "a", "b"]], (9,)), ([["+", "b", 1]], (4,))]
    assert found(both, a=11, b=5) == {"a": 6, "b": 3}
    assert found([(["a"], (2,)), ([["+", "a", "b"]], (2,))], a=11, b=5) == {"a": 2, "b": 0}


def test_more_elements_than_bounds_allow() -> None:
    with pytest.raises(KilnError, match=r"tensor 'of_a' has 17 elements .* allowed: 11; raise bounds\.of_a"):
        found([([["+", "a", "b"]], (17,))], a=11, b=5)
