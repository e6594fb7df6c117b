"""Winograd convolution on 8-bit integers, for x86 without VNNI: 2.25 times fewer multiplications, exact.

Computation  3x3 weights, stride 1, tiles of 2x2 outputs, in integers: with the weight transform scaled by 2
             in each direction (rows 2 0 0, 1 1 1, 1 -1 1, 0 0 2) no division is left, and four times every
             output results. Transformed inputs are at most 4 * 255, transformed weights 9 * 128 in size:
             both fit 16 bits, and pmaddwd multiplies and adds pairs of them in 32.
Packing      As conv2d_pairs.py, arrangement "groups", which kernels of other variants read too: weights are
             transformed as they are used, a strip of columns at a time, so that no parameter grows.
Schedule     A task takes blocks of tiles, or all tiles and some columns where tiles are few: it transforms
             the inputs; then, for each strip of columns, it transforms the weights, multiplies plane by
             plane, and transforms back, with the epilogue.
             A plane is one cache line longer than its data, as in winograd.py. Products of few tiles at a
             time wait for the transform: scratch memory is little more than the inputs of a block.
Applies      As conv2d_pairs.py; channels a multiple of four, below 1,828, so that four times a sum of
             products fits 32 bits. Where the estimate below is 10 % lower than for direct convolution, and
             the convolution so large that the time gained is worth the scratch memory.
Accuracy     Exact: sums and differences wrap in 32 bits, and the last result fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln.kernels.cpu import conv2d_pairs
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm_int8 import GROUP, IntegerProduct, merged
from kiln.kernels.cpu.winograd_int8_phases import PLANES, IntegerPhases, TileBlocks
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
    define,
    divide,
    int64,
    serial,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import tasks_of

# Four times a sum of 9 * channels products of at most 255 * 128 has to be below 2^31.
_MOST_CHANNELS = 1827
# Measured on Zen 4 (AVX2): cycles to transform one vector of a tile's inputs, of weights and of outputs, and
# products a cycle for each lane of 32 bits, in direct convolution and in the matmuls of the planes.
_INPUTS, _WEIGHTS, _OUTPUTS = 30, 50, 40
_DIRECT_RATE, _RATE = 2.75, 3.25
_LEAST_MACS = 4 << 20  # 50 microseconds of direct convolution on that processor


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] != "nn.conv2d" or not conv2d_pairs.applies(op, fused, anchor, constants):
        return False
    conv = Convolution(op, fused, anchor)
    steps = (conv.stride_h, conv.stride_w, conv.dilation_h, conv.dilation_w)
    square = (conv.kernel_h, conv.kernel_w) == (3, 3) and all(int(step) == 1 for step in steps)
    return square and conv.depth % GROUP == 0 and conv.depth <= _MOST_CHANNELS


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether Winograd convolution is allowed and estimated to be faster than conv2d_pairs.py.

    A model's `winograd: f2 | f4` overrides the estimate; larger tiles than those of F2 would not be exact.
    """
    if machine.isa not in ("sse4", "avx2", "avx512") or machine.dot != "none" or machine.winograd == "off":
        return False
    conv, lanes, packing = Convolution(op, fused, anchor), machine.lanes("int32"), machine.packing
    if packing is not None and (packing.arrangement != "groups" or packing.columns % lanes):
        return False
    if machine.winograd != "auto":
        return True
    if not conv2d_pairs.pays(op, fused, anchor, machine):
        return False
    if conv.macs < _LEAST_MACS:
        return False
    work, greatest = TileBlocks.of(conv, machine), fused.ranges.greatest
    direct = greatest(conv.rows) * conv.out_channels * 9 * conv.depth / (_DIRECT_RATE * lanes)
    tiles, columns = greatest(work.tiles.count), ceil_div(conv.out_channels, lanes)
    passes = ceil_div(tiles, work.block)
    cycles = (
        passes * work.held * columns * PLANES * conv.depth / _RATE
        + tiles * ceil_div(conv.depth, 2 * lanes) * _INPUTS
        + passes * columns * (conv.depth // 2) * _WEIGHTS
        + tiles * columns * _OUTPUTS
    )
    return cycles < 0.9 * direct


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    conv = Convolution(op, fused, anchor)
    work = TileBlocks.of(conv, machine)
    tile, parts, tasks = work.tile, work.parts, work.tasks
    head_lanes = 0 if machine.packing is None else machine.packing.head_lanes
    product = IntegerProduct("pairs", False, tile, merged(conv.loops()), 0, head_lanes, 0, "groups")
    x_param, w_param = fused.params[:2]
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param) for param in buffers_read]
    x_size = fused.ranges.greatest(fused.ranges.product(list(x_param.shape)))
    arguments[0] = Argument(x_param.name, [x_size], str(x_param.dtype))
    panels = ceil_div(conv.out_channels, tile.columns)
    arguments[1] = Argument(w_param.name, [panels * product.panel_bytes], str(w_param.dtype))

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))
        phases = IntegerPhases(work, product, element, buffers[0], buffers[1])
        if tasks is None:
            with serial(parts) as part:
                phases.block(part, int64(0))
            return
        with tasks_of(tasks, True, begin, end) as task:
            if work.by_strips:
                phases.strips(bind(task))
                return
            first, after = (bind(divide((task + int64(n)) * int64(parts), tasks)) for n in range(2))
            with serial(after - first) as index:
                phases.block(first + index, task)

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, tasks, body, bool(in_place), fused.ranges)
    packing = Packing(tile.columns, arrangement="groups", head_lanes=head_lanes)
    packs = {1: lambda weights: _packed(product, conv, weights)}
    kernel = Kernel(func, tasks, packs, "winograd", in_place, 2.25, ranges=fused.ranges, packing=packing)
    return kernel, buffers_read


def _packed(product: IntegerProduct, conv: Convolution, weights: Array) -> Array:
    return product.pack(np.reshape(weights, (-1, conv.out_channels)))
