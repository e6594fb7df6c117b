"""The work of an attention kernel on one block of queries; see kernels/cpu/attention.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

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
        self.panels = bind(divide(self.count + int64(self.tile.columns - 1), self.tile.columns))
        self.value_step = attention.values.strides[attention.weighted.reduced[0].var]
        self.column_step = attention.values.strides[attention.column.var]
        lanes, two = self.tile.lanes, self.tile.vectors
        self.vectors = [(number * lanes, lanes) for number in range(two)]

    def at(self, name: str, offset: Expr) -> tuple[Any, list[Expr]]:
        """The element `offset` of a part of the scratch memory."""
        buffer, base = self.memory[name]
        return buffer, [base + offset]

    def read(self, name: str, offset: Expr) -> Expr:
        return load(*self.at(name, offset))

    def write(self, name: str, offset: Expr, value: Expr) -> None:
        store(*self.at(name, offset), value)

    def emit(self) -> None:
        """Emit all work on the block."""
        self.begin()
        size, keys = self.form.keys, self.attention.sizes[1]
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
        """Store the scores of `keys` keys as [key][query], and the greatest score of each query."""
        attention, tile = self.attention, self.tile
        queries, keys_all = attention.sizes
        start = bind(attention.keys.offset(self.here))
        step = int64(attention.keys.strides[self.key])
        memory, base = self.memory["queries"]
        with serial(divide(keys + int64(tile.rows - 1), tile.rows)) as block, serial(self.panels) as panel:
            rows = [bind(first_key + block * int64(tile.rows) + int64(row)) for row in range(tile.rows)]
            rows = [bind(tirx.min(row, int64(keys_all) - int64(1))) for row in rows]
            bases = [bind(start + row * step) for row in rows]
            first_column = bind(panel * int64(tile.columns))
            first_query = bind(base + first_column * int64(self.width))
            key_rows = RowOperand(self.data[1], bases, attention.keys.strides[self.depth])
            packed_queries = PanelOperand(memory, first_query, tile.columns)
            sums = tile_sums(self.width, key_rows, packed_queries, self.vectors, self.tile.left_steps)
            for number, (offset, lanes) in enumerate(self.vectors):
                top = registers([lanes], "float32")
                with vector(lanes) as lane:
                    store(top, [lane], self.read("greatest", first_column + int64(offset) + lane))
                for row, key in enumerate(rows):
                    accumulator = sums[row][number]
                    with vector(lanes) as lane:
                        query = tirx.min(
                            self.first + first_column + int64(offset) + lane, int64(queries) - int64(1)
                        )
                        where = [*self.lead, query, key]
                        store(accumulator, [lane], self.score.value(where, load(accumulator, [lane])))
                    line = (block * int64(tile.rows) + int64(row)) * int64(self.form.queries)
                    with vector(lanes) as lane:
                        self.write(
                            "scores", line + first_column + int64(offset) + lane, load(accumulator, [lane])
                        )
                    with vector(lanes) as lane:
                        store(top, [lane], tirx.max(load(top, [lane]), load(accumulator, [lane])))
                with vector(lanes) as lane:
                    self.write("greatest", first_column + int64(offset) + lane, load(top, [lane]))

    def weights(self, keys: Expr) -> None:
        """Turn scores into exponentials relative to the greatest; update sums and factors of the result."""
        with serial(self.panels) as panel:
            first_column = bind(panel * int64(self.tile.columns))
            accumulators = []
            for offset, lanes in self.vectors:
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
            with serial(divide(self.count + int64(rows - 1), rows)) as block:
                numbers = [bind(block * int64(rows) + int64(row)) for row in range(rows)]
                bases = [bind(base + row) for row in numbers]
                score_rows = RowOperand(memory, bases, self.form.queries, adjacent=True)
                columns = PanelOperand(source, bind(begin), step)
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
