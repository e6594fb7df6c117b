"""The matmul of conv2d.py on 8-bit integers, both operands widened to 16 bits first, for x86 without VNNI.

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu import conv2d_pairs
from kiln.kernels.cpu.conv2d_pairs import GatheredRows
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm_int8 import GROUP, IntegerProduct, merged
from kiln.kernels.cpu.gemm_tile import Tile, fitted
from kiln.kernels.cpu.pair_sums import pair_sums, pairs_of_group
from kiln.kernels.cpu.winograd_tiles import when
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Argument,
    Array,
    Expr,
    Kernel,
    Machine,
    Packing,
    argument,
    bind,
    chunks,
    define,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import Extent, ceil_div, extent, is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of
from kiln.tir.vector_expr import ramp

_LEAST_MACS = 4 << 20  # 50 microseconds of conv2d_pairs.py on Zen 4
_LEAST_ROWS = 96  # in a block; with fewer, widening the weights takes more than 3 % of the time
_BLOCK_BYTES = 32 << 10  # of widened rows, where _LEAST_ROWS need less
_ROWS = 6

applies = conv2d_pairs.applies


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether the machine multiplies pairs fastest, and the convolution is large."""
    if machine.isa not in ("sse4", "avx2", "avx512") or machine.dot != "none":
        return False
    conv, packing = Convolution(op, fused, anchor), machine.packing
    if packing is not None and (packing.arrangement != "groups" or packing.columns % machine.lanes("int32")):
        return False
    lanes, rows = machine.lanes("int32"), fused.ranges.greatest(conv.rows)
    return conv.macs >= _LEAST_MACS and rows >= _LEAST_ROWS and conv.columns >= lanes


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
        vectors = min(4 if machine.registers >= 32 else 2, ceil_div(conv.columns, lanes))
        tile = Tile(min(_ROWS, rows), vectors, lanes)
        if machine.packing is not None:
            tile = replace(fitted(tile, machine.packing.columns, conv.columns), adjacent=1)
        most = max(_LEAST_ROWS, _BLOCK_BYTES // (2 * depth))
        cores = machine.cores if machine.shares(conv.macs // (4 * lanes)) else 1
        number = ceil_div(rows, most)
        number = ceil_div(number, cores) * cores if number > 1 or cores > 1 else 1
        size = ceil_div(ceil_div(rows, number), tile.rows) * tile.rows
        tasks = min(cores, ceil_div(rows, size))
        return cls(tile, size, ceil_div(conv.rows, size), tasks if tasks > 1 else None)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv = Convolution(op, fused, anchor)
    runs = merged(conv.loops())
    head_lanes = 0 if machine.packing is None else machine.packing.head_lanes
    groups = IntegerProduct("pairs", False, Tile(1, 1, 1), runs, 0, 0, 0, "groups").groups
    divided = _Blocks.of(conv, groups * GROUP, machine)
    product = IntegerProduct("pairs", False, divided.tile, runs, 0, head_lanes, 0, "groups")
    x_param, w_param = fused.params[:2]
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param) for param in buffers_read]
    x_size = fused.ranges.greatest(fused.ranges.product(list(x_param.shape)))
    arguments[0] = Argument(x_param.name, [x_size], str(x_param.dtype))
    panels = ceil_div(conv.columns, divided.tile.columns)
    arguments[1] = Argument(w_param.name, [panels * product.panel_bytes], str(w_param.dtype))
    tasks, parts = divided.tasks, divided.parts

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))
        is_image = len(last.buffer.shape) == 4 and op["name"] != "matmul"
        outer = None if is_image else [extent(size) for size in last.buffer.shape[:-1]]
        matmul = _Matmul(conv, divided, product, element, outer, buffers[0], buffers[1])
        if tasks is None:
            with serial(parts) as part:
                matmul.block(part, int64(0))
            return
        with tasks_of(tasks, True, begin, end) as task:
            first, after = (bind(divide((task + int64(n)) * int64(parts), tasks)) for n in range(2))
            with serial(after - first) as index:
                matmul.block(first + index, task)

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, tasks, body, bool(in_place), fused.ranges)
    packing = Packing(divided.tile.columns, arrangement="groups", head_lanes=head_lanes)
    packs = {1: lambda weights: _packed(product, conv, weights)}
    kernel = Kernel(func, tasks, packs, "conv2d", in_place, ranges=fused.ranges, packing=packing)
    return kernel, buffers_read


def _packed(product: IntegerProduct, conv: Convolution, weights: Array) -> Array:
    return product.pack(np.reshape(weights, (-1, conv.columns)))


class _Matmul:
    """Emits the blocks of one convolution in the body of a kernel with the parameters `x` and `weights`.

    `outer`: sizes of the output before its columns; None: an image, numbered by Convolution.pixel.
    """

    def __init__(
        self, conv: Convolution, divided: _Blocks, product: IntegerProduct, element: Epilogue,
        outer: list[Extent] | None, x: Any, weights: Any,
    ) -> None:  # fmt: skip
        self.conv, self.divided, self.product, self.element = conv, divided, product, element
        self.outer, self.x, self.packed = outer, x, weights
        self.rows = GatheredRows(product.runs, product.groups * GROUP)
        slots = divided.tasks or 1
        self.block_size = divided.size * self.rows.size
        self.strip_size = self.rows.size * divided.tile.width
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
            self.rows.gather(self.x, base, self.data, data + number * int64(self.rows.size), 2 * tile.lanes)

        def strip(column: Expr, columns: int) -> None:
            self._widen(bind(column), weights, ceil_div(columns, tile.lanes))
            whole = divided.size // tile.rows if exact else divide(count, tile.rows)
            with serial(whole) as number:
                self._tile(first, bind(number * int64(tile.rows)), None, data, weights, column, columns)
            if not exact:
                with builder.If(modulo(count, tile.rows) > int64(0)), builder.Then():
                    done = bind(divide(count, tile.rows) * int64(tile.rows))
                    self._tile(first, done, count, data, weights, column, columns)

        blocks(conv.columns, tile.width, strip)

    def _widen(self, column: Expr, place: Expr, vectors: int) -> None:
        """Emit the widening of the weights of `vectors` vectors of columns from `column` on to `place`."""
        tile, lanes = self.divided.tile, self.divided.tile.lanes
        panel = divide(column, tile.columns) * int64(self.product.panel_bytes)
        start = bind(panel + modulo(column, tile.columns) * int64(GROUP) + int64(self.product.head_bytes))
        with serial(self.product.groups) as group:
            for v in range(vectors):
                at = start + group * int64(GROUP * tile.columns) + int64(v * GROUP * lanes)
                four = load(self.packed, [ramp(at, GROUP * lanes)])
                four = bind(tirx.reinterpret(f"int16x{2 * lanes}", four))
                for half in range(2):
                    number = (group * int64(2) + int64(half)) * int64(tile.vectors) + int64(v)
                    to = place + number * int64(2 * lanes)
                    store(self.weights, [ramp(to, 2 * lanes)], pairs_of_group(four, half, lanes))

    def _tile(
        self, first: Expr, done: Expr, count: Expr | None, data: Expr, weights: Expr, column: Expr,
        columns: int,
    ) -> None:  # fmt: skip
        """Emit one tile: rows of the block from number `done` on, by the strip of `columns` from `column` on.

        `count`: rows in the block, where the tile may have more rows than are left; None: it has not.
        """
        tile, lanes, size = self.divided.tile, self.divided.tile.lanes, self.rows.size
        starts = [bind(data + (done + int64(row)) * int64(size)) for row in range(tile.rows)]
        vectors = ceil_div(columns, lanes)
        totals = pair_sums(self.data, starts, self.weights, weights, size // 2, vectors, tile.vectors, lanes)
        for row, sums in enumerate(totals):
            inside = [] if count is None else [done + int64(row) < count]
            number = first + done + int64(row)
            when(inside, functools.partial(self._store, number, column, columns, sums))

    def _store(self, row: Expr, column: Expr, columns: int, sums: list[Any]) -> None:
        """Emit the epilogue of one row of a tile."""
        row, lanes = bind(row), self.divided.tile.lanes
        for v, total in enumerate(sums):
            for offset, width in chunks(min(lanes, columns - v * lanes), lanes):
                with vector(width) as lane:
                    channel = column + int64(v * lanes + offset) + lane
                    place = self.conv.pixel(row) if self.outer is None else unravel(row, self.outer)
                    self.element.store([*place, channel], load(total, [int64(offset) + lane]))
