"""Convolution on NHWC as an implicit matmul; dense layers are the 1x1 case.

Computation  y[n,h,w,o] = f(sum x[n, h s + i d, w s + j d, c] * k[i,j,c,o]), f = the fused epilogue.
             Rows of the matmul are output pixels, flattened, so that 7x7 or 14x14 images waste nothing.
Packing      [KH,KW,C,O] → [group][panel][KH][KW][C][NR]; `pack` of gemm_tile.py may pack the last panel by
             pairs.
Schedule     Tile by kernels/cpu/gemm_tile.py. Each panel of weights is used for all tiles of pixels or, where
             x exceeds the cache and the weights do not, for some of the tiles at a time (`part_of`). Groups
             are a loop, the tasks where there is one for each core, else around each tile.
Applies      NHWC/HWIO, no padding left in the op, constant weights, any stride and dilation; groups, unless
             each has one output channel (see depthwise.py). float32, or (u)int8 with int32 sums.
Accuracy     Sums run in order of (i, j, c): the error of plain summation in float32, exact in int32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm import product
from kiln.kernels.cpu.gemm_dot import DotProduct
from kiln.kernels.cpu.gemm_int8 import IntegerProduct, integer_product
from kiln.kernels.cpu.gemm_prefetch import ahead, later
from kiln.kernels.cpu.gemm_tile import Loop, Tile, choose_tile, pack, pairs_pay
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Argument,
    Array,
    Expr,
    Kernel,
    Machine,
    Pack,
    Packing,
    argument,
    bind,
    define,
    divide,
    int64,
    modulo,
    serial,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import NO_RANGES, Extent, ceil_div, extent, is_dynamic
from kiln.tir.tiled_loops import blocks, task_blocks, tasks_of
from kiln.tir.tuning_records import RULES, TuningRecord, key_of


class Convolution:
    """Sizes of one convolution (or dense layer), from its op info and its buffers."""

    def __init__(self, op: OpInfo, fused: Fused, anchor: Nest) -> None:
        self.ranges = fused.ranges
        x, weights = fused.params[:2]
        x_shape, k_shape = [extent(size) for size in x.shape], [int(size) for size in weights.shape]
        attrs = op["attrs"]
        _, self.top, self.left, _ = fused.origins.get(x, (0, 0, 0, 0))
        if op["name"] == "matmul":
            rows = self.ranges.product(x_shape[:-1])
            x_shape, k_shape = [1, 1, rows, x_shape[-1]], [1, 1, *k_shape]
            attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
        self.is_layer = op["name"] == "matmul"
        self._set(x_shape, k_shape, [1, x_shape[2]] if self.is_layer else anchor.extents[1:3], attrs)

    @classmethod
    def of_sizes(
        cls, x: list[int], weights: list[int], out: list[int], attrs: Mapping[str, Any]
    ) -> Convolution:
        """A convolution of x (NHWC, padded) with weights (HWIO) whose result has shape `out` (NHWC).

        `attrs`: strides, dilation and groups.
        """
        conv = cls.__new__(cls)
        conv.ranges = NO_RANGES
        conv.top = conv.left = 0
        conv.is_layer = False
        conv._set(x, weights, out[1:3], attrs)
        return conv

    @classmethod
    def dense(cls, x: list[int], weights: list[int]) -> Convolution:
        """A dense layer: matmul of x (…, K) and weights (K, N)."""
        rows = int(np.prod(x[:-1], dtype=np.int64))
        attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
        conv = cls.of_sizes([1, 1, rows, x[-1]], [1, 1, *weights], [1, 1, rows], attrs)
        conv.is_layer = True
        return conv

    def _set(
        self, x_shape: Sequence[Extent], k_shape: list[int], out: Sequence[Extent], attrs: Mapping[str, Any]
    ) -> None:
        """Set all sizes from shapes x (NHWC) and k (HWIO); `out`: height and width of an output image."""
        self.batch, self.height, self.width = x_shape[:3]
        # Elements between adjacent pixels; lower/views/in_place_padding.py may add a gap after the channels.
        self.pitch = int(x_shape[3])
        self.kernel_h, self.kernel_w, self.depth, self.out_channels = k_shape
        self.stride_h, self.stride_w = attrs["strides"]
        self.dilation_h, self.dilation_w = attrs["dilation"]
        self.groups = int(attrs["groups"])
        self.channels = self.depth * self.groups
        self.out_h: Extent
        self.out_w: Extent
        self.out_h, self.out_w = out
        self.rows: Extent = self.ranges.product([self.batch, self.out_h, self.out_w])
        self.columns = self.out_channels // self.groups

    def loops(self) -> list[Loop]:
        """The reduction over kernel rows, columns and input channels."""
        return [
            Loop(self.kernel_h, self.dilation_h * self.width * self.pitch),
            Loop(self.kernel_w, self.dilation_w * self.pitch),
            Loop(self.depth, 1),
        ]

    def pixel(self, row: Expr) -> tuple[Expr, Expr, Expr]:
        """(n, h, w) of the output pixel that is row `row` of the matmul."""
        image = self.ranges.product([self.out_h, self.out_w])
        single_image = self.ranges.same(self.batch, 1)
        position = row if single_image else modulo(row, image)
        return (
            int64(0) if single_image else divide(row, image),
            divide(position, self.out_w),
            modulo(position, self.out_w),
        )

    def base(self, row: Expr, group: Expr) -> Expr:
        """Offset in x of the first element of `group` that output row `row` reads."""
        n, h, w = self.pixel(row)
        line = (n * int64(self.height) + h * int64(self.stride_h) + int64(self.top)) * int64(self.width)
        column = w * int64(self.stride_w) + int64(self.left)
        return (line + column) * int64(self.pitch) + group * int64(self.depth)

    def choice(self, machine: Machine) -> TuningRecord:
        """The tuning record for this shape; RULES (heuristics decide) where the shape was not measured."""
        if is_dynamic(self.rows):
            return RULES
        x = (self.batch, self.height, self.width, self.channels)
        weights = (self.kernel_h, self.kernel_w, self.depth, self.out_channels)
        stride, dilation = (self.stride_h, self.stride_w), (self.dilation_h, self.dilation_w)
        key = key_of(x, weights, stride, dilation, self.groups)
        return machine.choices.get(key, RULES)

    @property
    def is_dense(self) -> bool:
        """Whether output rows are the pixels of x, in order."""
        same = self.ranges.same
        all_pixels = same(self.height, self.out_h) and same(self.width, self.out_w)
        return all_pixels and self.kernel_h == self.kernel_w == self.stride_h == self.stride_w == 1

    @property
    def macs(self) -> int:
        """Multiply-adds of one run, at the greatest sizes."""
        return (
            self.ranges.greatest(self.rows) * self.out_channels * self.kernel_h * self.kernel_w * self.depth
        )


def _packing(
    conv: Convolution, tile: Tile, integer: IntegerProduct | DotProduct | None, paired: bool
) -> Pack:
    """The function that packs the weights of `conv` at build time, one group after the other."""

    def transform(weights: Array) -> Array:
        depth = conv.kernel_h * conv.kernel_w * conv.depth
        matrix = weights.reshape(depth, conv.groups, conv.columns)
        groups = [matrix[:, group] for group in range(conv.groups)]
        return np.concatenate([integer.pack(one) if integer else pack(one, tile, paired) for one in groups])

    return transform


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if len(fused.params) < 3 or 1 not in constants:
        return False
    x, weights = fused.params[0], fused.params[1]
    if str(anchor.buffer.dtype) not in ("float32", "int32"):
        return False
    if op["name"] == "matmul":
        return len(weights.shape) == 2 and len(x.shape) >= 2
    if op["name"] != "nn.conv2d" or op["attrs"]["data_layout"] != "NHWC":
        return False
    attrs = op["attrs"]
    one_channel = int(attrs["groups"]) == int(weights.shape[3]) and int(attrs["groups"]) > 1
    return attrs["kernel_layout"] == "HWIO" and not any(attrs["padding"]) and not one_channel


def part_of(machine: Machine, cores: int, tiles: int, panels: int, x_bytes: int, weights_bytes: int) -> int:
    """Number of tiles of rows for which a panel of weights is used before the next panel; 0: all tiles.

    All tiles where x stays in the L2 cache or the weights do not, provided that the panels divide among the
    cores. Otherwise tiles whose part of x leaves room in the cache (an eighth of the cache, or 8 tiles), in a
    number by which the tiles divide among the cores.
    """
    half = machine.l2_bytes // 2
    divides = panels % cores == 0 or panels >= 4 * cores
    if tiles == 1 or (divides and (x_bytes <= half or weights_bytes > half)):
        return 0
    most = min(max(8, tiles * half // (4 * x_bytes)), ceil_div(tiles, cores))

    def slowest(part: int) -> int:
        """Number of tiles on the core with the most tiles."""
        return ceil_div(ceil_div(tiles, part), cores) * part

    return min(range(ceil_div(most, 2), most + 1), key=lambda part: (slowest(part), -part))


def by_pairs(conv: Convolution, machine: Machine) -> bool:
    """Whether the last panel of float32 weights is packed by pairs.

    Never in dense layers: kernels for one row and for many rows share the weights.
    """
    if not machine.pairs or not conv.is_dense or conv.is_layer:
        return False
    if machine.packing is not None:
        return machine.packing.paired
    return pairs_pay(machine, conv.ranges.greatest(conv.rows), conv.columns, conv.depth)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    x_param, w_param = fused.params[0], fused.params[1]
    conv, greatest = Convolution(op, fused, anchor), fused.ranges.greatest
    dtypes = [str(x_param.dtype), str(w_param.dtype)]
    most_rows = greatest(conv.rows)
    integer = integer_product(
        machine, dtypes, w_param in fused.narrow, conv.loops(), most_rows, conv.columns, greatest(conv.out_w)
    )
    apart = conv.stride_w * conv.pitch * 4  # bytes between rows of x, except at the ends of image lines
    choice = conv.choice(machine) if str(anchor.buffer.dtype) == "float32" else RULES
    tile = integer.tile if integer else choose_tile(machine, most_rows, conv.columns, choice.tile, apart)
    panels, wide = ceil_div(conv.columns, tile.columns), ceil_div(conv.columns, tile.width)
    depth = conv.kernel_h * conv.kernel_w * conv.depth
    group_weights = panels * (integer.panel_bytes if integer else depth * tile.columns)
    accumulator = str(anchor.buffer.dtype)
    paired = {*dtypes, accumulator} == {"float32"} and by_pairs(conv, machine)
    output = last.buffer
    rank = len(output.shape)

    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param, fused.tables) for param in buffers_read]
    x_size = greatest(fused.ranges.product(list(x_param.shape)))
    arguments[0] = Argument(x_param.name, [x_size], str(x_param.dtype))
    arguments[1] = Argument(w_param.name, [group_weights * conv.groups], str(w_param.dtype))
    tiles, most_tiles = ceil_div(conv.rows, tile.rows), ceil_div(most_rows, tile.rows)
    width = ceil_div(tvm.DataType(str(x_param.dtype)).bits, 8)
    x_bytes = x_size * width
    shared = machine.shares(conv.macs // tile.lanes)
    part = choice.part
    if part is None:
        cores = machine.cores if shared else 1
        part = part_of(machine, cores, most_tiles, wide, x_bytes, group_weights * conv.groups * width)
    by_group = 1 < conv.groups >= (machine.cores if shared else 1)
    part = most_tiles if by_group else min(part or most_tiles, most_tiles)
    weights_outside = part == most_tiles
    parts = ceil_div(tiles, part)
    # A single row reads weights as fast as memory delivers them: prefetches cost 5 to 15 % on Zen 5.
    usual = 1 if most_rows > 1 else 0
    fetch = (usual if choice.fetch is None else choice.fetch) if accumulator == "float32" else 0
    tasks = (conv.groups if by_group else wide if weights_outside else parts) if shared else None

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))

        def finish(row: Expr, column: Expr, value: Expr) -> None:
            if rank == 4 and op["name"] != "matmul":
                indices = [*conv.pixel(row), column]
            else:
                indices = [*unravel(row, [extent(size) for size in output.shape[:-1]]), column]
            element.store(indices, value)

        def tile_of(rows: list[Expr], index: Expr, first_column: Expr, columns: int, group: Expr) -> None:
            """Emit tile `index` of a group: the output pixels `rows`, `columns` columns."""
            bases = [bind(conv.base(row, group)) for row in rows]
            panel = bind(divide(first_column, tile.columns) + group * int64(panels))
            inside = bind(modulo(first_column, tile.columns)) if tile.parts > 1 else None
            first = first_column + group * int64(conv.columns)
            if integer:
                integer.product(rows, first, columns, buffers[0], bases, buffers[1], panel, finish, inside)
                return
            fetched = None
            if fetch:
                fetched = ahead(tile, conv.loops(), panel, modulo(index, part), part, fetch, inside)
                if machine.upcoming and conv.groups == 1:
                    share = bind(divide(first_column, tile.width) * int64(most_tiles) + index)
                    other = later(machine.upcoming, share, wide * most_tiles, depth // fetched.steps)
                    fetched = replace(fetched, later=other)
            product(
                tile, rows, first, columns, buffers[0], bases, buffers[1], panel, conv.loops(), accumulator,
                finish, fetched, paired and columns < tile.columns, inside,
            )  # fmt: skip

        def tile_at(
            first_row: Expr, count: int, first_column: Expr, columns: int, group: Expr | None = None
        ) -> None:
            """Emit one tile: `count` rows from `first_row`, `columns` columns of `group`, or all groups."""
            rows, index = [bind(first_row + int64(i)) for i in range(count)], divide(first_row, tile.rows)
            if group is not None or conv.groups == 1:
                tile_of(rows, index, first_column, columns, int64(0) if group is None else group)
                return
            with serial(conv.groups) as one:
                tile_of(rows, index, first_column, columns, one)

        def down(first_column: Expr, columns: int, group: Expr | None = None) -> None:
            """Emit all tiles of one panel of weights."""
            blocks(conv.rows, tile.rows, lambda row, count: tile_at(row, count, first_column, columns, group))

        def across(number: Expr) -> None:
            """Emit the tiles of all panels for part `number` of the rows."""
            first = bind(number * int64(part))
            end = bind(tirx.min(first + int64(part), int64(tiles)))

            def inside(column: Expr, columns: int) -> None:
                task_blocks(
                    conv.rows,
                    tile.rows,
                    True,
                    first,
                    end,
                    lambda row, count: tile_at(row, count, column, columns),
                )

            blocks(conv.columns, tile.width, inside)

        split = tasks is not None
        if by_group:
            with tasks_of(conv.groups, split, begin, end) as number:
                group = bind(number)
                blocks(conv.columns, tile.width, lambda column, columns: down(column, columns, group))
        elif weights_outside:
            task_blocks(conv.columns, tile.width, split, begin, end, down)
        else:
            with tasks_of(parts, split, begin, end) as number:
                across(number)

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, tasks, body, bool(in_place), fused.ranges)
    fetches = bool(fetch) and conv.groups == 1
    packs = {1: _packing(conv, tile, integer, paired)}
    packing = Packing(tile.columns, paired=paired)
    if integer:
        packing = replace(packing, arrangement=integer.arrangement, head_lanes=integer.head_lanes)
    kernel = Kernel(
        func, tasks, packs, "conv2d", in_place, fetches=fetches, ranges=fused.ranges, packing=packing
    )
    return kernel, buffers_read
