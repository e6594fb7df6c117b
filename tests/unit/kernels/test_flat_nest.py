"""Which nests become one loop over their elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kiln.kernels.cpu.flat_nest import flattened
from kiln.tir.fused import Nest
from tvm import tirx
from tvm.ir import Range, TensorLoad


def nest_of(written: list[int], offset: int = 0, read: tuple[int, ...] = (0, 1)) -> tuple[Nest, list[Any]]:
    """y[i, j + offset] = x[i, j], for 5 x 128 elements of a tensor y of the shape `written`.

    `read`: which axes index x.
    """
    axes = [
        tirx.IterVar(
            Range(tirx.const(0, "int64"), tirx.const(size, "int64")),
            tirx.Var(name, "int64"),
            tirx.IterVar.DataPar,
        )
        for name, size in (("i", 5), ("j", 128))
    ]
    x = tirx.decl_buffer([(5, 128)[axis] for axis in read], "float32", "x")
    y = tirx.decl_buffer(written, "float32", "y")
    value = tirx.BufferLoad(x, [axes[axis].var for axis in read])
    store = [axes[0].var, axes[1].var + offset if offset else axes[1].var]
    return Nest(y, axes, [], store, value, None), [value]


def test_a_dense_nest_is_one_loop() -> None:
    nest, reads = nest_of([5, 128])
    assert all(isinstance(read, TensorLoad) for read in reads)
    flat = flattened(nest, reads)
    assert flat.extents == [640] and len(flat.store) == 2


def test_elements_of_a_dense_nest_follow_one_another_without_divisions() -> None:
    """Of rows of 14 elements, vectors would be gathered at positions that they divide by 14."""
    flat = flattened(*nest_of([5, 128]))
    for indices in (flat.store, flat.value.indices):
        assert [str(index) for index in indices] == ["T.int64(0)", "flat"]


def test_values_of_positions_are_those_of_the_axes() -> None:
    nest, reads = nest_of([5, 128])
    row = tirx.Cast("float32", nest.axes[0].var)
    flat = flattened(replace(nest, value=nest.value + row), reads)
    assert "flat // " in str(flat.value)


@pytest.mark.parametrize(
    ("written", "offset", "read"),
    [
        ([6, 129], 0, (0, 1)),  # inside a padded tensor: rows with gaps
        ([5, 130], 2, (0, 1)),
        ([5, 128], 0, (1,)),  # a value for each column
        ([5, 128], 0, (1, 0)),  # transposed
    ],
)
def test_a_nest_with_gaps_or_other_indices_stays(
    written: list[int], offset: int, read: tuple[int, ...]
) -> None:
    nest, reads = nest_of(written, offset, read)
    assert flattened(nest, reads) is nest
