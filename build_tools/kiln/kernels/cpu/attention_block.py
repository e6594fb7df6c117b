"""The work of an attention kernel on one block of queries; see kernels/cpu/attention.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu.attention_nests import Attention
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.kernels.cpu.packed_operand import Panels
from kiln.kernels.cpu.panel_sums import PanelOperand, RowOperand, tile_sums
from kiln.tir.builder import bind, chunks, divide, load, registers, serial, store, vector
from kiln.tir.symbols import ceil_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks


@dataclass(frozen=True)
class Blocks:
    """Sizes of blocks and tiles.

    `tile`: of keys by queries. `queries`: of a block, a multiple of the tile's columns; `keys`: of a block, a
    multiple of its rows. `rows`: queries of a tile of the result, a divisor of `queries`.
    """

    tile: Tile
    queries: int
    keys: int
    rows: int


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries: `count` queries from number `first` on, at the indices `lead` of the other axes."""

    lead: Sequence[Expr]
    first: Expr
    count: Expr


class AttentionBlock:
    """Emits the work on one block of queries; all memory is scratch of the task.

    `data`: buffers of queries, keys, values. `score`, `result`: epilogues of both matmuls. `memory`: scratch
    buffers by name, each with the first element of the task's part.
    """

    def __init__(
        self, attention: Attention, form: Blocks, data: Sequence[Any], score: Epilogue, result: Epilogue,
        memory: dict[str, tuple[Any, Expr]], block: QueryBlock,
    ) -> None:  # fmt: skip
        self.attention, self.form, self.tile = attention, form, form.tile
        self.data, self.score, self.result, self.memory = data, score, result, memory
        self.lead, self.first, self.count = block.lead, block.first, block.count
        self.width, self.columns = attention.widths
        self.query, self.key = (axis.var for axis in attention.product.axes[-2:])
        self.depth = attention.product.reduced[0].var
        axes = attention.product.axes[:-2]
        self.here = {axis.var: index for axis, index in zip(axes, block.lead, strict=True)}
        pairs = zip(attention.places[:-1], block.lead, strict=True)
        self.there = {axis.var: index for axis, index in pairs if axis is not None}
        self.panels = self._tiles(self.tile.columns)
        self.value_step = attention.values.strides[attention.weighted.reduced[0].var]
        self.column_step = attention.values.strides[attention.column.var]
        lanes, two = self.tile.lanes, self.tile.vectors
        self.vectors = [(number * lanes, lanes) for number in range(two)]

    def _tiles(self, size: int) -> Expr:
        return bind(divide(self.count + int64(size - 1), size))

    def _over_panels(self, visit: Callable[[Expr, int], None]) -> None:
        """Call `visit(panel, width)` for each panel of queries; the width of a last one may be one vector.

        The other vectors of a whole panel would be work for nothing.
        """
        size, lanes, queries = self.tile.columns, self.tile.lanes, self.attention.sizes[0]
        left = None if is_dynamic(queries) else int(queries) % self.form.queries % size
        if lanes == size or (left is not None and not 0 < left <= lanes):
            with serial(self.panels) as number:
                visit(number, size)
            return
        wide = bind(divide(self.count + int64(size - 1 - lanes), size))
        with serial(wide) as number:
            visit(number, size)
        with serial(self.panels - wide) as number:
            visit(bind(wide + number), lanes)

    def at(self, name: str, offset: Expr) -> tuple[Any, list[Expr]]:
        """The element `offset` of a part of the scratch memory."""
        buffer, base = self.memory[name]
        return buffer, [base + offset]

    def read(self, name: str, offset: Expr) -> Expr:
        return load(*self.at(name, offset))

    def write(self, name: str, offset: Expr, value: Expr) -> None:
        store(*self.at(name, offset), value)

    @property
    def keys_at_once(self) -> int:
        """Keys whose scores are in memory at a time."""
        return self.form.keys

    def emit(self) -> None:
        """Emit all work on the block."""
        self.begin()
        size, keys = self.keys_at_once, self.attention.sizes[1]
        with serial(ceil_div(keys, size)) as number:
            first_key = bind(number * int64(size))
            some = bind(tirx.min(int64(keys) - first_key, int64(size)))
            self.scores(first_key, some)
            self.weights(some)
            self.values(first_key, some)
        self.finish()

    def begin(self) -> None:
        """Pack the queries; no key has been seen yet."""
        operand, ranges = self.attention.queries, self.score.fused.ranges
        queries, keys = self.attention.sizes
        panels = Panels(
            self.tile, keys, queries, self.width, operand.strides[self.query], operand.strides[self.depth],
            ranges,
        )  # fmt: skip
        start = bind(self.attention.queries.offset({**self.here, self.query: self.first}))
        step = int64(self.attention.queries.strides[self.query])
        buffer, base = self.memory["queries"]
        tile = self.tile.columns
        with serial(self.panels) as panel:
            begin = bind(panel * int64(tile))
            columns = bind(tirx.min(self.count - begin, int64(tile)))
            offset = base + begin * int64(self.width)
            panels.pack(self.data[0], bind(start + begin * step), columns, buffer, bind(offset))
        lanes = self.tile.lanes
        with serial(self.panels * int64(self.tile.vectors)) as block, vector(lanes) as lane:
            position = block * int64(lanes) + lane
            self.write("greatest", position, tirx.const(-math.inf, "float32"))
        with serial(self.panels * int64(self.tile.vectors)) as block, vector(lanes) as lane:
            position = block * int64(lanes) + lane
            self.write("before", position, tirx.const(-math.inf, "float32"))
        with serial(self.panels * int64(self.tile.vectors)) as block, vector(lanes) as lane:
            position = block * int64(lanes) + lane
            self.write("sum", position, tirx.const(0, "float32"))
        with serial(self.count) as row:
            self._over_columns(
                lambda column: self.write(
                    "result", row * int64(self.columns) + column, tirx.const(0, "float32")
                )
            )

    def _over_columns(self, visit: Any) -> None:
        def part(first: Expr, size: int) -> None:
            for offset, width in chunks(size, self.tile.lanes):
                with vector(width) as lane:
                    visit(first + int64(offset) + lane)

        blocks(self.columns, self.tile.lanes, part)

    def scores(self, first_key: Expr, keys: Expr) -> None:
        """Store the scores of `keys` keys as [key][query], and the greatest score of each query.

        The last tile has keys of the tile before it where fewer than a tile's are left: rows of a tile are
        then a constant apart, and their addresses take one register.
        """
        tile, key_step = self.tile, int64(self.attention.keys.strides[self.key])
        start = bind(self.attention.keys.offset(self.here) + first_key * key_step)
        memory, base = self.memory["queries"]
        left = self.attention.sizes[1]
        left = 1 if is_dynamic(left) else int(left) % self.form.keys  # keys of the last block

        def panel_scores(panel: Expr, width: int) -> None:
            vectors = [item for item in self.vectors if item[0] < width]
            column = bind(panel * int64(tile.columns))
            queries = PanelOperand(memory, bind(base + column * int64(self.width)), tile.columns)

            def tile_scores(key: Expr, rows: int) -> None:
                first = bind(start + key * key_step)
                bases = [first + int64(row) * key_step for row in range(rows)]
                key_rows = RowOperand(self.data[1], bases, self.attention.keys.strides[self.depth])
                sums = tile_sums(self.width, key_rows, queries, vectors, tile.left_steps)
                self._store_scores(sums, vectors, column, first_key, key)

            def tiles() -> None:
                with serial(divide(keys + int64(tile.rows - 1), tile.rows)) as block:
                    tile_scores(bind(tirx.min(block * int64(tile.rows), keys - int64(tile.rows))), tile.rows)

            if not 0 < left < tile.rows:
                tiles()
                return
            with builder.If(keys >= int64(tile.rows)):
                with builder.Then():
                    tiles()
                with builder.Else(), serial(keys) as key:
                    tile_scores(key, 1)

        self._over_panels(panel_scores)

    def _store_scores(
        self, sums: Sequence[Sequence[Any]], vectors: Sequence[tuple[int, int]], first_column: Expr,
        first_key: Expr, first_line: Expr,
    ) -> None:  # fmt: skip
        """Store `sums[key][vector]`, from query `first_column` and line `first_line` on, as scores.

        `first_key`: the number of the key of line 0.
        """
        last_query = int64(self.attention.sizes[0]) - int64(1)
        for number, (offset, lanes) in enumerate(vectors):
            top = registers([lanes], "float32")
            column = bind(first_column + int64(offset))
            with vector(lanes) as lane:
                store(top, [lane], self.read("greatest", column + lane))
            for row, sums_of_key in enumerate(sums):
                accumulator, line = sums_of_key[number], bind(first_line + int64(row))
                with vector(lanes) as lane:
                    query = tirx.min(self.first + column + lane, last_query)
                    where = [*self.lead, query, first_key + line]
                    store(accumulator, [lane], self.score.value(where, load(accumulator, [lane])))
                with vector(lanes) as lane:
                    at = line * int64(self.form.queries) + column + lane
                    self.write("scores", at, load(accumulator, [lane]))
                with vector(lanes) as lane:
                    store(top, [lane], tirx.max(load(top, [lane]), load(accumulator, [lane])))
            with vector(lanes) as lane:
                self.write("greatest", column + lane, load(top, [lane]))

    def weights(self, keys: Expr) -> None:
        """Turn scores into exponentials relative to the greatest; update sums and factors of the result."""

        def panel_weights(panel: Expr, width: int) -> None:
            first_column = bind(panel * int64(self.tile.columns))
            accumulators = []
            for offset, lanes in self.vectors:
                if offset >= width:
                    break
                used, sums_of_vector = registers([lanes], "float32"), registers([lanes], "float32")
                column = bind(first_column + int64(offset))
                with vector(lanes) as lane:
                    # Where all scores are -inf: exp(-inf - 0), and not exp(-inf - -inf).
                    top = self.read("greatest", column + lane)
                    nothing = top == tirx.const(-math.inf, "float32")
                    store(used, [lane], tirx.Select(nothing, tirx.const(0, "float32"), top))
                with vector(lanes) as lane:
                    factor = tirx.exp(self.read("before", column + lane) - load(used, [lane]))
                    self.write("factor", column + lane, factor)
                with vector(lanes) as lane:
                    self.write("before", column + lane, self.read("greatest", column + lane))
                with vector(lanes) as lane:
                    scaled = self.read("sum", column + lane) * self.read("factor", column + lane)
                    store(sums_of_vector, [lane], scaled)
                accumulators.append((column, lanes, used, sums_of_vector))
            with serial(keys) as key:
                for column, lanes, used, sums_of_vector in accumulators:
                    line = key * int64(self.form.queries) + column
                    value = registers([lanes], "float32")
                    with vector(lanes) as lane:
                        store(value, [lane], tirx.exp(self.read("scores", line + lane) - load(used, [lane])))
                    with vector(lanes) as lane:
                        self.write("scores", line + lane, load(value, [lane]))
                    with vector(lanes) as lane:
                        store(sums_of_vector, [lane], load(sums_of_vector, [lane]) + load(value, [lane]))
            for column, lanes, _, sums_of_vector in accumulators:
                with vector(lanes) as lane:
                    self.write("sum", column + lane, load(sums_of_vector, [lane]))

        self._over_panels(panel_weights)

    def values(self, first_key: Expr, keys: Expr) -> None:
        """Add the weighted values of `keys` keys to the result, scaled by its factors."""
        attention, rows = self.attention, self.form.rows
        depth = attention.weighted.reduced[0].var
        start = bind(attention.values.offset({**self.there, depth: first_key}))
        memory, base = self.memory["scores"]
        in_place = not is_dynamic(self.column_step) and self.column_step == 1

        def part(first: Expr, size: int) -> None:
            source, begin, step = self.data[2], start + first * int64(self.column_step), self.value_step
            vectors = list(chunks(size, self.tile.lanes))
            if not in_place:
                packed = self._packed(size, keys)
                source, begin_packed = self.memory["values"]
                packed.pack(self.data[2], bind(begin), size, source, begin_packed)
                vectors, begin, step = packed.vectors(size), begin_packed, packed.tile.columns
            columns = PanelOperand(source, bind(begin), step)

            with serial(self._tiles(rows)) as block:
                numbers = [bind(block * int64(rows) + int64(row)) for row in range(rows)]
                bases = [bind(base + row) for row in numbers]
                score_rows = RowOperand(memory, bases, self.form.queries, adjacent=True)
                sums = tile_sums(keys, score_rows, columns, vectors, self.tile.left_steps)
                for row, row_sums in zip(numbers, sums, strict=True):
                    factor = bind(self.read("factor", row))
                    for (offset, width), accumulator in zip(vectors, row_sums, strict=True):
                        for skip, lanes in chunks(min(width, size - offset), width):
                            at = row * int64(self.columns) + first + int64(offset + skip)
                            with vector(lanes) as lane:
                                grown = self.read("result", at + lane) * factor
                                self.write(
                                    "result", at + lane, grown + load(accumulator, [int64(skip) + lane])
                                )

        blocks(self.columns, self.tile.columns, part)

    def _packed(self, columns: int, keys: Expr) -> Panels:
        vectors = ceil_div(columns, self.tile.lanes)
        tile = Tile(self.form.rows, vectors, self.tile.lanes)
        return Panels(
            tile, self.form.queries, columns, keys, self.column_step, self.value_step, self.score.fused.ranges
        )

    def finish(self) -> None:
        """Divide by the sums, and store."""
        attention, one = self.attention, tirx.const(1, "float32")
        with serial(self.count) as row:
            row_sum = bind(self.read("sum", row))
            scale = bind(one / row_sum)
            where = {**self.there, attention.places[-1].var: self.first + row}

            def element(column: Expr) -> None:
                value = self.read("result", row * int64(self.columns) + column) * scale
                if attention.guarded:
                    value = tirx.Select(row_sum > tirx.const(0, "float32"), value, tirx.const(0, "float32"))
                bound = {**where, attention.column.var: column}
                indices = [bound.get(axis.var, int64(0)) for axis in attention.weighted.axes]
                self.result.store(indices, value)

            self._over_columns(element)
