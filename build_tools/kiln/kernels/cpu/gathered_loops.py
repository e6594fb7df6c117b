"""The loops of a convolution that gathers rows of x in scratch memory, a few tiles at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm.ir import Expr

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.tir.builder import Machine, bind, chunks, int64, serial
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import blocks, share_of, task_blocks, tasks_of


def copied_row(
    runs: Sequence[Loop], source: Expr, lanes: int, copy: Callable[[Expr, Expr, int], None]
) -> None:
    """Emit `copy(offset in x, offset in the gathered row, width)` for all bytes of a row.

    `runs`: as in IntegerPacking. `source`: offset in x of the row's first byte. `lanes`: the greatest width,
    a power of two. The last group of a run whose length is no multiple of four begins earlier, as its weights
    do: the order is that of the packed weights.
    """
    run = runs[-1].extent
    packed, even = ceil_div(run, GROUP) * GROUP, run // GROUP * GROUP
    whole_vectors = even // lanes

    def over(loops: Sequence[Loop], first: Expr, number: Expr) -> None:
        if loops:
            with serial(loops[0].extent) as index:
                step = first + index * int64(loops[0].x_stride)
                over(loops[1:], step, number * int64(loops[0].extent) + index)
            return
        to = number * int64(packed)
        if whole_vectors:
            with serial(whole_vectors) as block:
                copy(first + block * int64(lanes), to + block * int64(lanes), lanes)
        for offset, width in chunks(even - whole_vectors * lanes, lanes):
            at = int64(whole_vectors * lanes + offset)
            copy(first + at, to + at, width)
        if run > even:
            copy(first + int64(run - GROUP), to + int64(even), GROUP)

    over(runs[:-1], source, int64(0))


class Rows(Protocol):
    """Rows of x in scratch memory, in slots of equal size."""

    def gather(self, base: Expr, slot: Expr) -> None:
        """Emit the copy of the row that begins at offset `base` in x to `slot`."""

    def tile(self, slots: Sequence[Expr], rows: Sequence[Expr], column: Expr, columns: int) -> None:
        """Emit one tile, `columns` columns from `column` on of the matmul's `rows`, which are in `slots`."""


@dataclass(frozen=True)
class GatheredLoops:
    """How the rows of a convolution are divided: `parts` parts of `part` rows, which are gathered at a time.

    `tasks`: number of tasks, each with scratch memory of its own; None: the kernel is not split.
    """

    conv: Convolution
    tile: Tile
    part: int
    parts: Extent
    tasks: int | None

    @classmethod
    def of(cls, conv: Convolution, tile: Tile, part: int, machine: Machine, steps: int) -> GatheredLoops:
        """Divide the rows into parts of at most `part` rows; `steps`: vector operations of a run."""
        greatest = conv.ranges.greatest
        part = min(ceil_div(greatest(conv.rows), tile.rows), max(1, part // tile.rows)) * tile.rows
        parts = ceil_div(conv.rows, part)
        shared = machine.shares(steps) and greatest(parts) > 1
        return cls(conv, tile, part, parts, min(machine.cores, greatest(parts)) if shared else None)

    @property
    def slots(self) -> int:
        """Rows that the scratch memory of all tasks holds."""
        return self.part * (self.tasks or 1)

    def emit(self, rows: Rows, begin: Expr, end: Expr) -> None:
        """Emit the tasks [begin, end), with the scratch memory of `rows`."""
        if self.tasks is None:
            blocks(self.conv.rows, self.part, lambda row, count: self._part(rows, row, count, int64(0)))
            return
        with tasks_of(self.tasks, True, begin, end) as task:
            slot = bind(task * int64(self.part))
            first, after = share_of(task, self.parts, self.tasks)
            task_blocks(
                self.conv.rows, self.part, True, first, after,
                lambda row, count: self._part(rows, row, count, slot),
            )  # fmt: skip

    def _part(self, rows: Rows, first_row: Expr, count: int, first_slot: Expr) -> None:
        """Emit `count` rows from `first_row`: gather them from `first_slot` on, then compute all columns."""
        first_row = bind(first_row)
        with serial(count) as number:
            rows.gather(bind(self.conv.base(first_row + number, int64(0))), first_slot + number)

        def columns_at(column: Expr, columns: int) -> None:
            column = bind(column)
            # As many sums in a narrow strip, which else would wait for each other.
            rows_of_tile = self.tile.rows * max(1, self.tile.vectors // ceil_div(columns, self.tile.lanes))

            def tile_at(row: Expr, height: int) -> None:
                slots = [bind(first_slot + row + int64(i)) for i in range(height)]
                numbers = [bind(first_row + row + int64(i)) for i in range(height)]
                rows.tile(slots, numbers, column, columns)

            blocks(count, rows_of_tile, tile_at)

        blocks(self.conv.columns, self.tile.width, columns_at)
