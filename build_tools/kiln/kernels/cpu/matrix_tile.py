"""Register tiles of kernels/cpu/gemm_int8.py by SMMLA and USMMLA of ARM's extension I8MM.

One instruction multiplies two rows of x by two columns of weights, eight values of k of each, and adds the
four sums to a vector. Panels are packed in groups of four values of k, which the instruction SDOT of other
variants reads: two adjacent groups are zipped into the eight values of each column, once for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.extents import Extent
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_packing import GROUP, IntegerPacking
from kiln.tir.builder import bind, int64, load, registers, serial, store
from kiln.tir.vector_expr import ramp

LANES = 4  # sums in a vector: two rows by two columns, or four columns
NAMES = {"smmla": "llvm.aarch64.neon.smmla.v4i32.v16i8", "usmmla": "llvm.aarch64.neon.usmmla.v4i32.v16i8"}


def shuffled(operands: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """The vector of the elements `lanes`, counted over all operands."""
    return tirx.Shuffle(list(operands), [tirx.IntImm("int32", lane) for lane in lanes])


def pairs_of(rows: int) -> list[tuple[int, int]]:
    """The rows of each pair; of an odd number of rows, the last is computed twice."""
    return [(row, min(row + 1, rows - 1)) for row in range(0, rows, 2)]


def by_rows(pairs: Sequence[tuple[int, int]], sums: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Sort sums of two rows by two columns: by row and vector of four columns, the buffer that holds them.

    `sums`: by pair of rows and vector, the buffers of its first two columns and of the other two.
    """
    every = ramp(int64(0), LANES)
    rows: dict[int, list[Any]] = {row: [] for pair in pairs for row in pair}
    for pair, vectors in zip(pairs, sums, strict=True):
        for buffers in vectors:
            blocks = [load(buffer, [every]) for buffer in buffers]
            halves = [bind(shuffled(blocks, lanes)) for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]
            for row, buffer, result in zip(dict.fromkeys(pair), buffers, halves, strict=False):
                store(buffer, [every], result)
                rows[row].append(buffer)
    return [rows[row] for row in sorted(rows)]


def cleared(pairs: int, vectors: int) -> list[list[list[Any]]]:
    """Sums of zero: by pair of rows and vector of four columns, two buffers."""
    sums = [[[registers([LANES], "int32") for _ in range(2)] for _ in range(vectors)] for _ in range(pairs)]
    for buffer in (buffer for pair in sums for vector in pair for buffer in vector):
        store(buffer, [ramp(int64(0), LANES)], tirx.Broadcast(tirx.const(0, "int32"), LANES))
    return sums


def eight_bytes(x: Any, offsets: Sequence[Expr]) -> Expr:
    """Eight bytes of each of two rows of x, which begin at `offsets`."""
    rows = [tirx.reinterpret("int64", load(x, [ramp(offset, 8)])) for offset in offsets]
    return _bytes_of(shuffled(rows, (0, 1)))


def add_products(method: str, sums: Any, rows: Expr, columns: Expr) -> None:
    """Add the products of two rows and two columns, eight values each, to the four sums in `sums`."""
    every = ramp(int64(0), LANES)
    accumulator = load(sums, [every])
    store(sums, [every], tirx.call_llvm_pure_intrin("int32x4", NAMES[method], accumulator, rows, columns))


def _bytes_of(value: Expr) -> Expr:
    return bind(tirx.reinterpret("int8x16", value))


class MatrixTile:
    """Emits the sums of one tile: rows of x that begin at `bases`, by vectors of four columns of the panels.

    `starts`: offset in `weights` of the first group of each panel. `places`: for each vector, its panel and
    the bytes before it in a group of the panel.
    """

    def __init__(
        self, packing: IntegerPacking, x: Any, bases: Sequence[Expr], weights: Any, starts: Sequence[Expr],
        places: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        self.packing, self.x, self.bases, self.weights = packing, x, bases, weights
        self.starts, self.places = starts, places
        self.pairs = pairs_of(len(bases))
        self.sums = cleared(len(self.pairs), len(places))

    def emit(self) -> list[list[Any]]:
        """Emit the sums; by row and vector of four columns, the buffer that holds them."""
        self._reduce(self.packing.runs, int64(0), int64(0))
        return by_rows(self.pairs, self.sums)

    def _reduce(self, remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        """Emit the loops `remaining` of the reduction, at `x_offset` in x and iteration `step`."""
        if len(remaining) > 1:
            loop = remaining[0]
            with serial(loop.extent) as k:
                inner = step * int64(loop.extent) + k
                self._reduce(remaining[1:], x_offset + k * int64(loop.x_stride), inner)
            return
        run = self.packing.run
        whole_groups, groups = run // GROUP, ceil_div(run, GROUP)
        first = step * int64(groups)
        with serial(whole_groups // 2) as k:
            at = x_offset + k * int64(2 * GROUP)
            row_values = [eight_bytes(self.x, [self.bases[row] + at for row in pair]) for pair in self.pairs]
            self._step(row_values, first + k * int64(2), 2)
        # The remainder: one group, the last group (which begins earlier, so that it is whole), or both.
        rest = [(number, min(number * GROUP, run - GROUP)) for number in range(whole_groups // 2 * 2, groups)]
        if rest:
            row_values = [
                self._groups_of_four(pair, [x_offset + int64(offset) for _, offset in rest])
                for pair in self.pairs
            ]
            self._step(row_values, first + int64(rest[0][0]), len(rest))

    def _groups_of_four(self, pair: tuple[int, int], offsets: Sequence[Expr]) -> Expr:
        """One or two groups of each row of a pair, filled up with zeros."""
        words = []
        for row in pair:
            fours = [load(self.x, [ramp(self.bases[row] + offset, GROUP)]) for offset in offsets]
            words += [tirx.reinterpret("int32", four) for four in fours]
            words += [tirx.const(0, "int32")] * (2 - len(fours))
        return _bytes_of(shuffled(words, range(LANES)))

    def _step(self, left: Sequence[Expr], number: Expr, groups: int) -> None:
        """Add the products of `groups` groups of k, at most two, from group `number` on."""
        line = GROUP * self.packing.tile.columns
        at = number * int64(line)
        for v, (panel, inside) in enumerate(self.places):
            start_of_vector = self.starts[panel] + at + int64(inside)
            columns_loaded = [
                bind(
                    tirx.reinterpret(
                        "int32x4", load(self.weights, [ramp(start_of_vector + int64(g * line), 16)])
                    )
                )
                for g in range(groups)
            ]
            columns_loaded += [tirx.Broadcast(tirx.const(0, "int32"), LANES)] * (2 - groups)
            right = [_bytes_of(shuffled(columns_loaded, lanes)) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))]
            for pair, sums in zip(left, self.sums, strict=True):
                for buffer, columns in zip(sums[v], right, strict=True):
                    add_products(self.packing.method, buffer, pair, columns)


@dataclass(frozen=True)
class PackedPanel:
    """A panel of columns that was packed at run time; it begins at buffer[start].

    It has `group_bytes` bytes for each of its `groups` groups of eight values of k: eight for each column.
    """

    buffer: Any
    start: Expr
    groups: Extent
    group_bytes: int


def runtime_sums(
    method: str, rows: Any, bases: Sequence[Expr], panel: PackedPanel, vectors: int
) -> list[list[Any]]:
    """Emit the sums of rows by `vectors` vectors of columns; the result is that of MatrixTile.emit.

    `bases`: offset in `rows` of each row.
    """
    pairs = pairs_of(len(bases))
    sums = cleared(len(pairs), vectors)
    with serial(panel.groups) as number:
        at = bind(number * int64(2 * GROUP))
        left = [eight_bytes(rows, [bases[row] + at for row in pair]) for pair in pairs]
        for column in range(2 * vectors):  # pairs of columns
            group_offset = panel.start + number * int64(panel.group_bytes) + int64(16 * column)
            right = bind(load(panel.buffer, [ramp(group_offset, 16)]))
            for row_pair, pair_sums in zip(left, sums, strict=True):
                add_products(method, pair_sums[column // 2][column % 2], row_pair, right)
    return by_rows(pairs, sums)
