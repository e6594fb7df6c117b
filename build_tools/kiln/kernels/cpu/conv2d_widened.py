"""The matmul of conv2d.py on 8-bit integers, both operands widened to 16 bits first, by 16-bit pairs.

Computation  As conv2d_pairs.py: pmaddwd multiplies and adds two products of 16 bits.
Packing      As conv2d_pairs.py. For each block of rows, the weights of a strip of columns are widened and
             arranged in pairs of k for each column, so that a column has one sum, in the order of the
             results.
Schedule     A task takes blocks of rows of x, gathers and widens them, and multiplies them by one strip of
             columns after the other, in register tiles.
Applies      As conv2d_pairs.py; convolutions of at least 4M products, so that widening the weights and the
             scratch memory are worth it: 1.15 times as fast on Zen 4, more where sums are short.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu import conv2d_pairs
from kiln.kernels.cpu.conv2d_pairs import widened_row
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_int8 import IntegerProduct
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.output_tile import OutputTile
from kiln.kernels.cpu.pair_kernel import PairBody, multiplies_pairs, pair_kernel, product_of, widened_tile
from kiln.kernels.cpu.pair_sums import WidenedColumns, pair_sums, pairs_of_group
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    KernelAndBuffers,
    Machine,
    bind,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tiled_loops import blocks, shared_items, when
from kiln.tir.vector_expr import ramp

_LEAST_MACS = 4 << 20  # 50 microseconds of conv2d_pairs.py on Zen 4
_LEAST_ROWS = 96  # in a block; with fewer, widening the weights takes more than 3 % of the time
_BLOCK_BYTES = 32 << 10  # of widened rows, where _LEAST_ROWS need less

applies = conv2d_pairs.applies


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether the machine multiplies pairs fastest, and the convolution is large."""
    conv, lanes = Convolution(op, fused, anchor), machine.lanes("int32")
    large = conv.macs >= _LEAST_MACS and fused.ranges.greatest(conv.rows) >= _LEAST_ROWS
    return multiplies_pairs(machine, lanes) and large and conv.columns >= lanes


@dataclass(frozen=True)
class _Blocks:
    """How the rows are divided: `parts` blocks of `size` rows, among `tasks` tasks (None: one call)."""

    tile: Tile
    size: int
    parts: Extent
    tasks: int | None

    @classmethod
    def of(cls, conv: Convolution, depth: int, machine: Machine) -> _Blocks:
        """Divide the rows of `conv`, each of `depth` widened values, for `machine`."""
        lanes, rows = machine.lanes("int32"), conv.ranges.greatest(conv.rows)
        tile = widened_tile(machine, rows, conv.columns)
        greatest_rows = max(_LEAST_ROWS, _BLOCK_BYTES // (2 * depth))
        cores = machine.cores if machine.shares(conv.macs // (4 * lanes)) else 1
        number = ceil_div(ceil_div(rows, greatest_rows), cores) * cores
        size = ceil_div(ceil_div(rows, number), tile.rows) * tile.rows
        tasks = min(cores, ceil_div(rows, size))
        return cls(tile, size, ceil_div(conv.rows, size), tasks if tasks > 1 else None)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv = Convolution(op, fused, anchor)
    depth = product_of(conv, Tile(1, 1, 1), machine).groups * GROUP
    divided = _Blocks.of(conv, depth, machine)
    product = product_of(conv, divided.tile, machine)

    def emit(epilogue: Epilogue, x: Any, weights: Any, begin: Expr, end: Expr) -> None:
        matmul = _Matmul(conv, divided, product, epilogue, last.buffer.shape, x, weights)
        shared_items(divided.parts, divided.tasks, begin, end, matmul.block)

    return pair_kernel("conv2d", PairBody(conv, product, divided.tasks, emit), fused, anchor, last)


class _Matmul:
    """Emits the blocks of one convolution into the body of a kernel.

    `x`: (N, H, W, C) of 8 bits, flat. `weights`: int8, packed by `product`. `shape`: of the result. Scratch
    memory of 16 bits: `data`, the rows of a block, and `weights`, a strip of columns, for each task.
    """

    def __init__(
        self, conv: Convolution, divided: _Blocks, product: IntegerProduct, element: Epilogue,
        shape: Sequence[Extent], x: Any, weights: Any,
    ) -> None:  # fmt: skip
        self.conv, self.divided, self.product, self.element = conv, divided, product, element
        self.shape, self.x, self.packed = shape, x, weights
        self.row_size = product.groups * GROUP
        slots = divided.tasks or 1
        self.block_size = divided.size * self.row_size
        self.strip_size = self.row_size * divided.tile.width
        self.data = registers([slots * self.block_size], "int16")
        self.weights = registers([slots * self.strip_size], "int16")

    def block(self, part: Expr, slot: Expr) -> None:
        """Emit block number `part` of the rows, with the scratch memory of task `slot`."""
        conv, divided, tile = self.conv, self.divided, self.divided.tile
        first = bind(part * int64(divided.size))
        count: Expr = int64(divided.size)
        exact = not is_dynamic(conv.rows) and conv.rows % divided.size == 0
        if not exact:
            count = bind(tirx.min(count, int64(conv.rows) - first))
        data, weights = bind(slot * int64(self.block_size)), bind(slot * int64(self.strip_size))
        with serial(count) as number:
            base = bind(conv.base(first + number, int64(0)))
            place = data + number * int64(self.row_size)
            widened_row(self.product, self.x, base, self.data, place, 2 * tile.lanes)

        def strip(column: Expr, columns: int) -> None:
            self._widen(bind(column), weights, ceil_div(columns, tile.lanes))
            whole_tiles = divided.size // tile.rows if exact else divide(count, tile.rows)
            with serial(whole_tiles) as number:
                self._tile(first, bind(number * int64(tile.rows)), None, data, weights, column, columns)
            if not exact:
                with builder.If(modulo(count, tile.rows) > int64(0)), builder.Then():
                    done = bind(divide(count, tile.rows) * int64(tile.rows))
                    self._tile(first, done, count, data, weights, column, columns)

        blocks(conv.columns, tile.width, strip)

    def _widen(self, column: Expr, base: Expr, vectors: int) -> None:
        """Emit the widening of the weights of `vectors` vectors of columns from `column` on to `base`."""
        tile, lanes = self.divided.tile, self.divided.tile.lanes
        start = self.product.first_group(column)
        with serial(self.product.groups) as group:
            for v in range(vectors):
                source_offset = start + group * int64(GROUP * tile.columns) + int64(v * GROUP * lanes)
                four = load(self.packed, [ramp(source_offset, GROUP * lanes)])
                four = bind(tirx.reinterpret(f"int16x{2 * lanes}", four))
                for half in range(2):
                    number = (group * int64(2) + int64(half)) * int64(tile.vectors) + int64(v)
                    to = base + number * int64(2 * lanes)
                    store(self.weights, [ramp(to, 2 * lanes)], pairs_of_group(four, half, lanes))

    def _tile(
        self, first: Expr, done: Expr, count: Expr | None, data: Expr, weights: Expr, column: Expr,
        columns: int,
    ) -> None:  # fmt: skip
        """Emit one tile: rows of the block from number `done` on, by the strip of `columns` from `column` on.

        `count`: rows in the block, where the tile may have more rows than are left; None: it has not.
        """
        tile, lanes, size = self.divided.tile, self.divided.tile.lanes, self.row_size
        starts = [bind(data + (done + int64(row)) * int64(size)) for row in range(tile.rows)]
        widened = WidenedColumns(self.weights, weights, tile.vectors, lanes)
        totals = pair_sums(
            self.product.method, self.data, starts, widened, size // 2, ceil_div(columns, lanes)
        )
        for row, sums in enumerate(totals):
            inside = [] if count is None else [done + int64(row) < count]
            number = first + done + int64(row)
            when(inside, functools.partial(self._store, number, column, columns, sums))

    def _store(self, row: Expr, column: Expr, columns: int, sums: list[Any]) -> None:
        """Emit the epilogue of one row of a tile."""
        row, lanes = bind(row), self.divided.tile.lanes

        def finish(row: Expr, channel: Expr, value: Expr) -> None:
            self.element.store(self.conv.result_indices(row, channel, self.shape), value)

        out = OutputTile([row], column, columns, finish)
        out.store(row, lanes, lambda v, offset, lane: load(sums[v], [int64(offset) + lane]))
