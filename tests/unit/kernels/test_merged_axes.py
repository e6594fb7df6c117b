"""Which axes of a nest are merged into one."""

from __future__ import annotations

import pytest
from kiln.kernels.cpu.merged_axes import with_longer_rows
from kiln.tir.fused import Nest
from kiln.tir.inline import Expanded
from kiln.tir.symbols import NO_RANGES, SymbolRanges
from tvm import tirx
from tvm.ir import Range


def image_in_padded(channels: int, dtype: str) -> Nest:
    """y[i + 1, j + 1, c] = x[i, j, c] of 20 x 20 pixels, with axes of `dtype` and positions of 64 bits."""
    axes = [
        tirx.IterVar(Range(tirx.const(0, dtype), tirx.const(size, dtype)), tirx.Var(name, dtype), 0)
        for name, size in (("i", 20), ("j", 20), ("c", channels))
    ]
    x = tirx.decl_buffer((20, 20, channels), "int8", "x")
    y = tirx.decl_buffer((22, 22, channels), "int8", "y")
    rows = [tirx.Cast("int64", axis.var) if dtype != "int64" else axis.var for axis in axes[:2]]
    store = [*(row + tirx.const(1, "int64") for row in rows), axes[2].var]
    return Nest(y, axes, [], store, tirx.BufferLoad(x, [axis.var for axis in axes]), None)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("channels", [4, 5, 64])
def test_rows_of_a_padded_image_are_one_axis_without_threads(channels: int, dtype: str) -> None:
    nest = image_in_padded(channels, dtype)
    rows = with_longer_rows(nest, Expanded([], nest.value), {}, 4, NO_RANGES, shared=False)
    assert rows.extents == [20, 20 * channels]


def test_threads_keep_long_rows() -> None:
    for channels, extents in ((5, [20, 100]), (64, [20, 20, 64])):
        nest = image_in_padded(channels, "int32")
        rows = with_longer_rows(nest, Expanded([], nest.value), {}, 4, NO_RANGES, shared=True)
        assert rows.extents == extents


def test_a_dynamic_axis_is_merged_with_one_of_another_type() -> None:
    """y[i, j] = x[i, j], whose axis i of a fixed size has 32 bits, and j of a dynamic one 64."""
    size = tirx.Var("n", "int64")
    axes = [
        tirx.IterVar(Range(tirx.const(0, dtype), extent), tirx.Var(name, dtype), 0)
        for name, dtype, extent in (("i", "int32", tirx.const(8, "int32")), ("j", "int64", size))
    ]
    x, y = (tirx.decl_buffer((8, size), "int32", name) for name in "xy")
    indices = [axis.var for axis in axes]
    nest = Nest(y, axes, [], indices, tirx.BufferLoad(x, indices), None)
    ranges = SymbolRanges({size: (5, 10)})
    (merged,) = with_longer_rows(nest, Expanded([], nest.value), {}, 4, ranges, shared=False).axes
    assert str(merged.var.ty.dtype) == "int64" and ranges.same(merged.dom.extent, size * 8)
