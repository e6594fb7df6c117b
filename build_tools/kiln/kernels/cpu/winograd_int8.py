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

from tvm.ir import Expr

from kiln.kernels.cpu import conv2d_pairs
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.pair_kernel import PairBody, multiplies_pairs, pair_kernel, product_of
from kiln.kernels.cpu.winograd_int8_phases import PLANES, IntegerPhases, TileBlocks
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Kernel, Machine, bind
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import shared_items, tasks_of

# Four times a sum of 9 * channels products of at most 255 * 128 has to be below 2^31.
_MOST_CHANNELS = 1827
# Measured on Zen 4 (AVX2): cycles to transform one vector of a tile's inputs, of weights and of outputs, and
# products a cycle for each lane of 32 bits, in direct convolution and in the matmuls of the planes.
_INPUTS, _WEIGHTS, _OUTPUTS = 30, 50, 40
_DIRECT_RATE, _RATE = 3.0, 3.25
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
    """Whether Winograd convolution is allowed and estimated to be faster than direct convolution.

    A model's `winograd: f2 | f4` overrides the estimate; larger tiles than those of F2 would not be exact.
    """
    conv, lanes = Convolution(op, fused, anchor), machine.lanes("int32")
    if machine.winograd == "off" or not multiplies_pairs(machine, lanes):
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
    product = product_of(conv, work.tile, machine)

    def emit(epilogue: Epilogue, x: Any, weights: Any, begin: Expr, end: Expr) -> None:
        phases = IntegerPhases(work, product, epilogue, x, weights)
        if not work.by_strips:
            shared_items(work.parts, work.tasks, begin, end, phases.block)
            return
        with tasks_of(work.tasks, True, begin, end) as task:
            phases.strips(bind(task))

    return pair_kernel(
        "winograd", PairBody(conv, product, work.tasks, emit), fused, anchor, last, saving=2.25
    )
