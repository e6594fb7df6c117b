"""Operands of kernels/cpu/batch_matmul_int8.py in the form that its instructions multiply, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu.amx_tile import LANES as AMX_LANES
from kiln.kernels.cpu.amx_tile import GroupedColumns, TileRegisters, TileSums
from kiln.kernels.cpu.batch_matmul import MatmulNest, axis_extent
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.kernels.cpu.matrix_tile import NAMES as MATRIX
from kiln.kernels.cpu.matrix_tile import PackedPanel, runtime_sums
from kiln.kernels.cpu.pair_sums import joined, upper_bits
from kiln.kernels.cpu.runtime_product import RuntimeProduct, groups_of_vector, selects_lane
from kiln.tir.builder import bind, chunks, divide, load, modulo, registers, serial, store
from kiln.tir.symbols import SymbolRanges, ceil_div, floor_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks
from kiln.tir.vector_expr import ramp


class PackedOperands:
    """The packed operands of one task: sizes of its scratch memory, and the statements that fill it.

    `amx`: the sizes of the tile registers that compute the sums; None: vectors compute them. `row_size`:
    elements of a packed row, a multiple of G, as many as are multiplied at a time. `rows_size`: those of all
    rows of one batch, [m][k]. `panel_size`: those of one panel of columns, [k / G][NR][G].
    """

    def __init__(
        self, form: RuntimeProduct, product: MatmulNest, ranges: SymbolRanges, tile: Tile,
        amx: TileRegisters | None,
    ) -> None:  # fmt: skip
        self.form, self.product, self.tile, self.amx = form, product, tile, amx
        self.rows, self.depth = axis_extent(product.rows), axis_extent(product.depth)
        self.groups = ranges.simplify(ceil_div(self.depth, form.group))
        self.row_size = ranges.product([self.groups, form.group])
        self.rows_size = ranges.product([self.rows, self.row_size])
        self.panel_size = ranges.product([self.groups, form.group * tile.columns])

    def pack_rows(self, source: Any, batch: dict[Any, Expr], memory: Any, base: Expr) -> None:
        """Copy the rows of `batch` to memory[base] as [m][k]."""
        operand, form = self.product.left, self.form
        begin = bind(operand.offset(batch))
        row_step = 0 if self.product.rows is None else operand.strides[self.product.rows.var]
        step = operand.strides[self.product.depth.var]
        contiguous = not is_dynamic(step) and step == 1
        with serial(self.rows) as row:
            start, to = begin + row * int64(row_step), base + row * int64(self.row_size)

            def copy(first: Expr, width: int) -> None:
                source_offset, there = start + first * int64(step), to + first
                if width > 1:
                    source_offset, there = ramp(source_offset, width), ramp(there, width)
                value = self._shifted(load(source, [source_offset]), width, str(operand.buffer.dtype))
                store(memory, [there], value)

            _powers(self.depth, 4 * form.lanes if contiguous else 1, copy)
            padding = self.row_size - self.depth
            if is_dynamic(padding) or padding:
                with serial(padding) as k:
                    store(memory, [to + int64(self.depth) + k], tirx.const(0, form.left))

    def _shifted(self, value: Expr, width: int, dtype: str) -> Expr:
        many = f"x{width}" if width > 1 else ""
        if not self.form.shift:
            return value if dtype == self.form.left else tirx.Cast(self.form.left + many, value)
        flip = tirx.const(-128 if dtype == "int8" else 128, dtype)
        flipped = tirx.bitwise_xor(value, tirx.Broadcast(flip, width) if width > 1 else flip)
        return tirx.reinterpret(self.form.left + many, flipped)

    def pack_panel(
        self, source: Any, begin: Expr, columns: Extent, memory: Any, base: Expr, vectors: int
    ) -> None:
        """Copy the `columns` columns that begin at source[begin] to memory[base] as [k / G][NR][G]."""
        form, operand, width = self.form, self.product.right, self.tile.columns
        column_step = operand.strides[self.product.columns.var]
        step = operand.strides[self.product.depth.var]
        if is_dynamic(columns) or columns < vectors * form.lanes or is_dynamic(self.depth):
            with serial(self.panel_size) as index:
                store(memory, [base + index], tirx.const(0, form.right))
        contiguous = not is_dynamic(column_step) and column_step == 1

        def group(number: Expr, count: int) -> None:
            """Copy `count` rows of k of one group; zeros after them."""
            row = begin + number * int64(form.group) * int64(step)
            to = base + number * int64(form.group * width)

            def copy(first: Expr, size: int) -> None:
                if not contiguous:
                    self._copy_column(
                        source, row + first * int64(column_step), step, memory, to, first, count
                    )
                    return
                if size == 1:
                    self._copy_column(source, row + first, step, memory, to, first, count)
                    return
                starts = [row + int64(k) * int64(step) + first for k in range(count)]
                lines = [
                    tirx.Cast(f"{form.right}x{size}", load(source, [ramp(start, size)])) for start in starts
                ]
                lines += [tirx.Broadcast(tirx.const(0, form.right), size)] * (form.group - count)
                target_offset = ramp(to + first * int64(form.group), size * form.group)
                store(memory, [target_offset], _interleaved(lines, size))

            _powers(columns, form.lanes if contiguous else 1, copy)

        self._over_groups(group)

    def _copy_column(
        self, source: Any, begin: Expr, step: Extent, memory: Any, to: Expr, column: Expr, count: int
    ) -> None:
        form = self.form
        target_offset = to + column * int64(form.group)
        if not is_dynamic(step) and step == 1 and count == form.group > 1:
            value = load(source, [ramp(begin, count)])
            store(memory, [ramp(target_offset, count)], tirx.Cast(f"{form.right}x{count}", value))
            return
        for k in range(form.group):
            value = tirx.const(0, form.right)
            if k < count:
                value = tirx.Cast(form.right, load(source, [begin + int64(k) * int64(step)]))
            store(memory, [target_offset + int64(k)], value)

    def _over_groups(self, visit: Callable[[Expr, int], None]) -> None:
        group = self.form.group
        with serial(floor_div(self.depth, group)) as number:
            visit(number, group)
        if not is_dynamic(self.depth):
            if self.depth % group:
                visit(int64(self.depth // group), self.depth % group)
            return
        for rest in range(1, group):
            with builder.If(modulo(self.depth, group) == int64(rest)), builder.Then():
                visit(divide(self.depth, group), rest)

    def starts(self, memory: Any, base: Expr, vectors: int) -> list[Any]:
        """The initial sums of each vector of columns, which undo the shift of the rows."""
        form = self.form
        accumulators = [registers([form.lanes], "int32") for _ in range(vectors)]
        lanes = ramp(int64(0), form.lanes)
        for accumulator in accumulators:
            store(accumulator, [lanes], tirx.Broadcast(tirx.const(0, "int32"), form.lanes))
        if form.shift:
            with serial(self.groups) as number:
                for v, accumulator in enumerate(accumulators):
                    right = self.columns_at(memory, base, number, v)
                    store(accumulator, [lanes], form.multiply(load(accumulator, [lanes]), form.ones(), right))
            undo = tirx.Broadcast(tirx.const(-form.shift, "int32"), form.lanes)
            for accumulator in accumulators:
                store(accumulator, [lanes], load(accumulator, [lanes]) * undo)
        return accumulators

    def columns_at(self, memory: Any, base: Expr, number: Expr, v: int) -> Expr:
        """Group `number` of vector `v` of the panel at memory[base]."""
        form = self.form
        offset = base + number * int64(form.group * self.tile.columns) + int64(v * form.group * form.lanes)
        return load(memory, [ramp(offset, form.group * form.lanes)])

    def sums(
        self, rows: Any, bases: Sequence[Expr], panel: Any, place: Expr, starts: Sequence[Any]
    ) -> list[list[Any]]:
        """Emit the loop over k of one tile; the sums by row and vector, each a buffer of one vector."""
        form, lanes = self.form, ramp(int64(0), self.form.lanes)
        if form.wide:
            return self._wide_sums(rows, bases, panel, place, len(starts))
        if form.method in MATRIX:
            packed = PackedPanel(panel, place, self.groups, form.group * self.tile.columns)
            return runtime_sums(form.method, rows, bases, packed, len(starts))
        totals = [[registers([form.lanes], "int32") for _ in starts] for _ in bases]
        for row in totals:
            for accumulator, start in zip(row, starts, strict=True):
                store(accumulator, [lanes], load(start, [lanes]))

        def add(lefts: Iterable[Expr], number: Expr) -> None:
            right = [bind(self.columns_at(panel, place, number, v)) for v in range(len(starts))]
            for left, row in zip(lefts, totals, strict=True):
                for accumulator, columns in zip(row, right, strict=True):
                    store(accumulator, [lanes], form.multiply(load(accumulator, [lanes]), left, columns))

        done: Extent = 0
        if selects_lane(form.method, form.lanes):
            vectors = floor_div(self.groups, form.lanes)
            with serial(vectors) as vector:
                first = bind(vector * int64(form.lanes))
                offsets = [ramp(base + first * int64(form.group), form.group * form.lanes) for base in bases]
                by_row = [groups_of_vector(load(rows, [offset]), form.lanes) for offset in offsets]
                for index, lefts in enumerate(zip(*by_row, strict=True)):
                    add(lefts, first + int64(index))
            done = vectors * form.lanes
        with serial(self.groups - done) as rest:
            number = bind(rest + int64(done))
            add((bind(form.row_group(rows, base + number * int64(form.group))) for base in bases), number)
        return totals

    def _wide_sums(
        self, rows: Any, bases: Sequence[Expr], panel: Any, place: Expr, vectors: int
    ) -> list[list[Any]]:
        """As `sums`, in int64: two sums of pairs in 32 bits, or a sum of single products."""
        form, lanes = self.form, ramp(int64(0), self.form.lanes)

        def cleared(dtype: str) -> list[list[Any]]:
            buffers = [[registers([form.lanes], dtype) for _ in range(vectors)] for _ in bases]
            for buffer in (buffer for row in buffers for buffer in row):
                store(buffer, [lanes], tirx.Broadcast(tirx.const(0, dtype), form.lanes))
            return buffers

        totals = cleared("int64")
        low, high = (cleared("int32"), cleared("int32")) if form.group > 1 else ([], [])
        with serial(self.groups) as number:
            right = [bind(self.columns_at(panel, place, number, v)) for v in range(vectors)]
            for row, base in enumerate(bases):
                left = bind(form.row_group(rows, base + number * int64(form.group)))
                for v, columns in enumerate(right):
                    products = bind(form.products(left, columns))
                    if form.group == 1:
                        wide = tirx.Cast(f"int64x{form.lanes}", products)
                        store(totals[row][v], [lanes], load(totals[row][v], [lanes]) + wide)
                        continue
                    store(low[row][v], [lanes], load(low[row][v], [lanes]) + products)
                    upper = upper_bits(products, form.lanes, True)
                    store(high[row][v], [lanes], load(high[row][v], [lanes]) + upper)
        for total, lows, highs in zip(totals, low, high, strict=False):
            for result, one, other in zip(total, lows, highs, strict=True):
                store(result, [lanes], joined(load(one, [lanes]), load(other, [lanes]), form.lanes))
        return totals

    def sums_in_tiles(
        self, rows: Any, bases: Sequence[Expr], panel: Any, place: Expr, starts: Sequence[Any]
    ) -> list[list[Any]]:
        """Emit the sums of rows that fill tile registers: by register and vector, a buffer of both."""
        assert self.amx is not None
        size = self.form.group * AMX_LANES
        groups = [place + int64(v * size) for v in range(len(starts))]
        columns = GroupedColumns(panel, groups, self.form.group * self.tile.columns)
        runs, bases = [Loop(self.row_size, 1)], bases[:: self.amx.rows]
        return TileSums(self.amx, runs, rows, bases, columns, starts).emit()


def _powers(extent: Extent, size: int, visit: Callable[[Expr, int], None]) -> None:
    """Call visit(first, length) for each block of `size`, then for the remainder in powers of two.

    LLVM turns vectors of other lengths into scalars.
    """

    def cut(first: Expr, width: int) -> None:
        for offset, length in chunks(width, size):
            visit(first + int64(offset), length)

    blocks(extent, size, cut)


def _interleaved(lines: Sequence[Expr], size: int) -> Expr:
    """The vector lines[0][0], lines[1][0], …, lines[0][1], …"""
    if len(lines) == 1:
        return lines[0]
    order = [k * size + lane for lane in range(size) for k in range(len(lines))]
    return tirx.Shuffle(list(lines), [tirx.IntImm("int32", position) for position in order])
