"""The phases of a Winograd convolution on 8-bit integers; see winograd_int8.py."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_int8 import IntegerProduct
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.pair_kernel import widened_tile
from kiln.kernels.cpu.pair_sums import WidenedColumns, pair_sums, pairs_of_group
from kiln.kernels.cpu.winograd_tiles import OutputTiles, over_channels, read, write
from kiln.kernels.cpu.winograd_transforms import data_line
from kiln.tir.builder import Machine, bind, chunks, divide, int64, load, registers, serial, store, vector
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tiled_loops import blocks, share_of, task_blocks, when
from kiln.tir.vector_expr import ramp

SIZE = 4  # inputs of a tile along one axis
PLANES = SIZE * SIZE
_LINE = 64  # bytes that a plane is longer than its data
# Most bytes of transformed inputs of a block, where one tile of rows needs less; twice as many where there is
# one block.
_DATA_BYTES = 256 << 10
_FEW_TILES = 32  # in a block


@dataclass(frozen=True)
class TileBlocks:
    """How a convolution is divided: `parts` blocks of `block` tiles, among `tasks` tasks (None: one call).

    `by_strips`: one block, whose inputs each task transforms; the tasks share the strips of columns.
    Otherwise the tasks share the blocks. `tile`: rows (output tiles) and columns of one product in
    registers. The sizes below count elements of the scratch memory of one task: 16-bit data and weights,
    32-bit products.
    """

    conv: Convolution
    tiles: OutputTiles
    tile: Tile
    block: int
    parts: Extent
    tasks: int | None
    by_strips: bool

    @classmethod
    def of(cls, conv: Convolution, machine: Machine) -> TileBlocks:
        """Divide `conv` for `machine`: in blocks whose data stay in the cache, in one if tiles are few."""
        lanes = machine.lanes("int32")
        tiles = OutputTiles(conv, 2)
        count = conv.ranges.greatest(tiles.count)
        tile = widened_tile(machine, count, conv.out_channels)
        greatest_rows = max(2 * tile.rows, _DATA_BYTES // (2 * PLANES * conv.depth))
        strips = ceil_div(conv.out_channels, tile.width)
        shared = machine.shares(conv.macs // (4 * lanes))
        # With few tiles in a block, transforming the weights again for each block takes too long.
        few = count <= 2 * greatest_rows and count < _FEW_TILES * machine.cores
        by_strips = shared and few and strips > 1
        if by_strips:
            greatest_rows = count
        elif shared:
            greatest_rows = min(greatest_rows, ceil_div(count, machine.cores))
        block = ceil_div(count, ceil_div(count, greatest_rows))
        if not is_dynamic(tiles.count):
            tile = replace(tile, rows=ceil_div(block, ceil_div(block, tile.rows)))  # of equal height
        block_count = ceil_div(tiles.count, block)
        tasks = min(machine.cores, strips if by_strips else ceil_div(count, block)) if shared else 1
        return cls(
            conv, tiles, tile, block, block_count, tasks if tasks > 1 else None, by_strips and tasks > 1
        )

    @property
    def held(self) -> int:
        """Tiles for which a block has memory: whole products in registers."""
        return ceil_div(self.block, self.tile.rows) * self.tile.rows

    @property
    def data_plane(self) -> int:
        return self.held * self.conv.depth + _LINE // 2

    @property
    def weights_plane(self) -> int:
        return self.conv.depth * self.tile.width + _LINE // 2

    @property
    def products_plane(self) -> int:
        return self.tile.rows * self.tile.width + _LINE // 4


class IntegerPhases:
    """Emits the phases of one convolution into the body of a kernel.

    `x`: (N, H, W, C) of 8 bits, flat. `weights`: int8, packed by `product`. Scratch memory for each task and
    plane: `data` and `weights`, transformed to 16 bits, and `products` of 32 bits.
    """

    def __init__(
        self, work: TileBlocks, product: IntegerProduct, element: Epilogue, x: Any, weights: Any
    ) -> None:
        self.work, self.product, self.element = work, product, element
        self.conv, self.lanes = work.conv, work.tile.lanes
        self.x, self.packed = x, weights
        slots = work.tasks or 1
        self.data = registers([slots * PLANES * work.data_plane], "int16")
        self.weights = registers([slots * PLANES * work.weights_plane], "int16")
        self.products = registers([slots * PLANES * work.products_plane], "int32")

    def strips(self, slot: Expr) -> None:
        """Emit task number `slot` of the tasks that share the strips of columns."""
        work, strips = self.work, ceil_div(self.conv.out_channels, self.work.tile.width)
        assert work.tasks is not None
        self.block(int64(0), slot, share_of(slot, strips, work.tasks))

    def block(self, part: Expr, slot: Expr, strips: tuple[Expr, Expr] | None = None) -> None:
        """Emit all phases of block number `part`, with the scratch memory of task `slot`.

        `strips`: the first strip of columns, and the one after the last; None: all.
        """
        work = self.work
        first = bind(part * int64(work.block))
        count: Expr = int64(work.block)
        if is_dynamic(work.tiles.count) or work.tiles.count % work.block:
            count = bind(tirx.min(int64(work.block), int64(work.tiles.count) - first))
        data = bind(slot * int64(PLANES * work.data_plane))
        weights = bind(slot * int64(PLANES * work.weights_plane))
        products = bind(slot * int64(PLANES * work.products_plane))
        with serial(count) as number:
            self._transform_inputs(bind(first + number), bind(data + number * int64(self.conv.depth)))

        def strip(column: Expr, columns: int) -> None:
            vectors = ceil_div(columns, self.lanes)
            self._transform_weights(bind(column), weights, vectors)
            with serial(divide(count + int64(work.tile.rows - 1), work.tile.rows)) as number:
                done = bind(number * int64(work.tile.rows))
                with serial(PLANES) as plane:
                    self._multiply(plane, done, vectors, data, weights, products)
                with serial(tirx.min(int64(work.tile.rows), count - done)) as row:
                    base = bind(products + row * int64(work.tile.width))
                    self._transform_outputs(bind(first + done + row), base, column, columns)

        if strips is None:
            blocks(self.conv.out_channels, work.tile.width, strip)
        else:
            task_blocks(self.conv.out_channels, work.tile.width, True, *strips, strip)

    def _transform_inputs(self, tile: Expr, base: Expr) -> None:
        """Emit the transform of the inputs of tile `tile` to `base` of each plane of the data."""
        rows, columns = self.work.tiles.inputs(tile)

        def channels(channel: Expr, width: int) -> None:
            def value(i: int, j: int) -> Expr:
                wide = "int16" if width == 1 else f"int16x{width}"
                return bind(tirx.Cast(wide, read(self.x, rows[i] + columns[j] + channel, width)))

            lines = [_bound(data_line([value(i, j) for i in range(SIZE)])) for j in range(SIZE)]
            for i in range(SIZE):
                for j, result in enumerate(data_line([line[i] for line in lines])):
                    plane = (i * SIZE + j) * self.work.data_plane
                    write(self.data, base + int64(plane) + channel, width, result)

        over_channels(self.conv.depth, 2 * self.lanes, channels)

    def _transform_weights(self, column: Expr, base: Expr, vectors: int) -> None:
        """Emit the transform of the weights of `vectors` vectors of columns from `column` on.

        A plane of the result holds, for each pair of channels and each vector, the pairs of its columns.
        """
        tile, lanes, groups = self.work.tile, self.lanes, self.conv.depth // GROUP
        start = self.product.first_group(column)
        with serial(groups) as group, serial(vectors) as v:
            offset = start + group * int64(GROUP * tile.columns) + v * int64(GROUP * lanes)

            def raw(position: int) -> Expr:
                weights_offset = offset + int64(position * groups * GROUP * tile.columns)
                four = load(self.packed, [ramp(weights_offset, GROUP * lanes)])
                return bind(tirx.reinterpret(f"int16x{2 * lanes}", four))

            weights = [raw(position) for position in range(9)]
            for half in range(2):
                pairs = [pairs_of_group(group_weights, half, lanes) for group_weights in weights]
                lines = [_bound(_weights_line(pairs[j::3])) for j in range(3)]
                vector_number = (group * int64(2) + int64(half)) * int64(tile.vectors) + v
                to = bind(base + vector_number * int64(2 * lanes))
                for i in range(SIZE):
                    for j, result in enumerate(_weights_line([line[i] for line in lines])):
                        plane = (i * SIZE + j) * self.work.weights_plane
                        write(self.weights, to + int64(plane), 2 * lanes, result)

    def _multiply(
        self, plane: Expr, done: Expr, vectors: int, data: Expr, weights: Expr, products: Expr
    ) -> None:
        """Emit the matmul of one plane: the tiles of a block from number `done` on, by a strip of weights."""
        work, tile, lanes, depth = self.work, self.work.tile, self.lanes, self.conv.depth
        left = bind(data + plane * int64(work.data_plane) + done * int64(depth))
        right = bind(weights + plane * int64(work.weights_plane))
        result = bind(products + plane * int64(work.products_plane))
        starts = [bind(left + int64(row * depth)) for row in range(tile.rows)]
        columns = WidenedColumns(self.weights, right, tile.vectors, lanes)
        totals = pair_sums(self.product.method, self.data, starts, columns, depth // 2, vectors)
        sums = ramp(int64(0), lanes)
        for number, row in enumerate(totals):
            for v, accumulator in enumerate(row):
                result_offset = result + int64(number * tile.width + v * lanes)
                store(self.products, [ramp(result_offset, lanes)], load(accumulator, [sums]))

    def _transform_outputs(self, tile: Expr, base: Expr, column: Expr, columns: int) -> None:
        """Emit the transform of the products at `base` to the outputs of tile `tile`, and the epilogue."""
        image, row, first = (bind(value) for value in self.work.tiles.place(tile))

        def put(i: int, j: int, offset: Expr, width: int, values_register: Any) -> None:
            for start, chunk in chunks(width, self.lanes):
                with vector(chunk) as lane:
                    channel = column + offset + int64(start) + lane
                    where = [image, row + int64(i), first + int64(j), channel]
                    self.element.store(where, load(values_register, [int64(start) + lane]))

        def outputs(offset: Expr, width: int) -> None:
            """Emit the outputs of one vector of columns, all computed; `width` columns are stored."""

            def value(i: int, j: int) -> Expr:
                plane = (i * SIZE + j) * self.work.products_plane
                return bind(load(self.products, [ramp(base + int64(plane) + offset, self.lanes)]))

            lines = [_bound(_outputs_line([value(i, j) for i in range(SIZE)])) for j in range(SIZE)]
            for i in range(2):
                for j, four in enumerate(_outputs_line([line[i] for line in lines])):
                    values_register = registers([self.lanes], "int32")
                    two = tirx.Broadcast(tirx.const(2, "int32"), self.lanes)
                    store(values_register, [ramp(int64(0), self.lanes)], tirx.shift_right(four, two))
                    inside = self.work.tiles.inside(row, first, i, j)
                    when(inside, functools.partial(put, i, j, offset, width, values_register))

        blocks(columns, self.lanes, outputs)


def _bound(values: Sequence[Expr]) -> list[Expr]:
    return [bind(value) for value in values]


def _weights_line(g: Sequence[Expr]) -> list[Expr]:
    """Twice the product of G and three weights: four values."""
    outer = bind(g[0] + g[2])
    return [g[0] + g[0], outer + g[1], outer - g[1], g[2] + g[2]]


def _outputs_line(p: Sequence[Expr]) -> list[Expr]:
    """The product of A' and a line of four values: two outputs, modulo 2^32."""
    first = _wrapped("add", _wrapped("add", p[0], p[1]), p[2])
    return [first, _wrapped("sub", _wrapped("sub", p[1], p[2]), p[3])]


def _wrapped(name: str, left: Expr, right: Expr) -> Expr:
    """left + right (`name` "add") or left - right ("sub") modulo 2^32.

    TVM's int32 operators promise LLVM that nothing overflows; the intrinsics of vector predication do not.
    """
    lanes = int(left.ty.dtype.lanes)
    mask = tirx.Broadcast(tirx.const(True, "bool"), lanes)
    return tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", f"llvm.vp.{name}.v{lanes}i32", left, right, mask, tirx.const(lanes, "int32")
    )
