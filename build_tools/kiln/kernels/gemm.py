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

from tvm import tirx

from kiln.kernels.kernel import (
    Array,
    Expr,
    Machine,
    bind,
    chunks,
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
    """Rows and vectors of the register tile; `lanes` elements a vector."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of a panel (NR)."""
        return self.vectors * self.lanes


def choose_tile(machine: Machine, rows: int, columns: int) -> Tile:
    """The register tile for `rows` by `columns` outputs with a 32-bit accumulator.

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
    if rows == 1:  # a vector times a matrix: independent sums hide the latency of the multiply-add
        vectors = 4
    vectors = min(vectors, -(-columns // lanes))
    return Tile(min(best, rows), vectors, lanes)


def pack(weights: Array, tile: Tile) -> Array:
    """[K, N] → [panels][K][NR], flat; N is padded with zeros."""
    full = padded(weights, 1, tile.columns)
    depth, columns = full.shape
    panels: Array = full.reshape(depth, columns // tile.columns, tile.columns).transpose(1, 0, 2)
    return panels.reshape(-1)


@dataclass(frozen=True)
class Loop:
    """One loop of the reduction: `extent` steps of `x_stride` elements in x."""

    extent: int
    x_stride: int


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
) -> None:
    """Emit one tile: `rows` of the output by `columns` columns from `first_column`, from panel `panel`.

    `bases`: offset in `x` of each row's first element. `loops`: the reduction, outermost first.
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

    def reduce(remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        if remaining:
            loop = remaining[0]
            if loop.extent == 1:
                reduce(remaining[1:], x_offset, step)
                return
            with serial(loop.extent) as k:
                reduce(remaining[1:], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k)
            return
        at = first_weight + step * int64(tile.columns)
        for row in range(count):
            left = tirx.Cast(accumulator, load(x, [bases[row] + x_offset]))
            for v in range(vectors):
                with vector(lanes) as lane:
                    right = tirx.Cast(accumulator, load(weights, [at + int64(v * lanes) + lane]))
                    total = load(sums[row], [int64(v), lane]) + left * right
                    store(sums[row], [int64(v), lane], total)

    reduce(loops, int64(0), int64(0))
    for row in range(count):
        for v in range(vectors):
            for offset, width in chunks(min(lanes, columns - v * lanes), lanes):
                with vector(width) as lane:
                    value = load(sums[row], [int64(v), int64(offset) + lane])
                    finish(rows[row], first_column + int64(v * lanes + offset) + lane, value)
