"""The tile of a product on a GPU: chosen by a model of its time, or by a measurement if there is one.

The model counts the operations of a multiprocessor in one step of the loop over the depth: multiply-adds of
the tensor cores, bytes copied from the L2 cache to shared memory, and the least time of a step, in which a
block waits for its copies and barriers. Its constants come from published data sheets and from machine code
read instruction by instruction; none was fitted to a run on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from kiln.config.sizes import ceil_div

# Bytes of shared memory that a block may use, by architecture (CUDA C++ Programming Guide).
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 88: 99 << 10, 89: 99 << 10, 90: 227 << 10,
                100: 227 << 10, 103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10}  # fmt: skip
_RATE = {
    1: 4096,
    2: 2048,
    4: 1024,
}  # multiply-adds per cycle of a multiprocessor of sm_90, by bytes of an element
_FMA_RATE = 128  # the same for float32 without tensor cores
_COPY_RATE = 48  # bytes per cycle from L2 to the shared memory of a multiprocessor
_STEP_LATENCY = 160  # least cycles of a step for one block; further blocks of the multiprocessor hide them
_MOMENT_CYCLES = 1 / 24  # cycles for an element of a row whose mean and deviation a block needs
_LAUNCH_CYCLES = 1500  # cycles of a block before and after its loop, and of the launch
_SECOND_LAUNCH = 2600  # cycles of the second launch that adds parts, in addition to reading them
# float32 numbers of a thread; half of them next to a norm's rows or a residual, or registers would be spilled
_ACCUMULATORS = 128
_MOST_PARTS = 16


@dataclass(frozen=True)
class GpuTile:
    """The tile of one block: m rows by n columns, k elements of the depth in a step; stages and warps.

    `split`: parts of the depth, each summed by blocks of its own.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory of the operands of all stages."""
        return self.stages * (self.m + self.n) * self.k * itemsize


@dataclass(frozen=True)
class ProductSizes:
    """A product of `rows` by `columns`, `batch` of them, over `depth`.

    `rows`, `columns` and `batch` may be dynamic. `itemsize`: bytes of an element of the operands; `tensor`:
    whether tensor cores multiply them; `splits`: whether the depth may be divided among blocks; `run`: the
    depth consists of runs of so many numbers, each padded to the step; None: of one run. `norm`: each block
    also reads its rows for their mean and deviation. `residual`: the epilogue adds a tensor.
    """

    rows: Any
    columns: Any
    depth: int
    batch: Any = 1
    itemsize: int = 2
    tensor: bool = True
    splits: bool = True
    run: int | None = None
    norm: bool = False
    residual: bool = False

    def steps(self, k: int) -> int:
        """Steps of k numbers along the depth."""
        run = self.depth if self.run is None else self.run
        return ceil_div(self.depth, run) * ceil_div(run, k)


@dataclass(frozen=True)
class GpuLimits:
    """The resources of a tile that every GPU of the target has. `newest`: compute capability, such as 90."""

    shared_bytes: int
    multiprocessors: int
    newest: int


def choose(sizes: ProductSizes, gpu: GpuLimits, rank: int = 0) -> GpuTile | None:
    """The tile with the least modelled time; dynamic sizes count as a few hundred rows and columns.

    `rank`: the position of the tile in that order; None is returned if there are fewer tiles. The
    fastest tile of each m, n and split comes first, so that the first tiles differ in more than their stages.
    """
    rows, columns, batch = (
        size if isinstance(size, int) else assumed
        for size, assumed in ((sizes.rows, 256), (sizes.columns, 256), (sizes.batch, 8))
    )
    may_split = sizes.splits and isinstance(sizes.rows, int)
    order = sorted(
        candidates(sizes, gpu, may_split),
        key=lambda tile: (
            cycles(tile, rows, columns, batch, sizes, gpu),
            -tile.m,
            -tile.n,
            tile.split,
            tile.stages,
        ),
    )
    firsts: dict[tuple[int, int, int], GpuTile] = {}
    for tile in order:
        firsts.setdefault((tile.m, tile.n, tile.split), tile)
    order.sort(key=lambda tile: firsts[tile.m, tile.n, tile.split] is not tile)
    return order[rank] if rank < len(order) else None


def measured(numbers: Sequence[int], sizes: ProductSizes, gpu: GpuLimits) -> GpuTile | None:
    """The tile that a measurement recorded, as `numbers`; None if these sizes or GPUs do not allow it."""
    may_split = sizes.splits and isinstance(sizes.rows, int)
    recorded = tuple(numbers)
    return next((tile for tile in candidates(sizes, gpu, may_split) if astuple(tile) == recorded), None)


def candidates(sizes: ProductSizes, gpu: GpuLimits, may_split: bool = True) -> Iterator[GpuTile]:
    """All tiles that the GPUs can run and that are not twice as large as the product."""
    is_static = isinstance(sizes.rows, int), isinstance(sizes.columns, int)
    heights, widths = (16, 32, 64, 128), (16, 32, 64, 128, 256)
    for m, n in itertools.product(heights, widths):
        if (is_static[0] and m > 16 and m >= 2 * sizes.rows) or (
            is_static[1] and n > 16 and n >= 2 * sizes.columns
        ):
            continue
        most = _ACCUMULATORS // 2 if sizes.norm or sizes.residual else _ACCUMULATORS
        warps = 8 if m * n > most * 32 * 4 else 4
        if m * n > most * 32 * warps or (not sizes.tensor and m * n > 64 * 128):
            continue
        for k, stages in itertools.product(_depths(sizes), (2, 3, 4)):
            tile = GpuTile(m, n, k, warps, stages)
            if tile.shared_bytes(sizes.itemsize) > gpu.shared_bytes - 2048:
                continue
            yield tile
            steps = sizes.steps(k)
            for split in (2, 3, 4, 6, 8, 12, _MOST_PARTS) if may_split else ():
                # Every part has a step of its own: a part of zero steps would be blocks for nothing.
                if steps >= 4 * split and ceil_div(steps, ceil_div(steps, split)) == split:
                    yield GpuTile(m, n, k, warps, stages, split)


def _depths(sizes: ProductSizes) -> tuple[int, ...]:
    """Steps along the depth: 64 or 128 bytes of a row, and at least the depth of one instruction."""
    wide = 128 // sizes.itemsize
    run = sizes.depth if sizes.run is None else sizes.run
    half = wide // 2
    return (half,) if run <= half else (wide,) if run % wide == 0 else (half, wide)


def cycles(tile: GpuTile, rows: int, columns: int, batch: int, sizes: ProductSizes, gpu: GpuLimits) -> float:
    """Modelled cycles of a product with a tile."""
    blocks = ceil_div(rows, tile.m) * ceil_div(columns, tile.n) * batch * tile.split
    steps = ceil_div(sizes.steps(tile.k), tile.split)
    shared = max(tile.shared_bytes(sizes.itemsize), 1024)
    most_at_once = max(1, min(gpu.shared_bytes // shared, 2048 // (32 * tile.warps), 4))
    blocks_of_multiprocessor = ceil_div(blocks, gpu.multiprocessors)
    rounds, blocks_at_once = (
        ceil_div(blocks_of_multiprocessor, most_at_once),
        min(blocks_of_multiprocessor, most_at_once),
    )
    rate = (
        _RATE[sizes.itemsize] / (1 if gpu.newest >= 90 and tile.m >= 64 else 2) if sizes.tensor else _FMA_RATE
    )
    work = tile.m * tile.n * tile.k / rate
    copied = (tile.m + tile.n) * tile.k * sizes.itemsize / _COPY_RATE
    waits = (
        _STEP_LATENCY
        * tile.k
        * sizes.itemsize
        / 64
        * (1.6 if tile.stages == 2 else 1.1 if tile.stages == 3 else 1.0)
    )
    step = max(blocks_at_once * max(work, copied), waits / 2 if tile.stages > 2 else waits, work + copied / 2)
    total = rounds * steps * step + _LAUNCH_CYCLES
    if sizes.norm:
        total += (
            rounds * blocks_at_once * tile.m * sizes.depth * (sizes.itemsize / _COPY_RATE + _MOMENT_CYCLES)
        )
    if tile.split > 1:
        read = (tile.split * 4 + 4) * rows * columns * batch
        total += _SECOND_LAUNCH + read / (
            _COPY_RATE * min(gpu.multiprocessors, ceil_div(rows * columns * batch, 1024))
        )
    return total
