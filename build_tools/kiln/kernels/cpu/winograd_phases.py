"""The three phases of a Winograd convolution: input transforms, matmuls by planes, output transforms."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm import product
from kiln.kernels.cpu.gemm_prefetch import prefetch_later, prefetch_panels
from kiln.kernels.cpu.gemm_tile import Loop, choose_tile
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.kernels.cpu.winograd_cost import Form
from kiln.kernels.cpu.winograd_tiles import OutputTiles, over_channels, read, write
from kiln.kernels.cpu.winograd_transforms import data_line, output_line
from kiln.tir.builder import Machine, bind, divide, int64, load, modulo, registers, store, vector
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import blocks, when


@dataclass(frozen=True)
class TaskMemory:
    """The part of `buffer` that one task uses: it begins at element `start`."""

    buffer: Any
    start: Expr


class Phases:
    """Emits the three phases of a convolution. Tiles are numbered consecutively over all images."""

    def __init__(self, conv: Convolution, form: Form, machine: Machine) -> None:
        self.conv, self.m, self.size = conv, form.m, form.m + 2
        self.grid = OutputTiles(conv, form.m)
        self.tiles: Extent = self.grid.count
        self.lanes, self.line = machine.lanes("float32"), 16
        self.block = form.block  # tiles in the buffers of transformed data
        self.data_plane = self.block * conv.channels + self.line
        self.product_plane = self.block * conv.out_channels + self.line
        best = choose_tile(machine, self.block, conv.out_channels, conv.choice(machine).tile)
        rows = ceil_div(self.block, ceil_div(self.block, best.rows))  # of equal height: no low last tile
        self.tile = replace(best, rows=rows, adjacent=1)
        self.panels = ceil_div(conv.out_channels, self.tile.columns)
        self.strips = ceil_div(conv.out_channels, self.tile.width)  # tiles across: a panel has one or several
        measured = conv.choice(machine).fetch
        # Panels prefetched ahead; 0: none. In networks even few weights are cold: 10 to 50 % faster on Zen 5.
        self.fetch = 1 if measured is None else measured
        self.prefetch_range = machine.prefetch_range

    @property
    def planes(self) -> int:
        """Number of matmuls: one for each position in an input tile."""
        return self.size * self.size

    @property
    def data_size(self) -> int:
        """Elements of a buffer of transformed inputs."""
        return int(self.planes * self.data_plane)

    @property
    def product_size(self) -> int:
        """Elements of a buffer of matmul results."""
        return self.planes * self.product_plane

    def transform_inputs(self, x: Any, data: TaskMemory, tile: Expr, slot: Expr) -> None:
        """Emit the transform of tile `tile` of `x` into slot `slot` of `data`."""
        conv, size = self.conv, self.size
        rows, columns = self.grid.inputs(tile)
        first = bind(data.start + slot * int64(conv.channels))

        def channels(channel: Expr, width: int) -> None:
            lines: list[list[Expr]] = []
            for j in range(size):
                line = [bind(read(x, rows[i] + columns[j] + channel, width)) for i in range(size)]
                lines.append([bind(value) for value in data_line(line)])
            for i in range(size):
                for j, value in enumerate(data_line([line[i] for line in lines])):
                    plane = (i * size + j) * self.data_plane
                    write(data.buffer, first + int64(plane) + channel, width, value)

        over_channels(conv.channels, self.lanes, channels)

    def multiply(
        self, data: TaskMemory, weights: Any, products: TaskMemory, plane: Expr, strip: Expr,
        again: tuple[Expr, int] | None = None, tiles: Extent | None = None,
    ) -> None:  # fmt: skip
        """Emit the matmul of one plane and one strip of columns, for `tiles` tiles in the buffers; None: all.

        `data`: transformed inputs. `weights`: the packed panels. `products`: the results.
        `again`: (index of this pass over the weights, number of passes); None: one pass, or a dynamic number.
        """
        conv, tile = self.conv, self.tile
        first_data = bind(data.start + plane * int64(self.data_plane))
        first_product = bind(products.start + plane * int64(self.product_plane))

        def finish(row: Expr, column: Expr, value: Expr) -> None:
            store(products.buffer, [first_product + row * int64(conv.out_channels) + column], value)

        def strip_of(columns: int) -> None:
            def tile_at(first_row: Expr, count: int) -> None:
                rows = [bind(first_row + int64(index)) for index in range(count)]
                bases = [bind(first_data + row * int64(conv.channels)) for row in rows]
                panel = divide(strip, tile.parts)
                inside = modulo(strip, tile.parts) * int64(tile.width) if tile.parts > 1 else None
                number, loops = bind(plane * int64(self.panels) + panel), [Loop(conv.channels, 1)]
                index, row_tiles = divide(first_row, tile.rows), ceil_div(self.block, tile.rows)
                next_one = None
                if self.fetch:
                    next_one = prefetch_panels(tile, loops, number, index, row_tiles, self.fetch, inside)
                # Where weights are read only once, reading them leaves no time for prefetches of others.
                if next_one is not None and self.prefetch_range is not None and again is not None:
                    turn, turns = again
                    strip_index = turn * int64(self.planes * self.strips) + plane * int64(self.strips) + strip
                    share = bind(strip_index * int64(row_tiles) + index)
                    shares = turns * self.planes * self.strips * row_tiles
                    later_share = prefetch_later(
                        self.prefetch_range, share, shares, conv.channels // next_one.steps
                    )
                    next_one = replace(next_one, later=later_share)
                out = OutputTile(rows, strip * int64(tile.width), columns, finish)
                operands = TileOperands(data.buffer, bases, weights, number, inside)
                product(tile, out, operands, loops, "float32", next_one)

            blocks(self.block if tiles is None else tiles, tile.rows, tile_at)

        last_columns = conv.out_channels % tile.width
        if not last_columns:
            strip_of(tile.width)
        elif self.strips == 1:
            strip_of(last_columns)
        else:
            with builder.If(strip < int64(self.strips - 1)):
                with builder.Then():
                    strip_of(tile.width)
                with builder.Else():
                    strip_of(last_columns)

    def transform_outputs(self, products: TaskMemory, tile: Expr, slot: Expr, element: Epilogue) -> None:
        """Emit the transform of slot `slot` of `products` to the outputs of tile `tile`, and the epilogue."""
        conv, size, m = self.conv, self.size, self.m
        image, row, column = (bind(value) for value in self.grid.place(tile))
        first = bind(products.start + slot * int64(conv.out_channels))

        def channels(channel: Expr, width: int) -> None:
            lines = []
            for j in range(size):
                planes = [(i * size + j) * self.product_plane for i in range(size)]
                starts = [first + int64(plane) + channel for plane in planes]
                line = [bind(read(products.buffer, start, width)) for start in starts]
                lines.append([bind(value) for value in output_line(line)])
            for i in range(m):
                for j, value in enumerate(output_line([line[i] for line in lines])):
                    values_register = registers([width], "float32")
                    write(values_register, int64(0), width, value)
                    inside = self.grid.inside(row, column, i, j)
                    when(inside, functools.partial(put, i, j, channel, width, values_register))

        def put(i: int, j: int, channel: Expr, width: int, values_register: Any) -> None:
            with vector(width) as lane:
                where = [image, row + int64(i), column + int64(j), channel + lane]
                element.store(where, load(values_register, [lane]))

        over_channels(conv.out_channels, self.lanes, channels)
