"""Matmuls of two tensors known only at run time: few rows by many lines that are contiguous along k.

Computation  As kernels/cpu/batch_matmul.py. The few rows may be those of either operand: x @ w.T with few
             rows of x, and w @ x with few columns of x.
Packing      The few rows are copied to [row][k] where k is not contiguous in them; the lines are read in
             place.
Schedule     A tile of rows by lines has a vector of sums for each pair, along k. At the end the lanes of all
             vectors are added by a transpose in registers. Packing lines for a tile of columns instead takes
             two shuffles for each vector of them, as long as four rows' multiply-adds.
Applies      Where batch_matmul.py does, if k is fixed and takes several vectors.
Accuracy     Each lane sums every lanes-th product: the error is below that of plain summation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu import batch_matmul
from kiln.kernels.cpu.batch_matmul import MatmulNest, StridedOperand, axis_extent, read_product
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_prefetch import prefetch
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Kernel,
    KernelAndBuffers,
    Machine,
    bind,
    chunks,
    define,
    load,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.stored import StoredBuffer
from kiln.tir.symbols import SymbolRanges, ceil_div, floor_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks, remainder, share_of, tasks_of
from kiln.tir.transpose import sums_of_lanes

# More rows share a packed panel of columns, which costs as much as four of them: measured on Emerald Rapids
# with lines of 64 to 4096, 12 rows are never slower; 8 take fewer instructions with vectors of four elements.
# Columns are few if they fill at most half of a vector.
_MOST_ROWS, _MOST_ROWS_OF_SHORT_VECTORS, _MOST_COLUMNS = 12, 8, 6
# Vectors of a line from which on the sums over lanes take little of the time.
_LEAST_VECTORS = 4
# Rows of a tile, and lines with and without registers for a vector of sums of each row and line.
_ROWS, _LINES, _FEW_LINES = 4, 4, 2
# ISAs on which the next lines are prefetched: hardware prefetches restart with each page.
_PREFETCHES = ("sse4", "avx2", "avx512")


@dataclass(frozen=True)
class _Roles:
    """The roles of the operands: one has the few rows, the other the lines that are contiguous along k."""

    few: StridedOperand
    few_axis: Any
    long: StridedOperand
    long_axis: Any
    swapped: bool  # whether the few rows are those of the right operand


def _roles(product: MatmulNest, ranges: SymbolRanges) -> _Roles | None:
    """The roles of the operands of `product`; None where neither has few rows, or no lines are contiguous."""
    if product.rows is None:
        return None
    depth = product.depth.var
    left, right = (product.left, product.rows), (product.right, product.columns)
    for swapped, (few, long) in enumerate(((left, right), (right, left))):
        roles = _Roles(*few, *long, bool(swapped))
        step, size = roles.long.strides[depth], ranges.greatest(axis_extent(roles.few_axis))
        if not is_dynamic(step) and step == 1 and size <= _MOST_ROWS:
            return roles
    return None


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if not batch_matmul.applies(op, fused, anchor, constants):
        return False
    product = read_product(anchor, fused.ranges)
    roles = _roles(product, fused.ranges) if product is not None else None
    if product is None or roles is None or is_dynamic(axis_extent(product.depth)):
        return False
    table = fused.tables.get(roles.long.buffer)
    return table is None or table.encoding.is_float


def pays(_op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether vectors along k are faster than tiles of columns (kernels/cpu/batch_matmul.py)."""
    product = read_product(anchor, fused.ranges)
    assert product is not None
    lanes, roles = machine.lanes("float32"), _roles(product, fused.ranges)
    assert roles is not None
    most = _MOST_ROWS if lanes > 4 else _MOST_ROWS_OF_SHORT_VECTORS
    most = min(_MOST_COLUMNS, lanes // 2) if roles.swapped else most
    few = fused.ranges.greatest(axis_extent(roles.few_axis)) <= most
    return few and lanes > 1 and bool(axis_extent(product.depth) >= _LEAST_VECTORS * lanes)


@dataclass(frozen=True)
class _FewRows:
    """The few rows, each contiguous along k; row r begins at buffer[start + r * row_step]."""

    buffer: Any
    start: Expr
    row_step: Extent


class _LineTiles:
    """Emits the tiles of one kernel, and the copy of its few rows.

    `element`: emits the epilogue and the store of a result of nest `anchor`.
    """

    def __init__(
        self, product: MatmulNest, roles: _Roles, machine: Machine, element: Epilogue, anchor: Nest
    ) -> None:
        self.product, self.roles, self.machine = product, roles, machine
        self.element, self.anchor = element, anchor
        self.lanes = machine.lanes("float32")
        self.depth = int(axis_extent(product.depth))
        self.rows = axis_extent(roles.few_axis)

    def pack(self, source: Any, begin: Expr, target: Any, at: Expr) -> None:
        """Copy the few rows that begin at source[begin] to target[at] as [row][k]."""
        operand = self.roles.few
        row_step, step = operand.strides[self.roles.few_axis.var], operand.strides[self.product.depth.var]
        with serial(self.rows) as row, serial(self.depth) as k:
            value = load(source, [begin + row * int64(row_step) + k * int64(step)])
            store(target, [at + row * int64(self.depth) + k], value)

    def emit(
        self, few: _FewRows, long: Any, start: Expr, batch: dict[Any, Expr], first: Expr, lines: int
    ) -> None:
        """Emit the results of `lines` lines from number `first`, the first of which begins at long[start]."""
        line_step = self.roles.long.strides[self.roles.long_axis.var]
        starts = [bind(start + int64(n) * int64(line_step)) for n in range(lines)]

        def rows_from(row: Expr, count: int) -> None:
            rows = [bind(row + int64(n)) for n in range(count)]
            bases = [bind(few.start + number * int64(few.row_step)) for number in rows]
            sums = self._sums(few.buffer, bases, long, starts, lines * int64(line_step))
            self._store(sums, rows, first, batch)

        blocks(self.rows, _ROWS, rows_from)

    def _sums(
        self, few: Any, bases: Sequence[Expr], long: Any, starts: Sequence[Expr], ahead: Expr
    ) -> list[list[Any]]:
        """Emit the loop over k; the sums by row and line, each a vector whose lanes are to be added."""
        lanes = self.lanes
        sums = [[registers([lanes], "float32") for _ in starts] for _ in bases]
        for accumulator in (one for row in sums for one in row):
            with vector(lanes) as lane:
                store(accumulator, [lane], tirx.const(0, "float32"))

        def add(k: Expr) -> None:
            if self.machine.isa in _PREFETCHES:
                for start in starts:
                    prefetch(long.buffers[0] if isinstance(long, StoredBuffer) else long, start + k + ahead)
            for base, row in zip(bases, sums, strict=True):
                for start, accumulator in zip(starts, row, strict=True):
                    with vector(lanes) as lane:
                        product = load(few, [base + k + lane]) * load(long, [start + k + lane])
                        store(accumulator, [lane], load(accumulator, [lane]) + product)

        with serial(self.depth // lanes) as block:
            add(bind(block * int64(lanes)))
        whole = self.depth - self.depth % lanes
        for offset, width in chunks(self.depth % lanes, lanes):
            for base, row in zip(bases, sums, strict=True):
                for start, accumulator in zip(starts, row, strict=True):
                    with vector(width) as lane:
                        at = int64(whole + offset) + lane
                        product = load(few, [base + at]) * load(long, [start + at])
                        store(accumulator, [lane], load(accumulator, [lane]) + product)
        return sums

    def _store(
        self, sums: list[list[Any]], rows: Sequence[Expr], first: Expr, batch: dict[Any, Expr]
    ) -> None:
        """Emit the sums over lanes and the stores of the results, whose last axis is that of the columns."""
        roles, product = self.roles, self.product
        if roles.swapped:
            sums = [list(line) for line in zip(*sums, strict=True)]
        width = len(sums[0])
        totals = sums_of_lanes([one for row in sums for one in row], self.lanes)
        for number in range(len(sums)):
            for offset, size in chunks(width, self.lanes):
                place, inside = divmod(number * width + offset, self.lanes)
                size_here = size if inside + size <= self.lanes else 1
                for begin in range(0, size, size_here):
                    place, inside = divmod(number * width + offset + begin, self.lanes)
                    with vector(size_here) as lane:
                        column = int64(offset + begin) + lane
                        outer, inner = (first + int64(number), rows[0] + column) if roles.swapped else (
                            rows[number], first + column)  # fmt: skip
                        bound = {**batch, product.rows.var: outer, product.columns.var: inner}
                        indices = [bound[axis.var] for axis in self.anchor.axes]
                        self.element.store(indices, load(totals[place], [int64(inside) + lane]))


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    ranges, greatest = fused.ranges, fused.ranges.greatest
    product = read_product(anchor, ranges)
    roles = _roles(product, ranges) if product is not None else None
    assert product is not None and roles is not None, op
    few, long = roles.few, roles.long
    rows, lines = axis_extent(roles.few_axis), axis_extent(roles.long_axis)
    depth = int(axis_extent(product.depth))
    width = _LINES if machine.registers >= 32 or greatest(rows) == 2 else _FEW_LINES
    count = ceil_div(lines, width)  # of tiles
    work = greatest(ranges.product([*(axis.dom.extent for axis in anchor.axes), depth]))
    shared = machine.shares(work // machine.lanes("float32"))
    parts = min(machine.cores, greatest(count)) if shared else 1
    sizes = [axis_extent(axis) for axis in product.batch]
    every = ranges.product([*sizes, parts])
    tasks = every if shared and not (not is_dynamic(every) and every == 1) else None
    step = few.strides[product.depth.var]
    packs = is_dynamic(step) or step != 1
    size = ranges.product([rows, depth])  # of the few rows
    buffers_read = batch_matmul.buffers_of(product, fused, anchor, last)

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        names = dict(zip(buffers_read[2:], buffers[2:], strict=True))
        left, right = batch_matmul.memory_of(buffers)
        few_memory, long_memory = (right, left) if roles.swapped else (left, right)
        scratch_size = greatest(ranges.product([size, every]) if tasks is not None else size)
        scratch = registers([scratch_size], "float32") if packs else None
        tiles = _LineTiles(product, roles, machine, Epilogue(fused, anchor, last, names), anchor)
        with tasks_of(every, tasks is not None, begin, end) as task:
            *indices, part = unravel(task, [*sizes, parts])
            pairs = reversed(list(zip(product.batch, indices, strict=True)))
            batch = {axis.var: bind(index) for axis, index in pairs}
            few_rows = _FewRows(few_memory, bind(few.offset(batch)), few.strides[roles.few_axis.var])
            if packs:
                at = bind(task * int64(size) if tasks is not None else int64(0))
                tiles.pack(few_memory, few_rows.start, scratch, at)
                few_rows = _FewRows(scratch, at, depth)
            long_start = bind(long.offset(batch))

            def tile(first: Expr, number: int) -> None:
                start = long_start + first * int64(long.strides[roles.long_axis.var])
                tiles.emit(few_rows, long_memory, start, batch, bind(first), number)

            first, after = share_of(part, count, parts) if parts > 1 else (int64(0), int64(count))
            with serial(after - first) as index:
                _tile_of(bind(first + index), lines, width, tile)

    func = define(batch_matmul.arguments_of(buffers_read, fused), tasks, body, False, ranges)
    return Kernel(func, tasks, {}, "contraction", ranges=ranges), buffers_read


def _tile_of(item: Expr, lines: Extent, width: int, tile: Any) -> None:
    """Call `tile` with the first line of tile `item` and its number of lines, fewer in the last one."""
    whole = floor_div(lines, width)
    if not is_dynamic(lines) and not lines % width:
        tile(item * int64(width), width)
        return
    with builder.If(item < int64(whole)):
        with builder.Then():
            tile(item * int64(width), width)
        with builder.Else():
            if is_dynamic(lines):
                remainder(lines, width, tile)
            else:
                tile(int64(whole * width), lines % width)
