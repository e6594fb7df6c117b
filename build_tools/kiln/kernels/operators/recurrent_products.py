"""The products of a recurrent layer's step: state times weights, as tiles of sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.frontend.recurrent import Recurrent
from kiln.tir.builder import bind, chunks, int64, load, registers, serial, store, vector
from kiln.tir.tiled_loops import blocks
from kiln.tir.widen import widened


@dataclass(frozen=True)
class Blocking:
    """Sizes of blocks: `vectors` of `lanes` sums in registers, for each of `rows` rows of the batch.

    `block`: rows of a task, a multiple of `rows`, which share a panel of weights while it is in the cache.
    `panel`: columns of a panel of packed weights; 0: weights are [D, H, G * H]. `threads`: whether the loop
    over tasks is marked as parallel, for a GPU, which has a thread for each. `kind`: float16 or bfloat16 of
    weights that are stored so, and `half`: whether an instruction widens float16.
    """

    rows: int = 1
    block: int = 1
    vectors: int = 1
    lanes: int = 1
    panel: int = 0
    threads: bool = False
    kind: str = ""
    half: bool = False


def phases(layer: Recurrent) -> list[tuple[int, int]]:
    """The products of a step, one after the other: first column of the weights, and number of columns."""
    hidden = layer.hidden
    if layer.kind == "GRU":  # the last gate reads the reset state, or starts from a bias of its own
        return [(0, 2 * hidden), (2 * hidden, hidden)]
    return [(0, layer.gates * hidden)]


def has_reset(layer: Recurrent) -> bool:
    """Whether the last gate multiplies a reset state, which has memory of its own."""
    return layer.kind == "GRU" and not layer.before_reset


@dataclass(frozen=True)
class TaskRows:
    """Rows [first, first + count) of the batch, in direction `side`.

    `step`: number of the step; `time`: its position in the sequence.
    """

    side: Expr
    first: Expr
    count: Extent
    step: Expr
    time: Expr


@dataclass(frozen=True)
class _SumTile:
    """Columns [column, column + width) of the sums, in the product that begins at column `first`.

    `base`: position of their weights in packed weights, of which a row has `panel` columns; None: the weights
    are not packed. `source`: the buffer that is multiplied.
    """

    first: int
    column: Expr
    width: int
    base: Expr | None
    panel: int
    source: str


class LayerProducts:
    """Writes the products of a layer over `buffers`: operands, results and `sums`, by name.

    Packed weights may be of 16 bits, or levels of int8 with `scales`, and perhaps `zeros`, for each column.
    `length`, `batch`: sizes. `sums`: memory [D, B, G * H] for the products of a step.
    """

    def __init__(
        self, layer: Recurrent, buffers: Mapping[str, Any], length: Extent, batch: Extent, blocking: Blocking
    ) -> None:
        self.layer, self.buffers = layer, buffers
        self.length, self.batch, self.blocking = length, batch, blocking
        self.hidden, self.columns = layer.hidden, layer.gates * layer.hidden

    def number(self, value: float) -> Expr:
        """A constant of the layer's type."""
        return tirx.FloatImm(self.layer.dtype, value)

    # Places of elements

    def state(self, side: Expr, row: Expr, unit: Expr) -> list[Expr]:
        return [row, side, unit] if self.layer.batch_first else [side, row, unit]

    def given(self, at: TaskRows, row: Expr, column: Expr) -> Expr:
        gate_column = at.side * int64(self.columns) + column
        first = [row, at.time] if self.layer.batch_first else [at.time, row]
        return load(self.buffers["given"], [*first, gate_column])

    def sum(self, at: TaskRows, row: Expr, column: Expr) -> list[Expr]:
        return [at.side, row, column]

    def units(self, visit: Callable[[Expr], None]) -> None:
        """Write visit(unit) for all hidden units, as vectors."""
        lanes = self.blocking.lanes
        whole_vectors = self.hidden // lanes
        if whole_vectors:
            with serial(whole_vectors) as block, vector(lanes) as lane:
                visit(block * int64(lanes) + lane)
        for offset, width in chunks(self.hidden - whole_vectors * lanes, lanes):
            with vector(width) as lane:
                visit(int64(whole_vectors * lanes + offset) + lane)

    # Products

    def product(self, at: TaskRows, first: int, columns: int, source: str) -> None:
        """Write sums = initial sums of the gates + state * weights, for `columns` columns from `first`."""
        blocking = self.blocking
        width = blocking.vectors * blocking.lanes
        panel = min(blocking.panel or width, columns)
        whole_panels = columns // panel
        if whole_panels:
            with serial(whole_panels) as number:
                self._panel(at, first, number * int64(panel), panel, source)
        if columns % panel:
            self._panel(at, first, int64(whole_panels * panel), columns % panel, source)

    def _panel(
        self, at: TaskRows, first: int, offset: Expr, width: int, source: str
    ) -> None:  # fmt: skip
        """Write a panel of `width` columns, from column `offset` of a phase, as tiles."""
        tile = self.blocking.vectors * self.blocking.lanes
        whole_tiles = width // tile
        if whole_tiles > 1:
            with serial(whole_tiles) as number:
                self._tile(at, first, offset, width, number * int64(tile), tile, source)
        elif whole_tiles:
            self._tile(at, first, offset, width, int64(0), tile, source)
        if width % tile:
            self._tile(at, first, offset, width, int64(whole_tiles * tile), width % tile, source)

    def _tile(
        self, at: TaskRows, first: int, offset: Expr, panel: int, inside: Expr, width: int, source: str
    ) -> None:  # fmt: skip
        """Write the sums of `width` columns, from column `inside` of a panel, for all rows."""
        column = bind(int64(first) + offset + inside)
        base = None
        if self.blocking.panel:
            side_size = int64(self.hidden * self.columns)
            base = bind(at.side * side_size + (int64(first) + offset) * int64(self.hidden) + inside)
        tile = _SumTile(first, column, width, base, panel, source)
        blocks(at.count, self.blocking.rows, lambda row, count: self._sums(at, tile, row, count))

    def _sums(self, at: TaskRows, tile: _SumTile, row: Expr, count: int) -> None:
        """Write the sums of a tile for `count` rows from `row`."""
        lanes = self.blocking.lanes
        chunks_of_tile, scaled = list(chunks(tile.width, lanes)), "scales" in self.buffers
        scope = "local" if self.blocking.threads else "global"
        sums = [registers([len(chunks_of_tile), lanes], self.layer.dtype, scope) for _ in range(count)]
        rows = [bind(at.first + row + int64(number)) for number in range(count)]

        def each(visit: Callable[[int, list[Expr], Expr, int], None]) -> None:
            """Write visit(number of the row, place in its sums, first column, number of columns)."""
            for number in range(count):
                for index, (start, size) in enumerate(chunks_of_tile):
                    with vector(size) as lane:
                        visit(number, [int64(index), lane], int64(start) + lane, size)

        def begin(number: int, place: list[Expr], column: Expr, _size: int) -> None:
            start = self.number(0.0)
            if not scaled:
                start = self._begin(at, rows[number], tile.first, tile.column + column)
            store(sums[number], place, start)

        def finish(number: int, place: list[Expr], column: Expr, _size: int) -> None:
            where, value = self.sum(at, rows[number], tile.column + column), load(sums[number], place)
            if scaled:
                scale = self._of_column("scales", at, tile, column)
                value = self._begin(at, rows[number], tile.first, tile.column + column) + value * scale
            store(self.buffers["sums"], where, value)

        def multiply() -> None:
            with serial(self.hidden) as k:
                states = [load(self.buffers[tile.source], self.state(at.side, row, k)) for row in rows]

                def add(number: int, place: list[Expr], column: Expr, _size: int) -> None:
                    product = states[number] * self._weight(at, tile, k, column)
                    store(sums[number], place, load(sums[number], place) + product)

                each(add)

        each(begin)
        if "h0" in self.buffers:
            multiply()
        else:  # the first step multiplies zeros
            with builder.If(at.step > int64(0)), builder.Then():
                multiply()
        each(finish)

    def _weight(self, at: TaskRows, tile: _SumTile, k: Expr, column: Expr) -> Expr:
        weights = self.buffers["weights"]
        if tile.base is None:
            return load(weights, [at.side, k, tile.column + column])
        stored = load(weights, [tile.base + k * int64(tile.panel) + column])
        if self.blocking.kind:
            return widened(stored, self.blocking.kind, self.blocking.half)
        if "scales" not in self.buffers:
            return stored
        level = tirx.Cast("float32", stored)
        return level - self._of_column("zeros", at, tile, column) if "zeros" in self.buffers else level

    def _of_column(self, name: str, at: TaskRows, tile: _SumTile, column: Expr) -> Expr:
        """The scale or the zero point of the weights of a column."""
        return load(self.buffers[name], [at.side * int64(self.columns) + tile.column + column])

    def _begin(self, at: TaskRows, row: Expr, first: int, column: Expr) -> Expr:
        """The initial sum of a column, in the phase that begins at column `first`."""
        if self.layer.before_reset and first:  # the input's part is added after the reset
            return load(self.buffers["bias"], [at.side, column - int64(first)])
        return self.given(at, row, column)
