"""When Winograd convolution is used, with which tile, and how its work is divided.

The heuristic compares estimates in cycles of one core:

    direct     multiply-adds / (2 vectors a cycle), or the weights' bytes / 8 a cycle, if that is more
    Winograd   this estimate for the matmuls of all planes, plus the transforms of each tile and channel

and chooses the lowest. Direct convolution is kept unless 10 % are gained, and F2 unless F4 gains 10 % on F2,
because F2 needs less than half the memory. Weights count as cold, as they are in a network. Where dimensions
are dynamic, the geometric mean of the gains at their least, middle and greatest sizes counts: at the greatest
sizes F4 pays for nearly any convolution, but at small ones its weights, four times as many, take the time.
A model's `winograd: f2 | f4` overrides the estimate; the limit on the growth of weights overrides both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.kernels.cpu.winograd_transforms import growth
from kiln.tir.builder import Machine, Packing
from kiln.tir.symbols import SymbolRanges, ceil_div, is_dynamic

# Cycles to transform one vector of one tile: inputs and outputs, measured on AVX2 and AVX-512.
_TRANSFORM = {2: (60, 45), 4: (150, 170)}
_BYTES_A_CYCLE = 8
# Most bytes of transformed data of all tiles for which a kernel for each phase is worth the memory.
_STAGED_BYTES = 2 << 20
DIRECT = 0  # as `m`, the outputs of a tile along one axis: direct convolution


@dataclass(frozen=True)
class Form:
    """The form in which a convolution is computed: tiles of m x m outputs, `block` tiles at a time.

    `staged`: a kernel for each phase, with all tiles in one block. Otherwise each of `tasks` tasks computes
    `blocks_per_task` blocks, one after the other.
    """

    m: int
    block: int
    staged: bool
    tasks: int
    blocks_per_task: Extent


def _products(machine: Machine, rows: int, columns: int, depth: int, planes: int) -> float:
    """Estimated cycles of `planes` matmuls of rows x depth by depth x columns, weights cold."""
    tile = choose_tile(machine, rows, columns)
    padded = ceil_div(columns, tile.columns) * tile.columns
    compute = rows * padded * depth / (2 * tile.lanes)
    return planes * max(compute, depth * padded * 4 / _BYTES_A_CYCLE)


def tiles_of(conv: Convolution, m: int) -> Extent:
    """Number of tiles of m x m outputs of a convolution, over all images."""
    return conv.ranges.product([conv.batch, ceil_div(conv.out_h, m), ceil_div(conv.out_w, m)])


def estimate(conv: Convolution, m: int, machine: Machine, at: SymbolRanges | None = None) -> float:
    """Estimated cycles of `conv` with tiles of m x m outputs; m = 0 for direct convolution.

    `at`: the sizes of dynamic dimensions; None: their greatest.
    """
    ranges = conv.ranges if at is None else at
    if m == DIRECT:
        return _products(machine, ranges.greatest(conv.rows), conv.out_channels, 9 * conv.channels, 1)
    tiles, lanes = ranges.greatest(tiles_of(conv, m)), machine.lanes("float32")
    inputs, outputs = _TRANSFORM[m]
    transforms = tiles * (
        ceil_div(conv.channels, lanes) * inputs + ceil_div(conv.out_channels, lanes) * outputs
    )
    return transforms + _products(machine, tiles, conv.out_channels, conv.channels, (m + 2) ** 2)


# A convolution, and sizes of its dynamic dimensions.
Sample = tuple[Convolution, SymbolRanges]


def relative_time(samples: Sequence[Sample], m: int, machine: Machine) -> float:
    """Estimated time with tiles of m x m outputs over that of direct convolution: the mean over `samples`."""
    ratios = [
        estimate(conv, m, machine, sizes) / estimate(conv, DIRECT, machine, sizes) for conv, sizes in samples
    ]
    return math.prod(ratios) ** (1 / len(ratios))


def tile_sizes(machine: Machine) -> tuple[int, ...]:
    """The tile sizes m of Winograd convolution that the model's policy allows."""
    return {"auto": (2, 4), "f2": (2,), "f4": (4,)}.get(machine.winograd, ())


def form_of(conv: Convolution, machine: Machine, samples: Sequence[Sample] = ()) -> Form | None:
    """The form of Winograd convolution for `conv`; None for direct convolution.

    `samples`: what the estimates are of; none: `conv` at the least, middle and greatest sizes.
    """
    if machine.packing is not None:
        return _form_for(conv, machine, machine.packing)
    allowed = [m for m in tile_sizes(machine) if growth(m) <= machine.weight_growth + 1e-9]
    if machine.forms is not None:
        allowed = [m for m in allowed if m in machine.forms]
    if not allowed:
        return None
    choice = conv.choice(machine)
    is_free = machine.winograd == "auto" and (machine.forms is None or DIRECT in machine.forms)
    best = DIRECT if is_free else allowed[0]
    measured = {"off": 0, "f2": 2, "f4": 4, None: -1}[choice.winograd]
    if machine.winograd == "auto" and measured in (0, *allowed):
        return divide(conv, measured, machine, choice.block) if measured else None
    samples = samples or [(conv, sizes) for sizes in conv.ranges.points()]
    times = {m: relative_time(samples, m, machine) for m in {best, *allowed}}
    for m in allowed:
        if m != best and times[m] < 0.9 * times[best]:
            best = m
    return divide(conv, best, machine, choice.block) if best else None


def _form_for(conv: Convolution, machine: Machine, packing: Packing) -> Form | None:
    """The form that reads weights in `packing`; None for direct convolution."""
    if packing.form == DIRECT:
        return None
    if packing.staged:
        return divide(conv, packing.form, machine, 0)
    tiles = conv.ranges.greatest(tiles_of(conv, packing.form))
    block = conv.choice(machine).block or 2 * choose_tile(machine, tiles, conv.out_channels).rows
    return divide(conv, packing.form, machine, block)


def divide(conv: Convolution, m: int, machine: Machine, block: int | None = None) -> Form:
    """Divide a convolution with tiles of m x m outputs into blocks.

    `block`: tiles in a block; 0: all tiles in one; None: the heuristic decides.
    """
    all_tiles = tiles_of(conv, m)
    tiles, open_ = conv.ranges.greatest(all_tiles), is_dynamic(all_tiles)
    weights = (m + 2) ** 2 * conv.channels * conv.out_channels * 4
    each = (m + 2) ** 2 * (conv.channels + conv.out_channels) * 4  # bytes of a tile between phases
    rows = choose_tile(machine, tiles, conv.out_channels).rows
    if block is None:
        staged = weights > machine.l2_bytes and tiles * each <= _STAGED_BYTES and not open_
        block = 0 if staged else 2 * rows
    shared = machine.shares(conv.macs // machine.lanes("float32") // (2 if m == 2 else 4))
    if block == 0:
        return Form(m, tiles, shared, 1, 1)
    tasks = min(machine.cores, tiles) if shared else 1
    if open_:
        return Form(m, block, False, tasks, ceil_div(all_tiles, tasks * block))
    blocks_per_task = ceil_div(tiles, tasks * block)
    return Form(m, ceil_div(tiles, tasks * blocks_per_task), False, tasks, blocks_per_task)
