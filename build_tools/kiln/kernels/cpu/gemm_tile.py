"""The register tile of the packed matmul: its size for a processor, and the packing of weights for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.tir.builder import (
    CACHE_LINE,
    CACHE_SETS,
    Array,
    Machine,
    padded,
)


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` rows by `vectors` vectors of `lanes` elements, times `adjacent`.

    The tile is `adjacent` panels wide, or a panel is divided into `parts` tiles; one of the two is 1. The
    packing of weights depends on the panel alone: kernels for one row and for many rows share weights, and so
    do processors with vectors of different widths. `halves`: see `widening_tile`. `shortest`: fewest lanes of
    a vector that is not needed as a whole (`lanes_of`); 0: all vectors are whole. `left_steps`: steps of k
    whose left operands one load per row fetches, if they are adjacent in memory. `doubled`: see
    `doubled_tile`.
    """

    rows: int
    vectors: int
    lanes: int
    adjacent: int = 1
    parts: int = 1
    halves: bool = False
    shortest: int = 0
    left_steps: int = 1
    doubled: bool = False

    @property
    def columns(self) -> int:
        """Columns of a panel (NR)."""
        return self.vectors * self.lanes * self.parts

    def lanes_of(self, columns: int) -> int:
        """Lanes of the vector for the last `columns` columns: fewer where half of a vector would be empty.

        A 512-bit multiply-add is issued twice on processors with 256-bit units, and a shorter one is never
        slower: on Zen 4, 24 columns take 0.7 of the time of 32.
        """
        lanes = self.lanes
        while self.shortest and lanes > self.shortest and columns <= lanes // 2:
            lanes //= 2
        return lanes

    @property
    def width(self) -> int:
        """Columns of the tile, over all adjacent panels."""
        return self.vectors * self.lanes * self.adjacent

    def in_one(self) -> Tile:
        """The tile of equal width that has a single panel."""
        return replace(self, vectors=self.vectors * self.adjacent, adjacent=1)


# ISAs with vectors of fewer lanes that fuse multiply and add, and the fewest lanes.
_SHORTEST = {"avx512": 4}
# Where the multiply-add takes its left operand from any lane of a register (NEON of 64-bit ARM; the fused one
# of 32-bit ARM does not), one load for 4 steps of k replaces 4. A tile of 7 by 3 vectors has its 21 sums, 7
# left operands and 3 weights in 32 registers: 199 instructions for 168 multiply-adds. With a load for each
# left operand, 8 by 3 takes 37 for 24.
_LEFT_STEPS = {("neon", 32): 4}  # by ISA and registers
# Fewest registers of a core without vectors that hold 2 x 2 sums and their operands, and 2 x 4 sums.
_SUMS_OF_FOUR, _SUMS_OF_EIGHT = 12, 24
# Rows of a tile of three vectors, for 3 (or 9, …) vectors of columns: panels of two leave a narrow last one.
# Measured on Zen 5: 5 % faster on AVX-512, 8 to 12 % on AVX2.
_ROWS_OF_THREE_VECTORS = {"avx2": 4, "avx512": 8}
# Up to this number of tiles along the rows, a last tile of few rows costs noticeable time: tiles get equal
# heights.
_FEW_TILES = 16
# Ways of each set of the L1 cache that weights and results need in addition to the rows of x.
_OTHER_WAYS = 2


def choose_tile(
    machine: Machine, rows: int, columns: int, measured: tuple[int, int] | None = None, row_bytes: int = 0
) -> Tile:
    """Choose the register tile for `rows` by `columns` outputs with a 32-bit accumulator.

    `measured`: rows and vectors from a measurement, used instead of the heuristic. `row_bytes`: bytes between
    consecutive rows of the left operand where that distance is constant, else 0.

    Sizes leave registers for the NV weight vectors and one broadcast. Measured on AVX2: 6x2 vectors
    reaches 96 % of the peak, while 7x2 spills and tiles one vector wide are slow.
    """
    lanes = machine.lanes("float32")
    left_steps = _LEFT_STEPS.get((machine.isa, machine.registers), 1)
    if lanes == 1:
        # Without vectors, LLVM loads several steps of k ahead: larger tiles spill (Cortex-M3: 1.3 times as
        # many instructions with 3 x 2, 1.5 times with 4 x 4). With 8 registers, four sums of one row spill
        # least (Cortex-M0+, keywords: 0.85 of the instructions of 2 x 2; Cortex-M3 and RISC-V: 1.04). With
        # 64-bit RISC-V's 31, 2 x 4 sums take 0.83 to 0.97 of the instructions of 2 x 2 for bytes, 0.78 to 1.1
        # for floats, where LLVM unrolls short loops alone (lower/target_check.py). 3 x 4 spills in nested
        # loops. Registers of 32 bits hold half of a product of requantisation: there, 2 x 2 stays.
        best, vectors = (1, 4) if machine.registers < _SUMS_OF_FOUR else (2, 2)
        if machine.registers >= _SUMS_OF_EIGHT and machine.word_bits == 64:
            best, vectors = 2, 4
    elif machine.registers >= 32 and machine.vector_bits >= 512:
        best, vectors = 14, 2
    elif machine.registers >= 32:
        best, vectors = (6 if machine.in_order else 8 if left_steps == 1 else 7), 3
    elif machine.isa == "neon" and not machine.fma:
        # Products take registers, too: with more rows, sums spill. 32-bit ARM without VFPv4: 0.7 of the
        # instructions of 6 by 2.
        best, vectors = 3, 2
    else:
        best, vectors = 6, 2
    across = ceil_div(columns, lanes)
    threes = machine.packing is None or machine.packing.columns % (3 * lanes) == 0
    if machine.isa in _ROWS_OF_THREE_VECTORS and across % 3 == 0 and across % 2 and threes:
        best, vectors = _ROWS_OF_THREE_VECTORS[machine.isa], 3
    period = CACHE_LINE * CACHE_SETS
    if machine.isa == "avx512" and row_bytes and row_bytes % period == 0:
        # All rows map to one set of the L1 cache, which has to hold a line of each row until it is read.
        # Zen 5: 3 to 6 % faster with 10 rows than with 14.
        best = max(1, min(best, machine.l1_bytes // period - _OTHER_WAYS))
    if measured is not None:
        best, vectors = measured
    vectors = min(vectors, ceil_div(columns, lanes))
    tiles = ceil_div(rows, best)
    if measured is None and tiles <= _FEW_TILES:
        # As many tiles, of equal height: a tile of two rows waits for its own sums.
        best = ceil_div(rows, tiles)
    adjacent = adjacent_panels(rows, columns, vectors, lanes)
    shortest = _SHORTEST.get(machine.isa, 0)
    tile = Tile(min(best, rows), vectors, lanes, adjacent, shortest=shortest, left_steps=left_steps)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


# ISAs of long registers, whose variants share stored weights with a variant of short ones or without any:
# their tiles take several panels of one vector, where wider panels would be padded by more than _PADDING.
_NARROW_PANELS = ("rvv", "sve")
_PADDING = 1 / 16  # of the weights, in addition to what panels of one vector pad


def narrowed(tile: Tile, columns: int, machine: Machine) -> Tile:
    """The tile of equal width whose panels are one vector wide, where this saves padding of the last panel.

    `columns`: of all panels. `tile` itself on processors without long registers, where others have packed the
    weights, and where little padding would be saved.
    """
    if machine.isa not in _NARROW_PANELS or machine.packing is not None:
        return tile
    one, several = (ceil_div(columns, width) * width for width in (tile.lanes, tile.columns))
    if several - one <= _PADDING * columns:
        return tile
    return replace(tile, vectors=1, adjacent=tile.vectors * tile.adjacent)


# Registers of a sum by `widening_tile`, and rows of a tile: 24 registers of sums.
WIDENED = 4
_WIDENED_ROWS = 6


def adds_halves(dtypes: Sequence[str], accumulator: str) -> bool:
    """Whether operands of `dtypes` are integers that fit int16, and their products are summed in int32."""
    return accumulator == "int32" and all(dtype in ("int8", "uint8", "int16") for dtype in dtypes)


def widens(machine: Machine, dtypes: Sequence[str], accumulator: str) -> bool:
    """Whether one instruction multiplies operands of `dtypes` as 16 bits and adds to sums of 32 bits."""
    return machine.isa == "rvv" and adds_halves(dtypes, accumulator)


# Rows and columns of a tile of `doubled_tile`. 64-bit RISC-V: its loop has 31 instructions for 16 products,
# 36 in a kernel of 3 x 3, where 2 x 4 single sums take 25 for 8. More rows or columns spill in nested loops.
_DOUBLED = (4, 4)


def doubles(machine: Machine, dtypes: Sequence[str], accumulator: str, rows: int) -> bool:
    """Whether one multiplication yields products of two rows: see `doubled_tile`."""
    without_vectors = machine.isa == "none" and machine.word_bits == 64
    return without_vectors and rows > 1 and adds_halves(dtypes, accumulator)


def doubled_tile(machine: Machine, rows: int, columns: int) -> Tile:
    """Choose the register tile for operands of 8 or 16 bits where `doubles` holds.

    Operands a and b of two rows are one register, 2^32 b + a: a multiplication by a weight, and an addition,
    yield a step of both sums, of which a's are the low 32 bits and b's the difference, divided by 2^32.
    """
    best, vectors = _DOUBLED
    tiles = ceil_div(rows, best)
    best = ceil_div(rows, tiles) if tiles <= _FEW_TILES else best
    tile = Tile(min(best + best % 2, rows), min(vectors, columns), 1, doubled=True)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


def widening_lanes(machine: Machine, columns: int) -> int:
    """Columns of a vector of sums: the fewest with which WIDENED registers would save no vectors."""
    lanes = machine.lanes("int32")
    sizes = [lanes << shift for shift in range(WIDENED.bit_length())]
    return next(size for size in sizes if ceil_div(columns, size) == ceil_div(columns, sizes[-1]))


def widening_tile(machine: Machine, rows: int, columns: int) -> Tile:
    """Choose the register tile for 8-bit operands where `widens` holds.

    A vector of sums takes up to WIDENED registers, its weights half as many in 16 bits. The left operand is
    broadcast by the multiplying instruction, which takes a scalar of 16 bits (`halves`).
    """
    lanes = widening_lanes(machine, columns)
    number = adjacent_panels(rows, columns, 1, lanes)
    tile = Tile(min(_WIDENED_ROWS, rows), 1, lanes, number, halves=True)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


# Fewest rows of a tile that may have fewer, to be wider: with one row less than that, sums would be idle.
_ROWS_TO_SPARE = 4


def fitted(tile: Tile, panel: int, columns: int) -> Tile:
    """The tile nearest to `tile` in width that reads panels of `panel` columns, of `columns` in all.

    `tile` itself where the panel is not a multiple of its vectors: such a tile reads other panels. Also for a
    panel of 0 columns, where no operand is in panels, such as the rows of a constant that is stored in few
    bits.
    """
    if panel == 0 or panel % tile.lanes:
        return tile
    panel_vectors, wide = panel // tile.lanes, tile.vectors * tile.adjacent
    if panel_vectors <= wide:
        most = ceil_div(columns, panel)
        adjacent = max(1, min(wide // panel_vectors, most))
        if wide % panel_vectors and adjacent < most and tile.left_steps == 1 and tile.rows >= _ROWS_TO_SPARE:
            # One panel more and fewer rows, for as many sums: 6 x 4 vectors in place of 8 x 2.
            adjacent += 1
            tile = replace(tile, rows=tile.rows * wide // (panel_vectors * adjacent))
        return replace(tile, vectors=panel_vectors, adjacent=adjacent)
    vectors = max(count for count in range(1, wide + 1) if panel_vectors % count == 0)
    return replace(tile, vectors=vectors, adjacent=1, parts=panel_vectors // vectors)


# Vectors of a tile of one row: a vector-matrix product needs independent sums to hide their latency.
_VECTORS_OF_ONE_ROW = 4


def adjacent_panels(rows: int, columns: int, vectors: int, lanes: int) -> int:
    """Number of adjacent panels of `vectors` vectors in a tile: 1 unless there is only one row."""
    if rows > 1:
        return 1
    return min(ceil_div(_VECTORS_OF_ONE_ROW, vectors), ceil_div(columns, vectors * lanes))


# ISAs where one load broadcasts two adjacent numbers, and registers suffice for a third kind of operand.
_PAIRS = ("avx512",)


def pairs_pay(machine: Machine, rows: int, columns: int, depth: int) -> bool:
    """Whether the last vector of columns, if it is half empty, should process two steps of k at a time.

    Its lanes alternate between an even k and the following odd k, and are added up at the end: half the
    multiply-adds. Only for rows of x at equal distances: otherwise the row addresses do not fit the
    registers, and loading them takes longer than the time saved.
    """
    lanes = machine.lanes("float32")
    half_empty = 0 < columns % lanes <= lanes // 2
    return machine.isa in _PAIRS and half_empty and rows > 1 and depth % 2 == 0 and depth >= lanes


def pack(weights: Array, tile: Tile, paired: bool = False) -> Array:
    """Pack weights [K, N] as [panels][K][NR], flat; N is padded with zeros.

    `paired` (see `pairs_pay`): the last panel is [K/2][2 * its full vectors, a vector of pairs], then zeros.
    """
    full = padded(weights, 1, tile.columns)
    depth, columns = full.shape
    panels: Array = full.reshape(depth, columns // tile.columns, tile.columns).transpose(1, 0, 2)
    if not paired:
        return panels.reshape(-1)
    lanes, last = tile.lanes, panels[-1].reshape(depth // 2, 2, tile.columns)
    unpaired = (weights.shape[1] - 1) % tile.columns // lanes * lanes
    pairs = last[:, :, unpaired : unpaired + lanes // 2].transpose(0, 2, 1).reshape(depth // 2, lanes)
    last_packed = np.concatenate([last[:, 0, :unpaired], last[:, 1, :unpaired], pairs], axis=1).reshape(-1)
    padding = depth * tile.columns - last_packed.size
    return np.concatenate([panels[:-1].reshape(-1), last_packed, np.zeros(padding, weights.dtype)])


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: `extent` iterations, each `x_stride` elements of x after the one before.

    `part`: the first of the iterations that are computed, and their number; None: all of them.
    """

    extent: int
    x_stride: int
    part: tuple[int | Expr, int | Expr] | None = None
