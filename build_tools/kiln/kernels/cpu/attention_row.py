"""The work of an attention kernel on one query, as a decoder has in each step; see kernels/cpu/attention.py.

The keys are the lanes of the scores: a key and the query, which are contiguous, are multiplied in vectors
along the width of the head, whose lanes a transpose in registers adds. A tile of queries would compute a
whole vector of queries for one that is used.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu.attention_block import AttentionBlock, Blocks
from kiln.kernels.cpu.attention_nests import Attention
from kiln.tir.builder import bind, chunks, load, registers, serial, store, vector
from kiln.tir.symbols import ceil_div, floor_div, int64, is_dynamic
from kiln.tir.tiled_loops import blocks
from kiln.tir.transpose import sums_of_lanes

# The most queries of a block that are computed one by one: with 512 keys of 32 elements, three take as long
# as a vector of queries. Measured on Zen 4 with AVX-512.
MOST = 2
# Sums of values that are computed side by side, so that a multiply-add need not wait for the one before.
_CHAINS = 8
_LOWEST = tirx.const(-math.inf, "float32")


def applies(attention: Attention, form: Blocks) -> bool:
    """Whether a block may have at most MOST queries, and keys and values are contiguous as is needed."""
    queries, lanes = attention.sizes[0], form.tile.lanes
    if not is_dynamic(queries) and not 1 <= queries % form.queries <= MOST:
        return False
    depth, column = attention.product.reduced[0].var, attention.column.var
    steps = attention.keys.strides[depth], attention.values.strides[column]
    is_power = lanes > 1 and lanes & (lanes - 1) == 0
    return is_power and all(not is_dynamic(step) and step == 1 for step in steps)


class AttentionRow(AttentionBlock):
    """Emits the work on one query, with the same scratch memory as for other blocks."""

    @property
    def keys_at_once(self) -> int:
        """As many keys as there is memory for the scores of a whole block of queries."""
        return self.form.keys * self.form.queries // self.tile.lanes * self.tile.lanes

    def begin(self) -> None:
        """Copy the query; no key has been seen yet."""
        operand = self.attention.queries
        start = bind(operand.offset({**self.here, self.query: self.first}))
        with serial(self.width) as k:
            self.write("queries", k, load(self.data[0], [start + k * int64(operand.strides[self.depth])]))
        for name, value in (("greatest", _LOWEST), ("before", _LOWEST), ("sum", tirx.const(0, "float32"))):
            self.write(name, int64(0), value)
        self._over_columns(lambda column: self.write("result", column, tirx.const(0, "float32")))

    def scores(self, first_key: Expr, keys: Expr) -> None:
        """Store the scores of `keys` keys, and the greatest score."""
        lanes = self.tile.lanes
        top = registers([lanes], "float32")
        with vector(lanes) as lane:
            store(top, [lane], self.read("greatest", int64(0)))
        with serial(ceil_div(keys, lanes)) as tile:
            before = bind(tile * int64(lanes))
            with builder.If(before + int64(lanes) <= keys):
                with builder.Then():
                    self._tile(first_key, before, top, None)
                with builder.Else():
                    self._tile(first_key, before, top, keys)
        for lane_number in range(lanes):
            greatest = self.read("greatest", int64(0))
            self.write("greatest", int64(0), tirx.max(greatest, load(top, [int64(lane_number)])))

    def _tile(self, first_key: Expr, before: Expr, top: Any, keys: Expr | None) -> None:
        """Store the scores of as many keys as a vector has lanes, after `before` others of this block.

        `keys`: the number of keys of the block, where these are the last; lanes after them are -inf.
        """
        operand, lanes = self.attention.keys, self.tile.lanes

        def key(number: Expr) -> Expr:
            place = before + number
            return first_key + (place if keys is None else tirx.min(place, keys - int64(1)))

        start = bind(operand.offset(self.here))
        starts = [
            bind(start + key(int64(number)) * int64(operand.strides[self.key])) for number in range(lanes)
        ]
        sums = [registers([lanes], "float32") for _ in starts]
        for accumulator in sums:
            with vector(lanes) as lane:
                store(accumulator, [lane], tirx.const(0, "float32"))

        def add(k: Expr, width: int) -> None:
            for one, accumulator in zip(starts, sums, strict=True):
                with vector(width) as lane:
                    product = self.read("queries", k + lane) * load(self.data[1], [one + k + lane])
                    store(accumulator, [lane], load(accumulator, [lane]) + product)

        width = int(self.width)
        with serial(width // lanes) as block:
            add(bind(block * int64(lanes)), lanes)
        for offset, rest in chunks(width % lanes, lanes):
            add(int64(width // lanes * lanes + offset), rest)
        [score] = sums_of_lanes(sums, lanes)
        with vector(lanes) as lane:
            store(score, [lane], self.score.value([*self.lead, self.first, key(lane)], load(score, [lane])))
        if keys is not None:
            with vector(lanes) as lane:
                store(score, [lane], tirx.Select(before + lane < keys, load(score, [lane]), _LOWEST))
        with vector(lanes) as lane:
            self.write("scores", before + lane, load(score, [lane]))
        with vector(lanes) as lane:
            store(top, [lane], tirx.max(load(top, [lane]), load(score, [lane])))

    def weights(self, keys: Expr) -> None:
        """Turn scores into exponentials relative to the greatest; update the sum and the result's factor."""
        lanes, zero = self.tile.lanes, int64(0)
        top = bind(self.read("greatest", zero))
        # Where all scores are -inf: exp(-inf - 0), and not exp(-inf - -inf).
        used = bind(tirx.Select(top == _LOWEST, tirx.const(0, "float32"), top))
        self.write("factor", zero, tirx.exp(self.read("before", zero) - used))
        self.write("before", zero, top)
        sums = registers([lanes], "float32")
        with vector(lanes) as lane:
            store(sums, [lane], tirx.const(0, "float32"))
        with serial(ceil_div(keys, lanes)) as tile:
            value = registers([lanes], "float32")
            with vector(lanes) as lane:
                store(value, [lane], tirx.exp(self.read("scores", tile * int64(lanes) + lane) - used))
            with vector(lanes) as lane:
                self.write("scores", tile * int64(lanes) + lane, load(value, [lane]))
            with vector(lanes) as lane:
                store(sums, [lane], load(sums, [lane]) + load(value, [lane]))
        self.write("sum", zero, self.read("sum", zero) * self.read("factor", zero))
        for lane_number in range(lanes):
            self.write("sum", zero, self.read("sum", zero) + load(sums, [int64(lane_number)]))

    def values(self, first_key: Expr, keys: Expr) -> None:
        """Add the weighted values of `keys` keys to the result, scaled by its factor."""
        operand, depth = self.attention.values, self.attention.weighted.reduced[0].var
        start = bind(operand.offset({**self.there, depth: first_key}))

        def part(first: Expr, size: int) -> None:
            vectors = list(chunks(size, self.tile.lanes))
            side_by_side = max(1, _CHAINS // len(vectors))
            sums = [[registers([width], "float32") for _, width in vectors] for _ in range(side_by_side)]
            for row in sums:
                for accumulator, (_, width) in zip(row, vectors, strict=True):
                    with vector(width) as lane:
                        store(accumulator, [lane], tirx.const(0, "float32"))

            def add(key: Expr, row: list[Any]) -> None:
                weight = bind(self.read("scores", key))
                line = bind(start + key * int64(self.value_step) + first)
                for accumulator, (offset, width) in zip(row, vectors, strict=True):
                    with vector(width) as lane:
                        product = weight * load(self.data[2], [line + int64(offset) + lane])
                        store(accumulator, [lane], load(accumulator, [lane]) + product)

            whole = bind(floor_div(keys, side_by_side))
            with serial(whole) as group:
                for number, row in enumerate(sums):
                    add(bind(group * int64(side_by_side) + int64(number)), row)
            with serial(keys - whole * int64(side_by_side)) as rest:
                add(bind(whole * int64(side_by_side) + rest), sums[0])
            factor = bind(self.read("factor", int64(0)))
            for number, (offset, width) in enumerate(vectors):
                with vector(width) as lane:
                    value = self.read("result", first + int64(offset) + lane) * factor
                    for row in sums:
                        value = value + load(row[number], [lane])
                    self.write("result", first + int64(offset) + lane, value)

        blocks(self.columns, 4 * self.tile.lanes, part)
