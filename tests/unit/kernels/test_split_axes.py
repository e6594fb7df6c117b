"""Which axes are split in two: those in quotients and remainders of whole parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kiln.kernels.cpu.split_axes import with_split_axes
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded
from kiln.tir.symbols import NO_RANGES
from tvm import tirx
from tvm.ir import Range

Index = Callable[[Any, Any], Any]


def nest_of(index: Index, columns: int) -> tuple[Nest, Expanded]:
    """y[i, j] = x[index(i, j)], for 4 x `columns` elements."""
    axes = [
        tirx.IterVar(Range(tirx.const(0, "int64"), tirx.const(size, "int64")), tirx.Var(name, "int64"), 0)
        for name, size in (("i", 4), ("j", columns))
    ]
    x = tirx.decl_buffer([4096], "float32", "x")
    y = tirx.decl_buffer([4, columns], "float32", "y")
    variables = [axis.var for axis in axes]
    value = tirx.BufferLoad(x, [index(*variables)])
    return Nest(y, axes, [], variables, value, None), Expanded([], value)


@pytest.mark.parametrize(
    ("index", "columns", "extents"),
    [
        (lambda i, j: i * 50 + j % 50, 150, [4, 3, 50]),
        (lambda i, j: i * 50 + j // 32, 96, [4, 3, 32]),
        (lambda i, j: (i % 2) * 96 + j, 96, [2, 2, 96]),
        (lambda i, j: (i // 2) * 96 + j % 48, 96, [2, 2, 2, 48]),
        (lambda i, j: j % 60 // 20, 120, [4, 2, 3, 20]),
        (lambda i, j: i * 50 + j // 3, 150, [4, 50, 3]),  # interleaved
    ],
)
def test_whole_parts_of_an_axis_are_split(index: Index, columns: int, extents: list[int]) -> None:
    split = with_split_axes(*nest_of(index, columns), 8, NO_RANGES)
    assert split.extents == extents
    assert "%" not in str(split.value) and "//" not in str(split.value)


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        (lambda i, j: i * 150 + j, 150),
        (lambda i, j: (i * 150 + j) % 50, 150),  # of two axes
        (lambda i, j: j % 40, 150),  # the last part is shorter
        (lambda i, j: i * 150 + j // 200, 150),
        (lambda i, j: (j // 3) * (j // 3), 150),  # a short part that cannot be interleaved
    ],
)
def test_other_axes_stay(index: Index, columns: int) -> None:
    nest, expanded = nest_of(index, columns)
    assert with_split_axes(nest, expanded, 8, NO_RANGES) is nest
