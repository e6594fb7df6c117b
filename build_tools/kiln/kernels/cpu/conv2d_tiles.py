"""The loops of a convolution: over tasks, parts of the rows, panels of weights and register tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.conv2d_schedule import Schedule
from kiln.kernels.cpu.convolution import Convolution, Row
from kiln.kernels.cpu.gemm import product
from kiln.kernels.cpu.gemm_prefetch import PanelPrefetch, prefetch_later, prefetch_panels
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.output_tile import Finish, OutputTile, TileOperands
from kiln.kernels.cpu.skipped_taps import LineSegment
from kiln.tir.builder import bind, divide, int64, modulo, serial
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import blocks, task_blocks, tasks_of


@dataclass(frozen=True)
class TileLoops:
    """Emits a convolution: `x` (NHWC, flat) and packed `weights` (flat) are buffers of the kernel.

    `prefetch_range`: the bytes after the weights that later kernels read, which tiles prefetch, or None.
    `together`: columns that are stored at once, as of OutputTile.
    """

    conv: Convolution
    schedule: Schedule
    x: Any
    weights: Any
    finish: Finish
    prefetch_range: tuple[int, int] | None
    together: int

    def emit(self, begin: Expr, end: Expr) -> None:
        """Emit the tasks [begin, end); all of the convolution if the kernel is not split."""
        conv, schedule = self.conv, self.schedule
        width, split = schedule.tile.width, schedule.tasks is not None
        if schedule.by_group:
            with tasks_of(conv.groups, split, begin, end) as number:
                group = bind(number)
                blocks(conv.columns, width, lambda column, columns: self._panel(column, columns, group))
        elif schedule.one_part:
            task_blocks(conv.columns, width, split, begin, end, self._panel)
        else:
            with tasks_of(schedule.parts, split, begin, end) as number:
                self._part(number)

    def _part(self, number: Expr) -> None:
        """Emit part `number` of the rows: the tiles of all panels."""
        conv, schedule = self.conv, self.schedule
        size, count = schedule.part, ceil_div(conv.rows, schedule.tile.rows)  # in tiles
        if schedule.line_tiles:
            size, count = schedule.lines, conv.lines
        first = bind(number * int64(size))
        end = bind(tirx.min(first + int64(size), int64(count)))

        def panel(column: Expr, columns: int) -> None:
            if schedule.line_tiles:
                with serial(end - first) as line:
                    self._line(first + line, column, columns)
                return
            task_blocks(
                conv.rows, schedule.tile.rows, True, first, end,
                lambda row, count: self._tile_at(row, count, column, columns),
            )  # fmt: skip

        blocks(conv.columns, schedule.tile.width, panel)

    def _panel(self, first_column: Expr, columns: int, group: Expr | None = None) -> None:
        """Emit all tiles of `columns` columns from `first_column`, at most a tile width."""
        if self.schedule.line_tiles:
            with serial(self.conv.lines) as line:
                self._line(line, first_column, columns, group)
            return
        blocks(
            self.conv.rows, self.schedule.tile.rows,
            lambda row, count: self._tile_at(row, count, first_column, columns, group),
        )  # fmt: skip

    def _line(self, line: Expr, first_column: Expr, columns: int, group: Expr | None = None) -> None:
        """Emit the tiles of output line `line`, counted over all images; other arguments as of `_tile_at`."""
        conv, line = self.conv, bind(line)
        first_index = line * int64(self.schedule.line_tiles)
        for segment in self.schedule.segments:
            loops = conv.loops_of(line, segment.taps)

            def tile(
                pixel: Expr, count: int, segment: LineSegment = segment, loops: list[Loop] = loops
            ) -> None:
                index = first_index + int64(segment.tile) + divide(pixel, segment.rows)
                pixels = conv.pixels(line, pixel + int64(segment.first), count)
                self._tiles(pixels, index, first_column, columns, group, loops)

            blocks(segment.pixels, segment.rows, tile)

    def _tile_at(
        self, first_row: Expr, count: int, first_column: Expr, columns: int, group: Expr | None = None
    ) -> None:
        """Emit one tile: `count` rows from `first_row`, `columns` columns of `group`, or of each group."""
        rows = [bind(first_row + int64(i)) for i in range(count)]
        index = divide(first_row, self.schedule.tile.rows)
        self._tiles(rows, index, first_column, columns, group, self.conv.loops())

    def _tiles(
        self,
        rows: Sequence[Row],
        index: Expr,
        first_column: Expr,
        columns: int,
        group: Expr | None,
        loops: Sequence[Loop],
    ) -> None:
        """Emit tile `index`, as `_tile` does, of `group` or of each group."""
        if group is not None or self.conv.groups == 1:
            self._tile(rows, index, first_column, columns, int64(0) if group is None else group, loops)
            return
        with serial(self.conv.groups) as group_index:
            self._tile(rows, index, first_column, columns, group_index, loops)

    def _tile(
        self,
        rows: Sequence[Row],
        index: Expr,
        first_column: Expr,
        columns: int,
        group: Expr,
        loops: Sequence[Loop],
    ) -> None:
        """Emit tile `index` of `group`: the output pixels `rows`, `columns` columns from `first_column`.

        `loops`: the reduction.
        """
        conv, tile, integer = self.conv, self.schedule.tile, self.schedule.integer
        bases = conv.bases(rows, group, tile.rows)
        panel = bind(divide(first_column, tile.columns) + group * int64(self.schedule.panels))
        inside = bind(modulo(first_column, tile.columns)) if tile.parts > 1 else None
        first_stored = first_column + group * int64(conv.columns)
        out = OutputTile(rows, first_stored, columns, self.finish, self.together)
        operands = TileOperands(self.x, bases, self.weights, panel, inside)
        if integer:
            integer.product(out, operands)
            return
        prefetch = self._prefetch(panel, index, first_column, inside)
        paired = self.schedule.paired and columns < tile.columns
        product(tile, out, operands, loops, self.schedule.accumulator, prefetch, paired)

    def _prefetch(
        self, panel: Expr, index: Expr, first_column: Expr, inside: Expr | None
    ) -> PanelPrefetch | None:
        """The prefetches of tile `index` at `panel`: of its next panels, and of weights of later kernels."""
        schedule, tile = self.schedule, self.schedule.tile
        if not schedule.prefetch_distance:
            return None
        prefetch = prefetch_panels(
            tile, self.conv.loops(), panel, modulo(index, schedule.part), schedule.part,
            schedule.prefetch_distance, inside,
        )  # fmt: skip
        if not self.prefetch_range or self.conv.groups != 1:
            return prefetch
        share = bind(divide(first_column, tile.width) * int64(schedule.row_tiles) + index)
        shares, times = schedule.widths * schedule.row_tiles, self.conv.terms // prefetch.steps
        return replace(prefetch, later=prefetch_later(self.prefetch_range, share, shares, times))
