"""Convolution on NHWC as an implicit matmul; dense layers are the 1x1 case.

Computation  y[n,h,w,o] = f(sum x[n, h s + i d, w s + j d, c] * k[i,j,c,o]), f = the fused epilogue.
             Rows of the matmul are output pixels, flattened, so that 7x7 or 14x14 images waste nothing.
Packing      [KH,KW,C,O] → [group][panel][KH][KW][C][NR]; `pack` of gemm_tile.py may pack the last panel by
             pairs.
Schedule     Tile by kernels/cpu/gemm_tile.py. Each panel of weights is used for all tiles of pixels or, where
             x exceeds the cache and the weights do not, for some of the tiles at a time (`part_of` in
             conv2d_schedule.py). Groups are a loop, the tasks where there is one for each core, else around
             each tile.
             An operator with padding (lower/prepare.py leaves it where it is wide) is computed line by line
             without the taps that read padding (skipped_taps.py).
Applies      NHWC/HWIO, constant weights, any stride and dilation; groups, unless each has one output channel
             (see depthwise.py). float32, or (u)int8 with int32 sums.
Accuracy     Sums run in order of (i, j, c): the error of plain summation in float32, exact in int32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm.ir import Expr

from kiln.kernels.cpu.amx_tile import with_tile_registers
from kiln.kernels.cpu.conv2d_schedule import Schedule, schedule_of
from kiln.kernels.cpu.conv2d_tiles import TileLoops
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, flat_argument, may_overwrite, parameters
from kiln.kernels.cpu.gemm_tile import pack
from kiln.kernels.cpu.output_tile import stored_together
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Argument, Array, Kernel, Machine, Pack, Packing, argument, define
from kiln.tir.fused import Fused, Nest


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`, which reads an image with padding."""
    return _computes(op, fused, anchor, constants) and not any(op["attrs"].get("padding", ()))


def pads_too(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`, which may have the padding itself."""
    padded = op["name"] == "nn.conv2d" and any(op["attrs"]["padding"])
    is_float = str(anchor.buffer.dtype) == "float32"
    return _computes(op, fused, anchor, constants) and (is_float or not padded)


def _computes(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    if len(fused.params) < 3 or 1 not in constants:
        return False
    x, weights = fused.params[0], fused.params[1]
    if str(anchor.buffer.dtype) not in ("float32", "int32", "int64"):
        return False
    if op["name"] == "matmul":
        return len(weights.shape) == 2 and len(x.shape) >= 2
    if op["name"] != "nn.conv2d" or op["attrs"]["data_layout"] != "NHWC":
        return False
    attrs = op["attrs"]
    one_channel = int(attrs["groups"]) == int(weights.shape[3]) and int(attrs["groups"]) > 1
    return attrs["kernel_layout"] == "HWIO" and not one_channel


def _packing(conv: Convolution, schedule: Schedule) -> Pack:
    """The function that packs the weights of `conv` at build time, one group after the other."""
    tile, integer, paired = schedule.tile, schedule.integer, schedule.paired

    def transform(weights: Array) -> Array:
        matrix = weights.reshape(conv.terms, conv.groups, conv.columns)
        groups = [matrix[:, group] for group in range(conv.groups)]
        packed = [
            integer.pack(group_weights) if integer else pack(group_weights, tile, paired)
            for group_weights in groups
        ]
        return np.concatenate([*packed, np.zeros(schedule.beyond, packed[0].dtype)])

    return transform


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    w_param, shape = fused.params[1], last.buffer.shape
    conv = Convolution(op, fused, anchor)
    schedule = schedule_of(conv, fused, anchor, machine)
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param, fused.tables) for param in buffers_read]
    arguments[0] = flat_argument(fused, fused.params[0])
    arguments[1] = Argument(w_param.name, [schedule.packed_weights(conv.groups)], str(w_param.dtype))

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))

        def finish(row: Expr, column: Expr, value: Expr) -> None:
            element.store(conv.result_indices(row, column, shape), value)

        in_words = schedule.integer is not None and schedule.accumulator == "int32"
        together = stored_together(machine, str(last.buffer.dtype)) if in_words else 0
        loops = TileLoops(conv, schedule, buffers[0], buffers[1], finish, machine.prefetch_range, together)
        with_tile_registers(schedule.tile_registers, lambda: loops.emit(begin, end))

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, schedule.tasks, body, bool(in_place), fused.ranges)
    packing = Packing(schedule.tile.columns, paired=schedule.paired)
    if integer := schedule.integer:
        packing = replace(packing, arrangement=integer.arrangement, head_lanes=integer.head_lanes)
    kernel = Kernel(
        func, schedule.tasks, {1: _packing(conv, schedule)}, "conv2d", in_place,
        prefetches=bool(schedule.prefetch_distance) and conv.groups == 1, ranges=fused.ranges,
        packing=packing,
    )  # fmt: skip
    return kernel, buffers_read
