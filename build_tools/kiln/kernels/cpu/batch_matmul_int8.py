"""Matmuls of two 8-bit tensors that are both known only at run time: the products of quantised attention.

Computation  y[batch, m, n] = f(sum over k of a[batch, m, k] * b[batch, k, n]), f = the fused epilogue; the
             axes as in batch_matmul.py, the sums in int32.
Packing      Both operands, into scratch memory of each task: the rows as [m][k], and panels of columns as
             [k / G][NR][G], with zeros after the last k. G: number of products that an instruction adds.
Schedule     One of these methods, by the target's instructions:
             vnni   vpdpbusd adds four products u8 x s8: rows of int8 are packed as a + 128, and the sums
                    begin at -128 times the sum of their column.
             sdot   the ARM instruction for four products s8 x s8; rows of uint8 are packed as a - 128.
             smmla  ARM's I8MM: two rows by two columns by eight products (matrix_tile.py); usmmla: rows of
                    uint8.
             pairs  SSE2, AVX2 and AVX-512: pmaddwd adds two products of 16 bits; so does WebAssembly's
                    i32x4.dot_i16x8_s.
             widen  RVV: vwmacc adds 16-bit products to sums of 32 bits, in several registers at a time.
             plain  the same in one register, which LLVM turns into smlal on NEON.
             A task is one batch: it packs its rows once, then each panel of columns, and computes all rows.
Applies      matmul and einsum of int8 or uint8, summed in int32; the columns are int8 but for pairs, widen,
             and plain. Machines with vectors.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu.batch_matmul import (
    MatmulNest,
    TileResult,
    arguments_of,
    axis_extent,
    buffers_of,
    memory_of,
    read_product,
)
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.kernels.cpu.matrix_tile import NAMES as MATRIX
from kiln.kernels.cpu.matrix_tile import runtime_sums
from kiln.kernels.cpu.packed_operand import one_panel
from kiln.kernels.cpu.runtime_product import RuntimeProduct, form_of
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Expr,
    Kernel,
    Machine,
    bind,
    chunks,
    define,
    divide,
    load,
    modulo,
    registers,
    serial,
    store,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import Extent, SymbolRanges, ceil_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of
from kiln.tir.vector_expr import ramp

# By method: rows and vectors of a tile with 32 registers, and with 16.
_TILES = {
    "vnni": ((6, 4), (6, 2)),
    "sdot": ((6, 4), (6, 2)),
    "smmla": ((10, 2), (10, 2)),
    "usmmla": ((10, 2), (10, 2)),
    "pairs": ((6, 4), (6, 2)),
    "wasm_pairs": ((6, 4), (6, 2)),
    "widen": ((6, 1), (6, 1)),
    "plain": ((6, 3), (4, 2)),
}


def applies(op: OpInfo, fused: Fused, anchor: Nest, _constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] not in ("matmul", "einsum") or str(anchor.buffer.dtype) != "int32":
        return False
    product = read_product(anchor, fused.ranges)
    if product is None:
        return False
    buffers = [product.left.buffer, product.right.buffer]
    return all(buffer in fused.params and str(buffer.dtype) in ("int8", "uint8") for buffer in buffers)


def pays(_op: OpInfo, _fused: Fused, _anchor: Nest, machine: Machine) -> bool:
    """Whether the machine has vectors; without them, packing gains nothing."""
    return machine.lanes("int32") > 1


class _Packed:
    """The packed operands of one task: scratch memory, and the statements that fill it."""

    def __init__(self, form: RuntimeProduct, product: MatmulNest, ranges: SymbolRanges, tile: Tile) -> None:
        self.form, self.product, self.tile = form, product, tile
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
        with serial(divide(self.depth, group) if is_dynamic(self.depth) else self.depth // group) as number:
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
        if form.method in MATRIX:
            size = form.group * self.tile.columns
            return runtime_sums(form.method, rows, bases, panel, place, self.groups, size, len(starts))
        totals = [[registers([form.lanes], "int32") for _ in starts] for _ in bases]
        for row in totals:
            for accumulator, start in zip(row, starts, strict=True):
                store(accumulator, [lanes], load(start, [lanes]))
        with serial(self.groups) as number:
            right = [bind(self.columns_at(panel, place, number, v)) for v in range(len(starts))]
            for base, row in zip(bases, totals, strict=True):
                left = bind(form.row_group(rows, base + number * int64(form.group)))
                for accumulator, columns in zip(row, right, strict=True):
                    store(accumulator, [lanes], form.multiply(load(accumulator, [lanes]), left, columns))
        return totals


def _powers(extent: Extent, size: int, visit: Callable[[Expr, int], None]) -> None:
    """Like `blocks`, with a remainder cut into powers of two: LLVM turns other vectors into scalars."""

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


@dataclass(frozen=True)
class _TaskLoops:
    """Emits one task, a batch: packs its rows, then packs and computes panel after panel of columns.

    `left` and `right`: memory of the operands. `row_memory` and `panel_memory`: scratch memory, for each task
    if `split` is set.
    """

    packed: _Packed
    left: Any
    right: Any
    row_memory: Any
    panel_memory: Any
    split: bool
    element: Epilogue
    anchor: Nest

    def emit(self, batch: dict[Any, Expr], task: Expr) -> None:
        """Emit the matmul of `batch`."""
        packed, columns = self.packed, axis_extent(self.packed.product.columns)
        width = packed.tile.columns
        packed.pack_rows(self.left, batch, self.row_memory, self._place(task, packed.rows_size))
        with serial(ceil_div(columns, width)) as number:
            one_panel(columns, width, number, lambda first, n: self._panel(batch, task, first, n))

    def _place(self, task: Expr, size: Extent) -> Expr:
        """Offset in scratch memory of the part of `task`, of `size` elements."""
        return bind(task * int64(size) if self.split else int64(0))

    def _panel(self, batch: dict[Any, Expr], task: Expr, first: Expr, columns: Extent) -> None:
        """Emit `columns` columns from `first`: pack them, then compute all rows."""
        packed, product, lanes = self.packed, self.packed.product, self.packed.form.lanes
        base = self._place(task, packed.panel_size)
        right_start = bind(product.right.offset({**batch, product.columns.var: first}))
        used = packed.tile.vectors if is_dynamic(columns) else ceil_div(columns, lanes)
        packed.pack_panel(self.right, right_start, columns, self.panel_memory, base, used)
        starts = packed.starts(self.panel_memory, base, used)
        rows_at = self._place(task, packed.rows_size)
        result = TileResult(self.element, self.anchor, product, batch, first, columns)
        widths = [(v * lanes, lanes) for v in range(used)]

        def rows_from(first_row: Expr, number: int) -> None:
            numbers = [bind(first_row + int64(index)) for index in range(number)]
            bases = [bind(rows_at + row * int64(packed.row_size)) for row in numbers]
            sums = packed.sums(self.row_memory, bases, self.panel_memory, base, starts)
            for row, row_sums in zip(numbers, sums, strict=True):
                result.store(row, widths, row_sums, packed.tile)

        blocks(packed.rows, packed.tile.rows, rows_from)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    product = read_product(anchor, fused.ranges)
    assert product is not None, op
    ranges, greatest = fused.ranges, fused.ranges.greatest
    form = form_of(machine, *(str(operand.buffer.dtype) for operand in (product.left, product.right)))
    most_rows, vectors = _TILES[form.method][0 if machine.registers >= 32 else 1]
    vectors = min(vectors, ceil_div(greatest(axis_extent(product.columns)), form.lanes))
    tile = Tile(min(most_rows, greatest(axis_extent(product.rows))), vectors, form.lanes)
    packed = _Packed(form, product, ranges, tile)
    sizes = [axis_extent(axis) for axis in product.batch]
    count = ranges.product(sizes)
    work = greatest(ranges.product([*(axis.dom.extent for axis in anchor.axes), product.depth.dom.extent]))
    shared = greatest(count) > 1 and machine.shares(work // (form.lanes * form.group))
    buffers_read = buffers_of(product, fused, anchor, last)

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        names = dict(zip(buffers_read[2:], buffers[2:], strict=True))
        copies = count if shared else 1
        row_memory = registers([greatest(ranges.product([packed.rows_size, copies]))], form.left)
        panel_memory = registers([greatest(ranges.product([packed.panel_size, copies]))], form.right)
        element = Epilogue(fused, anchor, last, names)
        loops = _TaskLoops(packed, *memory_of(buffers), row_memory, panel_memory, shared, element, anchor)
        with tasks_of(count, shared, begin, end) as task:
            pairs = reversed(list(zip(product.batch, unravel(task, sizes), strict=True)))
            loops.emit({axis.var: bind(index) for axis, index in pairs}, task)

    tasks = count if shared else None
    func = define(arguments_of(buffers_read, fused), tasks, body, False, ranges)
    return Kernel(func, tasks, {}, "contraction", ranges=ranges), buffers_read
