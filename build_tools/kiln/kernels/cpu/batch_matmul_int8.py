"""Matmuls of two quantised tensors that are both known only at run time: the products of quantised attention.

Computation  y[batch, m, n] = f(sum over k of a[batch, m, k] * b[batch, k, n]), f = the fused epilogue; the
             axes as in batch_matmul.py, the sums in int32.
Packing      Both operands, into scratch memory of each task: the rows as [m][k], and panels of columns as
             [k / G][NR][G], with zeros after the last k. G: number of products that an instruction adds.
Schedule     One of these methods, by the target's instructions:
             vnni   vpdpbusd adds four products u8 x s8: rows of int8 are packed as a + 128, and the sums
                    begin at -128 times the sum of their column. With AMX as well, rows that fill tile
                    registers are multiplied there (amx_tile.py).
             sdot   the ARM instruction for four products s8 x s8; rows of uint8 are packed as a - 128.
             smmla  ARM's I8MM: two rows by two columns by eight products (matrix_tile.py); usmmla: rows of
                    uint8.
             pairs  SSE2, AVX2 and AVX-512: pmaddwd adds two products of 16 bits; so does WebAssembly's
                    i32x4.dot_i16x8_s.
             widen  RVV: vwmacc adds 16-bit products to sums of 32 bits, in several registers at a time.
             plain  the same in one register, which LLVM turns into smlal on NEON.
             Operands of 16 bits: pairs, or plain, with sums of int64 (pair_sums.py; NEON: smull and saddw).
             A task is one batch: it packs its rows once, then each panel of columns, and computes all rows.
Applies      matmul and einsum of int8 or uint8, summed in int32; the columns are int8 but for pairs, widen,
             and plain. With an operand of int16, summed in int64: of at most 65,528 products, on x86,
             WebAssembly and NEON. Machines with vectors.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import Expr

from kiln.extents import Extent
from kiln.kernels.cpu.amx_tile import Spacing, TileRegisters, tile_registers, with_tile_registers
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
from kiln.kernels.cpu.int8_tile import SUMS_BY_LANE
from kiln.kernels.cpu.packed_operand import one_panel
from kiln.kernels.cpu.pair_sums import MOST_PAIRS
from kiln.kernels.cpu.runtime_panels import PackedOperands
from kiln.kernels.cpu.runtime_product import RuntimeProduct, form_of, method_of_pairs, selects_lane
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Kernel, Machine, bind, define, load, registers, serial, store, unravel
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div, int64, is_dynamic
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
    if op["name"] not in ("matmul", "einsum") or str(anchor.buffer.dtype) not in ("int32", "int64"):
        return False
    product = read_product(anchor, fused.ranges)
    if product is None:
        return False
    buffers = [product.left.buffer, product.right.buffer]
    types = {str(buffer.dtype) for buffer in buffers}
    wide = str(anchor.buffer.dtype) == "int64"
    if wide != ("int16" in types) or (wide and not _fits(product, fused)):
        return False
    return all(buffer in fused.params for buffer in buffers) and types <= {"int8", "uint8", "int16"}


def _fits(product: MatmulNest, fused: Fused) -> bool:
    """Whether the sums of the upper bits of all products fit 32 bits."""
    return fused.ranges.greatest(axis_extent(product.depth)) <= 2 * MOST_PAIRS


def pays(_op: OpInfo, _fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether the machine has vectors, without which packing gains nothing; of int64: of 16-bit products."""
    words = method_of_pairs(machine) is not None or machine.isa == "neon"
    return machine.lanes("int32") > 1 and (words or str(anchor.buffer.dtype) == "int32")


@dataclass(frozen=True)
class _TaskLoops:
    """Emits one task, a batch: packs its rows, then packs and computes panel after panel of columns.

    `left` and `right`: memory of the operands. `row_memory` and `panel_memory`: scratch memory, for each task
    if `split` is set.
    """

    packed: PackedOperands
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
            whole = 0 if packed.amx is None else number // packed.amx.rows * packed.amx.rows
            if packed.amx is not None and whole:
                tiles = packed.sums_in_tiles(self.row_memory, bases[:whole], self.panel_memory, base, starts)
                for first_of_tile, tile in zip(numbers[: whole : packed.amx.rows], tiles, strict=True):
                    self._store_rows(first_of_tile, packed.amx.rows, tile, widths, result)
            most = number if packed.amx is None else _TILES[packed.form.method][0][0]
            for begin in range(whole, number, most):
                part = slice(begin, begin + most)
                sums = packed.sums(self.row_memory, bases[part], self.panel_memory, base, starts)
                for row, row_sums in zip(numbers[part], sums, strict=True):
                    result.store(row, widths, row_sums, packed.tile)

        blocks(packed.rows, packed.tile.rows, rows_from)

    def _store_rows(
        self, first: Expr, count: int, held: Sequence[Any], widths: Sequence[tuple[int, int]],
        result: TileResult,
    ) -> None:  # fmt: skip
        """Emit the stores of `count` rows from `first`; `held`: their sums by vector, row after row."""
        lanes = self.packed.form.lanes
        with serial(count) as number:
            vectors = [registers([lanes], "int32") for _ in held]
            for to, sums in zip(vectors, held, strict=True):
                row_of_sums = load(sums, [ramp(number * int64(lanes), lanes)])
                store(to, [ramp(int64(0), lanes)], row_of_sums)
            result.store(bind(first + number), widths, vectors, self.packed.tile)


def _tile_registers(
    form: RuntimeProduct, product: MatmulNest, rows: int, machine: Machine
) -> TileRegisters | None:
    """The sizes of AMX's tile registers for at most `rows` rows; None where vectors compute the sums."""
    depth = axis_extent(product.depth)
    if not machine.tiles or form.method != "vnni" or is_dynamic(depth):
        return None
    row_bytes = ceil_div(depth, form.group) * form.group
    return tile_registers(rows, Spacing(row_bytes, None), row_bytes, form.left == "int8")


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    product = read_product(anchor, fused.ranges)
    assert product is not None, op
    ranges, greatest = fused.ranges, fused.ranges.greatest
    form = form_of(machine, *(str(operand.buffer.dtype) for operand in (product.left, product.right)))
    most_rows, vectors = _TILES[form.method][0 if machine.registers >= 32 else 1]
    if form.wide:  # each sum takes two registers
        vectors = min(vectors, 2)
        most_rows = most_rows if machine.registers >= 32 else ceil_div(most_rows, 2)
    if selects_lane(form.method, form.lanes):
        most_rows = SUMS_BY_LANE // vectors
    vectors = min(vectors, ceil_div(greatest(axis_extent(product.columns)), form.lanes))
    rows = greatest(axis_extent(product.rows))
    amx = _tile_registers(form, product, rows, machine)
    if amx is not None:
        vectors, most_rows = min(vectors, amx.across), amx.rows * amx.down
    tile = Tile(min(most_rows, rows), vectors, form.lanes)
    packed = PackedOperands(form, product, ranges, tile, amx)
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

        def emit() -> None:
            with tasks_of(count, shared, begin, end) as task:
                pairs = reversed(list(zip(product.batch, unravel(task, sizes), strict=True)))
                loops.emit({axis.var: bind(index) for axis, index in pairs}, task)

        with_tile_registers(amx, emit)

    tasks = count if shared else None
    func = define(arguments_of(buffers_read, fused), tasks, body, False, ranges)
    return Kernel(func, tasks, {}, "contraction", ranges=ranges), buffers_read
