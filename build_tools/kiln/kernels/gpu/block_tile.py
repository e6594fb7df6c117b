"""The tile that a thread block computes on tensor cores, and the parts of k (split-k)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from kiln.config.sizes import ceil_div
from kiln.config.target import Cuda
from kiln.kernels.gpu.multiprocessor import HOPPER, Multiprocessor, multiprocessor_of
from kiln.kernels.gpu.wmma import EDGE
from kiln.tir.symbols import is_dynamic

# With fewer rows or columns, most of a fragment would be padding: one thread per element does less work.
LEAST = 8
DEPTH = 32  # elements of k in a step


@dataclass(frozen=True)
class BlockTile:
    """Tile of a thread block: warps along (i, j), fragments per warp along (i, j), elements of k per step."""

    warps: tuple[int, int]
    fragments: tuple[int, int]
    depth: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the tile along i, j and k."""
        i, j = (w * f * EDGE for w, f in zip(self.warps, self.fragments, strict=True))
        return i, j, self.depth


SHARED_BYTES = 48 << 10  # of shared memory that a kernel has without asking the driver for more
# Warps and fragments of the tiles. The slices of two steps of each need less than SHARED_BYTES, with
# operands of any type. Smallest first.
TILES = [((2, 2), (1, 1)), ((2, 2), (1, 2)), ((2, 2), (2, 1)), ((2, 2), (2, 2))]
# Parts of a sum over k: at most MOST_PARTS, each of at least LEAST_STEPS steps of a tile's depth.
MOST_PARTS, LEAST_STEPS = 32, 4
# By tests/gpu/issue_model.py for sm_90: cycles of a block outside of its loop; of a second kernel and its
# launch, and bytes of parts that it reads in one; registers of a thread besides its sums, threads of a block.
_FIXED, _SECOND, _READ = 600, 2300, 1400
_OTHER_REGISTERS, _THREADS = 48, 128
PLACES = 3  # most places in shared memory for slices of the operands
# Blocks on one multiprocessor hide a part of each other's waits: each adds this share of the time of one.
_SHARE = 0.55


@dataclass(frozen=True)
class Gpu:
    """The GPU that tiles are chosen for: how many multiprocessors, and what one has."""

    multiprocessors: int
    one: Multiprocessor = HOPPER

    @classmethod
    def of(cls, cuda: Cuda) -> Gpu:
        """The GPU of a target, from its section `cuda`."""
        return cls(cuda.multiprocessors, multiprocessor_of(cuda.archs))

    def cycles(self, tile: BlockTile, blocks: int, steps: int, bits: int) -> float:
        """Cycles of `blocks` blocks of `steps` steps each, with operands of `bits` bits."""
        rows, columns, depth = tile.sizes
        size = rows * columns
        area = {32 * 32: 0, 32 * 64: 1, 64 * 64: 2}[size]
        operands = PLACES * (rows + columns) * (depth + 8) * bits // 8
        at_once = self.one.blocks(max(operands, 4 * size), _THREADS, _OTHER_REGISTERS + size // _THREADS)
        work = size * depth * bits / 16 / self.one.rate

        def at_once_cycles(together: int) -> float:
            step = max(self.one.step_cycles[area] * max(1.0, _SHARE * together), together * work)
            return steps * step + _FIXED

        full, rest = divmod(ceil_div(blocks, self.multiprocessors), at_once)
        return full * at_once_cycles(at_once) + (at_once_cycles(rest) if rest else 0.0)


def tile_and_parts(
    extents: Sequence[Any], innermost: Any, gpu: Gpu, depth: int = DEPTH, bits: int = 16
) -> tuple[BlockTile, int] | None:
    """The tile for batch, rows, columns and depth `extents`, and the number of parts that k is divided into.

    None if there are too few rows or columns. `innermost`: extent of the last of the axes that k stands for.
    `depth`: elements of k in a step; `bits`: of an operand. A dynamic size counts as large; a sum over a
    dynamic depth has one part. Of tiles and parts that take as long by the model, the largest tile and the
    fewest parts are taken.
    """
    batch, i, j = _known(extents)
    if min(i, j) < LEAST:
        return None
    steps = ceil_div(1 << 20 if is_dynamic(extents[3]) else int(extents[3]), depth)

    def cycles(choice: tuple[BlockTile, int]) -> float:
        tile, parts = choice
        rows, columns, _ = tile.sizes
        blocks = batch * ceil_div(i, rows) * ceil_div(j, columns) * parts
        second = _SECOND + 4 * parts * batch * i * j / _READ if parts > 1 else 0
        return gpu.cycles(tile, blocks, ceil_div(steps, parts), bits) + second

    tiles = reversed(_fitting(i, j, depth))
    possible = _divisors(extents[3], innermost, depth)
    return min(((tile, parts) for tile in tiles for parts in possible), key=cycles)


def _known(extents: Sequence[Any]) -> tuple[int, int, int]:
    """Batch, rows and columns; a dynamic size counts as large."""
    batch, i, j = (1 << 20 if is_dynamic(size) else int(size) for size in extents[:3])
    return batch, i, j


def _fitting(i: int, j: int, depth: int) -> list[BlockTile]:
    """The tiles that are not larger than i rows and j columns, the smallest first."""
    padded = [ceil_div(size, EDGE) * EDGE for size in (i, j)]
    tiles = [BlockTile(warps, fragments, depth) for warps, fragments in TILES]
    return [t for t in tiles if t.sizes[0] <= padded[0] and t.sizes[1] <= padded[1]] or tiles[:1]


def _all(
    extents: Sequence[Any], innermost: Any, most_blocks: int, depth: int
) -> Iterator[tuple[BlockTile, int]]:
    """Candidates to measure: each tile with the fewest parts for 1, half of `most_blocks`, and all blocks."""
    batch, i, j = _known(extents)
    divisors = _divisors(extents[3], innermost, depth)
    for tile in reversed(_fitting(i, j, depth)):
        blocks = batch * ceil_div(i, tile.sizes[0]) * ceil_div(j, tile.sizes[1])
        for least in (1, most_blocks, most_blocks // 2):
            yield tile, next((parts for parts in divisors if blocks * parts >= least), divisors[-1])


@dataclass
class ProductTiles:
    """Chooses tiles for a GPU: the measured tile of a product, else tile_and_parts'.

    `measured`: by the key of a product, its fastest tile: rows, columns, depth and number of parts. `rank`: a
    product without a measured tile gets the candidate at this place, the first of which is tile_and_parts',
    so that a tuner can measure one after the other. `chosen`: by key, the tiles chosen so far.
    """

    gpu: Gpu
    measured: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rank: int = 0
    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def choose(
        self, dtype: str, extents: Sequence[Any], innermost: Any, depth: int
    ) -> tuple[BlockTile, int] | None:
        """Tile and parts as tile_and_parts; None also if no tile has `rank`. `dtype`: of the operands."""
        bits = int(tvm.DataType(dtype).bits)
        ruled = tile_and_parts(extents, innermost, self.gpu, depth, bits)
        if ruled is None:
            return None
        key = f"{dtype} {'x'.join('n' if is_dynamic(size) else str(int(size)) for size in extents)}"
        order = list(dict.fromkeys([ruled, *_all(extents, innermost, 2 * self.gpu.multiprocessors, depth)]))
        measured = self.measured.get(key)
        chosen = next((one for one in order if _numbers(*one) == measured), None)
        if chosen is None:
            chosen = order[self.rank] if self.rank < len(order) else None
        if chosen is not None:
            self.chosen[key] = _numbers(*chosen)
        return chosen


def _numbers(tile: BlockTile, parts: int) -> tuple[int, ...]:
    return (*tile.sizes, parts)


def _divisors(k: Any, innermost: Any, depth: int) -> list[int]:
    """Numbers of parts that a sum over `k` elements can be divided into.

    A part is a whole number of steps of `depth` elements, and of whole rows of the innermost axis: elements
    of another part are not known to be next to each other, and would be loaded one by one.
    """
    if is_dynamic(k) or is_dynamic(innermost) or int(k) % depth != 0:
        return [1]
    steps, inner = int(k) // depth, int(innermost)
    sizes = {
        part_count: int(k) // part_count for part_count in range(2, MOST_PARTS + 1) if steps % part_count == 0
    }
    divisible = [n for n, size in sizes.items() if size % inner == 0 or inner == int(k)]
    return [1, *(n for n in divisible if steps // n >= LEAST_STEPS)]
