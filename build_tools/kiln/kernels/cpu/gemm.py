"""The packed matrix product behind convolutions and dense layers: one register tile, many uses.

A tile is MR rows (output pixels, or rows of the left matrix) by NR columns (output channels); NR is NV
vectors. Weights are packed offline as [column panel][k][NR], so that the inner loop reads them in order:

    for k: for row in MR: for v in NV: acc[row][v] += broadcast(x[row][k]) * w[panel][k][v]

With MR * NV accumulators in registers and one broadcast per row this is bound by the multiply-add units
(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). The last panel and the
last tile may be narrower; panels are padded with zeros offline, and only real columns are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as script
from tvm.tirx.script.builder import ir as builder

from kiln.tir.builder import (
    CACHE_LINE,
    CACHE_SETS,
    Array,
    Expr,
    Machine,
    bind,
    chunks,
    divide,
    int64,
    load,
    padded,
    registers,
    serial,
    store,
    vector,
)

# finish(row value index, column, accumulated value) stores one element of the output
Finish = Callable[[Expr, Expr, Expr], None]


@dataclass(frozen=True)
class Tile:
    """Rows of the register tile, vectors of a panel, `lanes` elements a vector, and panels side by side.

    How weights are packed depends on the panel alone: kernels for one row and for many share them.
    """

    rows: int
    vectors: int
    lanes: int
    beside: int = 1

    @property
    def columns(self) -> int:
        """Columns of a panel (NR)."""
        return self.vectors * self.lanes

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.columns * self.beside

    def in_one(self) -> Tile:
        """A tile as wide, of one panel."""
        return Tile(self.rows, self.vectors * self.beside, self.lanes)


# Rows of a tile of three vectors, for 3 (or 9, …) vectors of columns: panels of two leave a thin one behind.
# Measured on Zen 5: 5 % faster on AVX-512, 8 to 12 % on AVX2.
_THREE = {"avx2": 4, "avx512": 8}
# Tiles along the rows of which the last one's width still counts.
_FEW = 16


# Ways of a set of the first cache that weights and results need besides the rows of x.
_WAYS = 2


def choose_tile(
    machine: Machine, rows: int, columns: int, wanted: tuple[int, int] | None = None, apart: int = 0
) -> Tile:
    """The register tile for `rows` by `columns` outputs with a 32-bit accumulator.

    `wanted`: rows and vectors where a measurement knows better. `apart`: bytes from a row of the left operand
    to the next, where they are equal.

    Sizes leave registers for the NV weight vectors and one broadcast. Measured on AVX2: 6x2 vectors
    reaches 96 % of the peak, while 7x2 spills and tiles one vector wide are slow.
    """
    lanes = machine.lanes("float32")
    if machine.registers >= 32 and machine.vector_bits >= 512:
        best, vectors = 14, 2
    elif machine.registers >= 32:
        best, vectors = (6, 3) if machine.in_order else (8, 3)
    else:
        best, vectors = 6, 2
    across = -(-columns // lanes)
    if machine.isa in _THREE and across % 3 == 0 and across % 2:
        best, vectors = _THREE[machine.isa], 3
    period = CACHE_LINE * CACHE_SETS
    if machine.isa == "avx512" and apart and apart % period == 0:
        # All rows lie in one set of the first cache, which has to hold a line of each until that is read.
        # Zen 5: 3 to 6 % faster with 10 rows than with 14.
        best = max(1, min(best, machine.l1_bytes // period - _WAYS))
    if wanted is not None:
        best, vectors = wanted
    vectors = min(vectors, -(-columns // lanes))
    tiles = -(-rows // best)
    if wanted is None and tiles <= _FEW:  # as many, but alike: one of two rows waits for its own sums
        best = -(-rows // tiles)
    return Tile(min(best, rows), vectors, lanes, panels_beside(rows, columns, vectors, lanes))


# Vectors of a tile of one row: a vector times a matrix needs sums that do not wait for each other.
_ALONE = 4


def panels_beside(rows: int, columns: int, vectors: int, lanes: int) -> int:
    """How many panels of `vectors` a tile takes at once."""
    if rows > 1:
        return 1
    return min(-(-_ALONE // vectors), -(-columns // (vectors * lanes)))


# Where two numbers side by side are broadcast by one load, and registers suffice for a third kind of operand.
_PAIRS = ("avx512",)


def pairs_pay(machine: Machine, rows: int, columns: int, depth: int) -> bool:
    """Whether the last vector of columns, half empty, takes two steps of k at a time.

    Lanes for an even k and for the odd one behind it take turns, and are added up at the end: half the
    multiply-adds. For rows of x at equal distances only: else the loads of their addresses, which do not fit
    the registers, take longer than what is saved.
    """
    lanes = machine.lanes("float32")
    half_empty = 0 < columns % lanes <= lanes // 2
    return machine.isa in _PAIRS and half_empty and rows > 1 and depth % 2 == 0 and depth >= lanes


def pack(weights: Array, tile: Tile, paired: bool = False) -> Array:
    """[K, N] → [panels][K][NR], flat; N is padded with zeros.

    `paired` (`pairs_pay`): the last panel is [K/2][2 * its whole vectors, a vector of pairs], then zeros.
    """
    full = padded(weights, 1, tile.columns)
    depth, columns = full.shape
    panels: Array = full.reshape(depth, columns // tile.columns, tile.columns).transpose(1, 0, 2)
    if not paired:
        return panels.reshape(-1)
    lanes, last = tile.lanes, panels[-1].reshape(depth // 2, 2, tile.columns)
    whole = (weights.shape[1] - 1) % tile.columns // lanes * lanes
    pairs = last[:, :, whole : whole + lanes // 2].transpose(0, 2, 1).reshape(depth // 2, lanes)
    made = np.concatenate([last[:, 0, :whole], last[:, 1, :whole], pairs], axis=1).reshape(-1)
    rest = depth * tile.columns - made.size
    return np.concatenate([panels[:-1].reshape(-1), made, np.zeros(rest, weights.dtype)])


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: `extent` steps of `x_stride` elements in x."""

    extent: int
    x_stride: int


@dataclass(frozen=True)
class Later:
    """Weights of later kernels: `lines` cache lines from `first` on each time that a tile fetches its own, or
    every `turns` times."""

    first: Expr
    lines: int
    turns: int


def later(region: tuple[int, int], share: Expr, shares: int, times: int) -> Later:
    """What tile number `share` of `shares` fetches of a region: bytes behind the beginning of the weights.

    `times`: how often a tile fetches.
    """
    begin, end = region
    each = (end - begin) / (4 * LINE) / shares / times
    lines, turns = max(1, round(each)), 1
    while each * turns < 0.7 and turns * 2 <= times:  # a line twice costs less than half of them never
        turns *= 2
    part = -(-times // turns) * lines
    return Later(bind(int64(begin // 4) + share * int64(part * LINE)), lines, turns)


@dataclass(frozen=True)
class Ahead:
    """Weights to bring into the cache while a tile is computed: cold weights cost as much as the sums.

    From element `first` on, `lines` cache lines after each `steps` steps of the innermost loop. The address
    may lie behind the weights (what follows is the next layer's): a prefetch never faults.
    """

    first: Expr
    steps: int
    lines: int
    later: Later | None = None

    def by_pairs(self) -> Ahead:
        """The same where a step of the innermost loop is two; nothing for later kernels."""
        if self.steps > 1:
            return Ahead(self.first, self.steps // 2, self.lines)
        return Ahead(self.first, 1, 2 * self.lines)


LINE = CACHE_LINE // 4  # float32 elements in a cache line; on CPUs with shorter ones every second is fetched


def ahead(
    tile: Tile, loops: Sequence[Loop], panel: Expr, index: Expr, tiles: int, distance: int = 1
) -> Ahead:
    """What the `index`th of `tiles` such tiles fetches of the one `distance` behind that at `panel`."""
    depth = 1
    for loop in loops:
        depth *= loop.extent
    inner = next((loop.extent for loop in reversed(loops) if loop.extent > 1), 1)
    each = max(1, tile.width // LINE)  # lines of one step
    steps = 1
    while inner % (steps * 2) == 0 and steps * 2 * each <= tiles:
        steps *= 2
    lines = max(1, -(-each * steps // tiles))
    first = (panel + int64(tile.beside * distance)) * int64(depth * tile.columns) + index * int64(
        depth // steps * lines * LINE
    )
    return Ahead(bind(first), steps, lines)


def _ramp(start: Expr, lanes: int) -> Expr:
    return tirx.Ramp(start, int64(1), lanes)


def _prefetch(weights: Any, at: Expr) -> None:
    address = script.address_of(load(weights, [at]))
    read, second_level, data = (tirx.IntImm("int32", value) for value in (0, 2, 1))
    builder.evaluate(script.call_llvm_intrin("void", "llvm.prefetch", address, read, second_level, data))


def _add_pairs(sums: Sequence[Any], last: int, lanes: int) -> list[tuple[Any, int]]:
    """Add neighbours in sums[row][last] of each row; where the results of each lie: a buffer, its first lane.

    Two rows at a time: for one alone LLVM takes vhaddps, which knows 16 registers only, and spills others in
    the loop before.
    """
    place, found = [int64(last), _ramp(int64(0), lanes)], []
    for row in range(0, len(sums), 2):
        two = [load(sums[min(index, len(sums) - 1)], place) for index in (row, row + 1)]
        even, odd = (
            tirx.Shuffle(two, [tirx.IntImm("int32", lane) for lane in range(first, 2 * lanes, 2)])
            for first in range(2)
        )
        store(sums[row], place, even + odd)
        found += [(sums[row], 0), (sums[row], lanes // 2)]
    return found[: len(sums)]


def product(
    tile: Tile,
    rows: Sequence[Expr],
    first_column: Expr,
    columns: int,
    x: Any,
    bases: Sequence[Expr],
    weights: Any,
    panel: Expr,
    loops: Sequence[Loop],
    accumulator: str,
    finish: Finish,
    fetch: Ahead | None = None,
    paired: bool = False,
) -> None:
    """Emit one tile: `rows` of the output by `columns` columns from `first_column`, where `panel` begins.

    `bases`: offset in `x` of each row's first element. `loops`: the reduction, outermost first. `fetch`: what
    to fetch meanwhile. `paired`: the panel is that which `pack` says.
    """
    count, vectors, lanes = len(rows), -(-columns // tile.lanes), tile.lanes
    depth = 1
    for loop in loops:
        depth *= loop.extent
    # A buffer a row: TVM puts buffers of more than 1 KiB, such as the whole tile on AVX-512, on the heap.
    sums = [registers([vectors, lanes], accumulator) for _ in range(count)]
    for row in range(count):
        for v in range(vectors):
            with vector(lanes) as lane:
                store(sums[row], [int64(v), lane], tirx.const(0, accumulator))
    first_weight = bind(panel * int64(depth * tile.columns))
    if paired:
        *outer, inner = loops
        loops = [*outer, Loop(inner.extent // 2, 2 * inner.x_stride)]
        fetch = None if fetch is None else fetch.by_pairs()

    def pair_step(x_offset: Expr, step: Expr) -> None:
        """Two steps of k, where the last vector takes both at once."""
        whole, lane = (vectors - 1) * lanes, _ramp(int64(0), lanes)
        at = first_weight + step * int64(2 * whole + lanes)
        pair_weights = at + int64(2 * whole)
        for k in range(2):
            for row in range(count if vectors > 1 else 0):
                left = load(x, [bases[row] + x_offset + int64(k)])
                for v in range(vectors - 1):
                    with vector(lanes) as each:
                        right = load(weights, [at + int64(k * whole + v * lanes) + each])
                        place = [int64(v), each]
                        store(sums[row], place, load(sums[row], place) + left * right)
        for row in range(count):  # behind the others: with all of their weights at once, 14 rows spill
            two = load(x, [_ramp(bases[row] + x_offset, 2)])
            both = tirx.Shuffle([two] * (lanes // 2), [tirx.IntImm("int32", k) for k in range(lanes)])
            place = [int64(vectors - 1), lane]
            right = load(weights, [_ramp(pair_weights, lanes)])
            store(sums[row], place, load(sums[row], place) + both * right)

    def reduce(remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        if remaining:
            loop = remaining[0]
            if loop.extent == 1:
                reduce(remaining[1:], x_offset, step)
                return
            if fetch is not None and all(inner.extent == 1 for inner in remaining[1:]):
                with serial(loop.extent // fetch.steps) as block:
                    number = step * int64(loop.extent // fetch.steps) + block
                    for line in range(fetch.lines):
                        _prefetch(
                            weights, fetch.first + (number * int64(fetch.lines) + int64(line)) * int64(LINE)
                        )
                    if fetch.later is not None:
                        turn = number if fetch.later.turns == 1 else divide(number, fetch.later.turns)
                        for line in range(fetch.later.lines):
                            where = (turn * int64(fetch.later.lines) + int64(line)) * int64(LINE)
                            _prefetch(weights, fetch.later.first + where)
                    with serial(fetch.steps) as inside:
                        k = block * int64(fetch.steps) + inside
                        reduce([], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k)
                return
            with serial(loop.extent) as k:
                reduce(remaining[1:], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k)
            return
        if paired:
            pair_step(x_offset, step)
            return
        at = first_weight + step * int64(tile.columns)
        for row in range(count):
            left = tirx.Cast(accumulator, load(x, [bases[row] + x_offset]))
            for v in range(vectors):
                with vector(lanes) as lane:
                    column = v // tile.vectors * depth * tile.columns + v % tile.vectors * lanes
                    right = tirx.Cast(accumulator, load(weights, [at + int64(column) + lane]))
                    total = load(sums[row], [int64(v), lane]) + left * right
                    store(sums[row], [int64(v), lane], total)

    reduce(loops, int64(0), int64(0))
    ends = _add_pairs(sums, vectors - 1, lanes) if paired else []
    for row in range(count):
        for v in range(vectors):
            held, begin = ends[row] if paired and v == vectors - 1 else (sums[row], 0)
            for offset, width in chunks(min(lanes, columns - v * lanes), lanes):
                with vector(width) as lane:
                    value = load(held, [int64(v), int64(begin + offset) + lane])
                    finish(rows[row], first_column + int64(v * lanes + offset) + lane, value)
