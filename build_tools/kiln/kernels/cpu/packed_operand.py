"""The right operand of a matmul whose operands are both known only at run time, in panels of columns.

A panel is read in place where its columns are contiguous and few rows of the result use them. Otherwise it is
copied to scratch memory as [k][NR], with zeros after its last column, in the order in which the inner loop
reads it. The copy goes row by row, or where k is contiguous by transposing blocks in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.tir.builder import bind, chunks, divide, load, modulo, serial, store, vector
from kiln.tir.symbols import SymbolRanges, ceil_div, floor_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks
from kiln.tir.transpose import transpose_block

# The most tiles of rows that read a panel in place, if the rows of the panel are distant in memory.
_TILES_IN_PLACE = 2
# From so many tiles of rows on, last columns that take several short vectors are packed as a whole one, which
# costs a copy of the panel. Measured on Zen 4 with 7 columns and 50 rows: a quarter of the time with AVX2.
_TILES_OF_WHOLE_VECTORS = 4


class Panels:
    """The columns of the right operand, `tile.columns` at a time: in place, or packed into scratch memory."""

    def __init__(
        self, tile: Tile, rows: Extent, count: Extent, depth: Extent, column_step: Extent, step: Extent,
        ranges: SymbolRanges,
    ) -> None:  # fmt: skip
        """Describe `count` columns of `depth` elements.

        `column_step`: elements from column to column; `step`: from element to element of a column. `rows`:
        rows of the result, which all read the columns.
        """
        self.tile, self.depth, self.count = tile, depth, count
        self.step, self.column_step = step, column_step
        close = not is_dynamic(self.step) and self.step <= 2 * tile.columns
        near = close or ceil_div(ranges.greatest(rows), tile.rows) <= _TILES_IN_PLACE
        neighbours = not is_dynamic(self.column_step) and self.column_step == 1
        many = ceil_div(ranges.greatest(rows), tile.rows) >= _TILES_OF_WHOLE_VECTORS
        ragged = not is_dynamic(count) and len(list(chunks(count % tile.lanes, tile.lanes))) > 1
        self.packed = is_dynamic(self.count) or not (neighbours and near) or (ragged and many)

    @property
    def number(self) -> Extent:
        """Number of panels that cover all columns."""
        return ceil_div(self.count, self.tile.columns)

    @property
    def size(self) -> Extent:
        """Elements of one packed panel."""
        return self.depth * self.tile.columns

    def vectors(self, columns: Extent) -> list[tuple[int, int]]:
        """(offset, width) of each vector of a panel with `columns` columns."""
        lanes = self.tile.lanes
        if is_dynamic(columns):
            columns = self.tile.columns
        if self.packed:
            return [(offset, lanes) for offset in range(0, columns, lanes)]
        return list(chunks(columns, lanes))

    def pack(self, source: Any, start: Expr, columns: Extent, target: Any, at: Expr) -> None:
        """Copy the panel that begins at source[start] to target[at] as [k][NR], zeros after its columns."""
        width, lanes = self.tile.columns, self.tile.lanes
        for offset, _ in self.vectors(columns):
            if is_dynamic(columns) or offset + lanes > columns:
                with serial(self.depth) as k, vector(lanes) as lane:
                    store(target, [at + k * int64(width) + int64(offset) + lane], tirx.const(0, "float32"))
        if not is_dynamic(self.column_step) and self.column_step == 1:
            with serial(self.depth) as k:
                from_row, to_row = start + k * int64(self.step), at + k * int64(width)

                def visit(first: Expr, size: int) -> None:
                    with vector(size) as lane:
                        store(target, [to_row + first + lane], load(source, [from_row + first + lane]))

                blocks(columns, lanes, visit) if is_dynamic(columns) else _cut(columns, lanes, visit)
            return
        square = lanes if not is_dynamic(self.step) and self.step == 1 else 1
        whole_columns, whole_depth = _rounded_down(columns, square), _rounded_down(self.depth, square)
        if square > 1:
            across = serial(floor_div(whole_columns, square))
            with across as block, serial(floor_div(whole_depth, square)) as depth_block:
                column, k = block * int64(square), depth_block * int64(square)
                source_offset = start + column * int64(self.column_step) + k
                target_offset = at + k * int64(width) + column
                transpose_block(source, source_offset, self.column_step, target, target_offset, width, square)
        else:
            whole_columns = whole_depth = 0
        self._copy(source, start, target, at, (0, whole_columns), (whole_depth, self.depth))
        self._copy(source, start, target, at, (whole_columns, columns), (0, self.depth))

    def _copy(
        self,
        source: Any,
        start: Expr,
        target: Any,
        at: Expr,
        columns: tuple[Extent, Extent],
        depth: tuple[Extent, Extent],
    ) -> None:
        """Copy the elements in a range of columns and a range of depth, one at a time."""
        if any(not is_dynamic(b) and not is_dynamic(a) and a == b for a, b in (columns, depth)):
            return
        with (
            serial(columns[1] - columns[0], columns[0]) as column,
            serial(depth[1] - depth[0], depth[0]) as k,
        ):
            value = load(source, [start + column * int64(self.column_step) + k * int64(self.step)])
            store(target, [at + k * int64(self.tile.columns) + column], value)


def _rounded_down(size: Extent, step: int) -> Extent:
    """`size` rounded down to a multiple of `step`."""
    return (
        size - modulo(size, step)
        if is_dynamic(size) and step > 1
        else size - (0 if step == 1 else size % step)
    )


def _cut(size: int, lanes: int, visit: Any) -> None:
    """visit(first, width) for each vector of a row of `size` elements."""
    for offset, width in chunks(size, lanes):
        visit(int64(offset), width)


def one_panel(count: Extent, width: int, number: Expr, visit: Callable[[Expr, Extent], None]) -> None:
    """Emit visit(first column, columns) for panel `number` of `count` columns; the last may be narrower."""
    if is_dynamic(count):
        full_panels = divide(count, width)
        with builder.If(number < full_panels), builder.Then():
            visit(bind(number * int64(width)), width)
        with builder.If(number >= full_panels), builder.Then():
            visit(bind(full_panels * int64(width)), modulo(count, width))
        return
    full_panels = count // width
    if not count % width:
        visit(bind(number * int64(width)), width)
        return
    if not full_panels:
        visit(int64(0), count)
        return
    with builder.If(number < int64(full_panels)), builder.Then():
        visit(bind(number * int64(width)), width)
    with builder.If(number >= int64(full_panels)), builder.Then():
        visit(int64(full_panels * width), count - full_panels * width)
