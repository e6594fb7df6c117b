"""Winograd convolution: 3x3 weights, stride 1, with 2.25 (F2) or 4 (F4) times fewer multiplications.

Computation  Output tiles of m x m (m = 2 or 4) from input tiles of (m+2) x (m+2): transform the inputs,
             multiply plane by plane (tiles x channels by channels x outputs, (m+2)^2 matmuls), transform
             back. kernels/cpu/winograd_transforms.py holds the transforms.
Packing      [3,3,C,O] → [plane][panel][C][NR]: 1.8 (F2) or 4 (F4) times as many bytes.
Schedule     Small weights or many tiles: blocks of tiles whose transformed data stay in the cache go through
             all three phases; each task has a share of the tiles and scratch memory of its own.
             Large weights and few tiles: three kernels, each phase for all tiles, so that every weight is
             read once and the matmuls are divided into tasks by planes and panels.
             A plane is one cache line longer than its data, otherwise all lines of a tile would map to one
             set of the cache.
             With dynamic shapes the number of blocks is dynamic; blocks without tiles are skipped.
             Tiles across the edge read the last row and column again; only real outputs are stored, with
             the epilogue, each exactly once.
Applies      NHWC/HWIO, float32, constant weights, groups 1, no padding left in the op, where `pays`.
Accuracy     On data of unit scale, against a convolution in float64: F2 up to 4e-6, F4 up to 7e-5 (direct:
             1e-6). A model's `winograd: f2` or `off` avoids larger errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu.conv2d import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm import Loop, ahead, choose_tile, later, product
from kiln.kernels.cpu.winograd_cost import Form, form_of
from kiln.kernels.cpu.winograd_transforms import data_line, output_line, pack_weights
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
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import Extent, ceil_div, is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of
from kiln.tir.vector_expr import ramp


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] != "nn.conv2d" or len(fused.params) < 3 or 1 not in constants:
        return False
    attrs, x, weights = op["attrs"], fused.params[0], fused.params[1]
    if any(str(item.dtype) != "float32" for item in (x, weights, anchor.buffer)):
        return False
    if any(is_dynamic(size) for size in [*weights.shape, x.shape[-1]]):
        return False
    steps = [*attrs["strides"], *attrs["dilation"], attrs["groups"]]
    square = [int(size) for size in weights.shape[:2]] == [3, 3] and all(int(step) == 1 for step in steps)
    layout = attrs["data_layout"] == "NHWC" and attrs["kernel_layout"] == "HWIO"
    return square and layout and not any(attrs["padding"])


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether Winograd convolution is allowed and estimated to be faster than kernels/cpu/conv2d.py."""
    return form_of(Convolution(op, fused, anchor), machine) is not None


class Phases:
    """Emits the three phases of a convolution. Tiles are numbered consecutively over all images."""

    def __init__(self, conv: Convolution, form: Form, machine: Machine) -> None:
        self.conv, self.m, self.size = conv, form.m, form.m + 2
        self.down, self.across = ceil_div(conv.out_h, form.m), ceil_div(conv.out_w, form.m)
        self.tiles: Extent = conv.ranges.product([conv.batch, self.down, self.across])
        self.lanes, self.line = machine.lanes("float32"), 16
        self.held = form.block  # tiles in the buffers of transformed data
        self.data_plane = self.held * conv.channels + self.line
        self.product_plane = self.held * conv.out_channels + self.line
        best = choose_tile(machine, self.held, conv.out_channels, conv.choice(machine).tile)
        rows = ceil_div(self.held, ceil_div(self.held, best.rows))  # of equal height: no low last tile
        self.tile = replace(best, rows=rows, beside=1)
        self.panels = ceil_div(conv.out_channels, self.tile.columns)
        self.strips = ceil_div(conv.out_channels, self.tile.width)  # tiles across: a panel has one or several
        measured = conv.choice(machine).fetch
        # Panels prefetched ahead; 0: none. In networks even few weights are cold: 10 to 50 % faster on Zen 5.
        self.fetch = 1 if measured is None else measured
        self.upcoming = machine.upcoming

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

    def _place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """(image, first output row, first output column) of tile number `tile`."""
        tiles_of_image = self.down * self.across
        single_image = self.conv.ranges.same(self.conv.batch, 1)
        inside = tile if single_image else modulo(tile, tiles_of_image)
        image = int64(0) if single_image else divide(tile, tiles_of_image)
        return image, divide(inside, self.across) * int64(self.m), modulo(inside, self.across) * int64(self.m)

    def _rest(self, extent: Extent) -> int:
        """Lower bound, at most m, on the outputs of the last tile along an axis of `extent` outputs."""
        rest = self.conv.ranges.simplify(modulo(extent, self.m))
        return 1 if is_dynamic(rest) else int(rest) or self.m

    def _channels(self, count: int, visit: Any) -> None:
        """Emit visit(first channel, width) for vectors that cover `count` channels."""
        whole = count // self.lanes
        if whole:
            with serial(whole) as block:
                visit(block * int64(self.lanes), self.lanes)
        for offset, width in chunks(count - whole * self.lanes, self.lanes):
            visit(int64(whole * self.lanes + offset), width)

    def transform_inputs(self, x: Any, data: Any, start: Expr, tile: Expr, slot: Expr) -> None:
        """Emit the transform of tile `tile` of `x` into slot `slot` of `data`, which begins at `start`."""
        conv, size = self.conv, self.size
        image, row, column = self._place(tile)

        def clamped(first: Expr, offset: int, extent: Extent) -> Expr:
            """first + offset, limited to the last input of an axis of `extent` outputs."""
            position = first + int64(offset)
            # n outputs read n + 2 inputs.
            beyond = offset - 1 > self._rest(extent)
            return tirx.min(position, int64(extent + 1)) if beyond else position

        def line_of(i: int) -> Expr:
            height = clamped(row, i, conv.out_h) + int64(conv.top)
            line = (image * int64(conv.height) + height) * int64(conv.width) + int64(conv.left)
            return line * int64(conv.pitch)

        rows = [bind(line_of(i)) for i in range(size)]
        columns = [bind(clamped(column, j, conv.out_w) * int64(conv.pitch)) for j in range(size)]
        first = bind(start + slot * int64(conv.channels))

        def channels(channel: Expr, width: int) -> None:
            lines: list[list[Expr]] = []
            for j in range(size):
                line = [bind(_read(x, rows[i] + columns[j] + channel, width)) for i in range(size)]
                lines.append([bind(value) for value in data_line(line)])
            for i in range(size):
                for j, value in enumerate(data_line([line[i] for line in lines])):
                    plane = (i * size + j) * self.data_plane
                    _write(data, first + int64(plane) + channel, width, value)

        self._channels(conv.channels, channels)

    def multiply(
        self, data: Any, data_start: Expr, weights: Any, products: Any, start: Expr, plane: Expr, strip: Expr,
        again: tuple[Expr, int] | None = None,
    ) -> None:  # fmt: skip
        """Emit the matmul of one plane and one strip of columns, for all tiles in the buffers.

        `again`: (index of this pass over the weights, number of passes); None: one pass, or a dynamic number.
        """
        conv, tile = self.conv, self.tile
        first_data = bind(data_start + plane * int64(self.data_plane))
        first_product = bind(start + plane * int64(self.product_plane))

        def finish(row: Expr, column: Expr, value: Expr) -> None:
            store(products, [first_product + row * int64(conv.out_channels) + column], value)

        def strip_of(columns: int) -> None:
            def tile_at(first_row: Expr, count: int) -> None:
                rows = [bind(first_row + int64(index)) for index in range(count)]
                bases = [bind(first_data + row * int64(conv.channels)) for row in rows]
                panel = divide(strip, tile.parts)
                inside = modulo(strip, tile.parts) * int64(tile.width) if tile.parts > 1 else None
                number, loops = bind(plane * int64(self.panels) + panel), [Loop(conv.channels, 1)]
                index, tiles = divide(first_row, tile.rows), ceil_div(self.held, tile.rows)
                next_one = None
                if self.fetch:
                    next_one = ahead(tile, loops, number, index, tiles, self.fetch, inside)
                # Where weights are read only once, reading them leaves no time for prefetches of others.
                if next_one is not None and self.upcoming is not None and again is not None:
                    turn, turns = again
                    here = turn * int64(self.planes * self.strips) + plane * int64(self.strips) + strip
                    share = bind(here * int64(tiles) + index)
                    shares = turns * self.planes * self.strips * tiles
                    other = later(self.upcoming, share, shares, conv.channels // next_one.steps)
                    next_one = replace(next_one, later=other)
                product(
                    tile, rows, strip * int64(tile.width), columns, data, bases, weights, number, loops,
                    "float32", finish, next_one, inside=inside,
                )  # fmt: skip

            blocks(self.held, tile.rows, tile_at)

        rest = conv.out_channels % tile.width
        if not rest:
            strip_of(tile.width)
        elif self.strips == 1:
            strip_of(rest)
        else:
            with builder.If(strip < int64(self.strips - 1)):
                with builder.Then():
                    strip_of(tile.width)
                with builder.Else():
                    strip_of(rest)

    def transform_outputs(
        self, products: Any, start: Expr, tile: Expr, slot: Expr, element: Epilogue
    ) -> None:
        """Emit the transform of slot `slot` of `products` to the outputs of tile `tile`, and the epilogue."""
        conv, size, m = self.conv, self.size, self.m
        image, row, column = (bind(value) for value in self._place(tile))
        first = bind(start + slot * int64(conv.out_channels))

        def channels(channel: Expr, width: int) -> None:
            lines = []
            for j in range(size):
                planes = [(i * size + j) * self.product_plane for i in range(size)]
                line = [bind(_read(products, first + int64(plane) + channel, width)) for plane in planes]
                lines.append([bind(value) for value in output_line(line)])
            for i in range(m):
                for j, value in enumerate(output_line([line[i] for line in lines])):
                    kept = registers([width], "float32")
                    _write(kept, int64(0), width, value)
                    inside = []
                    if i >= self._rest(conv.out_h):
                        inside.append(row + int64(i) < int64(conv.out_h))
                    if j >= self._rest(conv.out_w):
                        inside.append(column + int64(j) < int64(conv.out_w))
                    self.when(inside, functools.partial(put, i, j, channel, width, kept))

        def put(i: int, j: int, channel: Expr, width: int, kept: Any) -> None:
            with vector(width) as lane:
                where = [image, row + int64(i), column + int64(j), channel + lane]
                element.store(where, load(kept, [lane]))

        self._channels(conv.out_channels, channels)

    @staticmethod
    def when(conditions: list[Expr], then: Callable[[], None]) -> None:
        """Emit `then()`, executed where all conditions hold."""
        if not conditions:
            then()
            return
        with builder.If(conditions[0] if len(conditions) == 1 else tirx.all(*conditions)), builder.Then():
            then()


def _read(buffer: Any, at: Expr, width: int) -> Expr:
    return load(buffer, [ramp(at, width) if width > 1 else at])


def _write(buffer: Any, at: Expr, width: int, value: Expr) -> None:
    store(buffer, [ramp(at, width) if width > 1 else at], value)


def make(
    op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine
) -> list[tuple[Kernel, list[Any]]]:
    """Make the kernels of nests `anchor` to `last`; return each with the buffers of its parameters."""
    conv = Convolution(op, fused, anchor)
    form = form_of(conv, machine)
    assert form is not None
    phases = Phases(conv, form, machine)
    group = _Group(fused, anchor, last, phases, form)
    return group.staged() if form.staged else [group.blocked()]


class _Group:
    """The kernels of one fused group that Winograd convolution computes."""

    def __init__(self, fused: Fused, anchor: Nest, last: Nest, phases: Phases, form: Form) -> None:
        self.fused, self.anchor, self.last, self.phases, self.form = fused, anchor, last, phases, form
        self.saving = {2: 2.25, 4: 4.0}[form.m]
        self.x, self.weights = fused.params[:2]
        self.read = parameters(fused, anchor, last)
        self.overwritten = may_overwrite(fused, anchor, last, self.read)
        conv = phases.conv
        self.ranges = fused.ranges
        size = self.ranges.greatest(self.ranges.product(list(self.x.shape)))
        self.x_argument = Argument(self.x.name, [size], "float32")
        count = phases.planes * phases.panels * conv.channels * phases.tile.columns
        self.weights_argument = Argument(self.weights.name, [count], "float32")

    def _pack(self, weights: Array) -> Array:
        return pack_weights(weights, self.phases.m, self.phases.tile)

    def _packing(self) -> Packing:
        return Packing(self.phases.tile.columns, self.form.m, self.form.staged)

    def _epilogue(self, buffers: list[Any]) -> Epilogue:
        """The epilogue of the group. `buffers`: the kernel's buffers after data and weights."""
        return Epilogue(self.fused, self.anchor, self.last, dict(zip(self.read[2:], buffers, strict=True)))

    def blocked(self) -> tuple[Kernel, list[Any]]:
        """Make one kernel, each task of which computes all phases of `form.rounds` blocks of tiles."""
        phases, form = self.phases, self.form

        def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
            slots = form.tasks
            data = builder.alloc_buffer([slots * phases.data_size], "float32")
            products = builder.alloc_buffer([slots * phases.product_size], "float32")
            element = self._epilogue(buffers[2:])
            exact = not is_dynamic(phases.tiles) and slots * form.rounds * form.block == phases.tiles

            def block(first: Expr, data_start: Expr, start: Expr, again: tuple[Expr, int] | None) -> None:
                """Emit all phases of the block of tiles that begins at tile `first`."""
                with serial(form.block) as slot:
                    tile = bind(tirx.min(first + slot, int64(phases.tiles - 1)))
                    phases.transform_inputs(buffers[0], data, data_start, tile, slot)
                with serial(phases.planes) as plane, serial(phases.strips) as strip:
                    phases.multiply(data, data_start, buffers[1], products, start, plane, strip, again)
                with serial(form.block) as slot:
                    tile = bind(first + slot)
                    conditions = [] if exact else [tile < int64(phases.tiles)]
                    phases.when(
                        conditions,
                        lambda: phases.transform_outputs(products, start, tile, slot, element),
                    )

            with tasks_of(slots, slots > 1, begin, end) as task, serial(form.rounds) as turn:
                data_start = bind(task * int64(phases.data_size))
                start = bind(task * int64(phases.product_size))
                first = bind((task * int64(form.rounds) + turn) * int64(form.block))
                # At small sizes some tasks have no tile.
                some = [first < int64(phases.tiles)] if is_dynamic(phases.tiles) else []
                again = None
                if not is_dynamic(form.rounds):
                    again = (bind(task * int64(form.rounds) + turn), slots * form.rounds)
                phases.when(some, functools.partial(block, first, data_start, start, again))

        arguments = [self.x_argument, self.weights_argument, *(argument(p) for p in self.read[2:])]
        tasks = form.tasks if form.tasks > 1 else None
        func = define(arguments, tasks, body, bool(self.overwritten), self.ranges)
        fetches = phases.fetch > 0 and not is_dynamic(form.rounds)
        kernel = Kernel(
            func,
            tasks,
            {1: self._pack},
            "winograd",
            self.overwritten,
            self.saving,
            fetches,
            self.ranges,
            self._packing(),
        )
        return kernel, self.read

    def staged(self) -> list[tuple[Kernel, list[Any]]]:
        """Make three kernels, one for each phase; transformed data are in the arena between them."""
        phases, zero = self.phases, int64(0)
        data = tirx.decl_buffer([phases.data_size], "float32", "data")
        products = tirx.decl_buffer([phases.product_size], "float32", "products")

        def inputs(buffers: list[Any], begin: Expr, end: Expr) -> None:
            with tasks_of(phases.tiles, True, begin, end) as tile:
                phases.transform_inputs(buffers[0], buffers[1], zero, tile, tile)

        def multiply(buffers: list[Any], begin: Expr, end: Expr) -> None:
            with tasks_of(phases.planes * phases.strips, True, begin, end) as task:
                plane, strip = bind(divide(task, phases.strips)), bind(modulo(task, phases.strips))
                phases.multiply(buffers[0], zero, buffers[1], buffers[2], zero, plane, strip)

        def outputs(buffers: list[Any], begin: Expr, end: Expr) -> None:
            element = self._epilogue(buffers[1:])
            with tasks_of(phases.tiles, True, begin, end) as tile:
                phases.transform_outputs(buffers[0], zero, tile, tile, element)

        products_of = phases.planes * phases.strips
        rest = [argument(param) for param in self.read[2:]]
        first = define([self.x_argument, argument(data)], phases.tiles, inputs, False, self.ranges)
        second_arguments = [argument(data), self.weights_argument, argument(products)]
        second = define(second_arguments, products_of, multiply, False, self.ranges)
        third = define(
            [argument(products), *rest], phases.tiles, outputs, bool(self.overwritten), self.ranges
        )
        in_place = tuple(position - 1 for position in self.overwritten)
        kernel = functools.partial(Kernel, family="winograd", ranges=self.ranges)
        return [
            (kernel(first, phases.tiles), [self.x, data]),
            (
                kernel(second, products_of, {1: self._pack}, packing=self._packing()),
                [data, self.weights, products],
            ),
            (kernel(third, phases.tiles, in_place=in_place), [products, *self.read[2:]]),
        ]
