"""Sums of products of int8 rows with stored blocks of weights: an int32 for each block, scaled in float32.

    sum of x * w = sum over the blocks of scale * (sum of x * n - Z * sum of x),    w = scale * (n - Z)

with n a stored number and Z its zero point. Numbers of 4 bits are 0 to 15; those of 8 bits are bytes with a
sign, or 128 more where the instruction takes unsigned weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.block_method import BlockMethod
from kiln.kernels.cpu.block_rows import GROUP, BlockRows, RunOfRows
from kiln.kernels.cpu.compact_weights import StoredPanels
from kiln.kernels.cpu.gemm_prefetch import prefetch
from kiln.kernels.cpu.int8_operands import IntegerOperands
from kiln.kernels.cpu.runtime_product import multiply_pairs
from kiln.tir.builder import bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

# Flips the top bit of each byte: signed bytes become unsigned ones, 128 more.
_SIGNS, _LOW_HALVES = -0x7F7F7F80, 0x0F0F0F0F
# By lanes: LLVM's name of pmaddubsw.
_BYTES = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}
# Vectors of weights that stay in registers. Sums of 16 bits hold 8 products by weights of 4 bits:
# 8 * 2 * 15 * 128 < 2^15.
_HELD = 8
# Words from a load of weights to what is prefetched meanwhile, where they are read once.
_AHEAD = 1024


@dataclass(frozen=True)
class TileScratch:
    """Memory of a task for a tile: float32 totals, [row][column of the panel], from element `at` on.

    `sums`: int32 sums of several chunks of a block, [row][lane], from `first_sum` on; for methods that are
    `chunked`.
    """

    totals: Any
    at: Expr
    sums: Any
    first_sum: Expr


class BlockSums:
    """Emits sums of one panel of columns; `rows`: the copies of x. `streams`: weights are read once."""

    def __init__(
        self, panels: StoredPanels, method: BlockMethod, rows: BlockRows, scratch: TileScratch, streams: bool
    ) -> None:
        self.panels, self.form, self.method, self.rows = panels, panels.form, method, rows
        self.scratch, self.totals, self.at, self.lanes = scratch, scratch.totals, scratch.at, method.lanes
        self.vectors, self.streams = self.form.tile.columns // self.lanes, streams
        self.has_zero = self.form.encoding.has_zero
        tile = self.form.tile
        self.operands = IntegerOperands(
            method.name, method.arm32, tile, (), 0, 0, 0, "groups", wide=not method.is_int4
        )

    def emit(self, panel: Expr, copy: Expr, first: Expr, count: Expr | int) -> None:
        """Emit the totals of `count` rows of copy `copy`, from its row `first` on, with panel `panel`.

        `count` is a number, unless the method is `chunked`.
        """
        line = bind(panel * int64(self.form.panel_size))
        scale = bind(panel * int64(self.form.scale_size))
        with serial(count) as row:
            for v in range(self.vectors):
                with vector(self.lanes) as lane:
                    store(self.totals, [self._total(row, v) + lane], tirx.const(0, "float32"))

        def visit(run: RunOfRows, pitch: int) -> None:
            form = self.form
            words = bind(line + run.number * int64(form.lines(form.run) * form.tile.columns))
            which = run.number if form.is_blocked else int64(0)
            scales = bind(scale + which * int64(form.tile.columns))
            x = bind(self.rows.place(copy, run.number) + first * int64(pitch))
            sums = self.rows.sum_at(copy, run.number, first)
            block = _Block(run.length, pitch, words, scales, x, sums)
            if self.method.chunked:
                self._in_chunks(block, count)
            else:
                self._in_registers(block, range(int(count)))

        self.rows.each_run(visit)

    def _total(self, row: Expr, v: int | Expr) -> Expr:
        return self.at + row * int64(self.form.tile.columns) + self._column(v)

    def _column(self, v: int | Expr) -> Expr:
        """The first column of vector `v` in a panel."""
        return int64(v * self.lanes) if isinstance(v, int) else v * int64(self.lanes)

    def _words(self, block: _Block, line: Expr, v: int | Expr) -> Expr:
        """The stored words of vector `v` in line number `line` of a block."""
        place = bind(block.words + line * int64(self.form.tile.columns) + self._column(v))
        if self.streams and self.lanes > 1:
            prefetch(self.panels.buffers[0], place + int64(_AHEAD))
        return bind(self._vector(self.panels.buffers[0], place))

    def _vector(self, buffer: Any, place: Expr) -> Expr:
        return load(buffer, [place if self.lanes == 1 else ramp(place, self.lanes)])

    def _store(self, buffer: Any, place: Expr, value: Expr) -> None:
        store(buffer, [place if self.lanes == 1 else ramp(place, self.lanes)], value)

    def _type(self, dtype: str) -> str:
        return dtype if self.lanes == 1 else f"{dtype}x{self.lanes}"

    def _wide(self, value: Expr | int) -> Expr:
        """`value`, an int32, in every lane."""
        one = tirx.const(value, "int32") if isinstance(value, int) else value
        return one if self.lanes == 1 else tirx.Broadcast(one, self.lanes)

    def _factors(self, block: _Block, v: int | Expr) -> _Factors:
        """Emit the loads of the scales of vector `v`, and of its zero points where there are any."""
        place = bind(block.scales + self._column(v))
        scales = registers([self.lanes], "float32")
        with vector(self.lanes) as lane:
            store(scales, [lane], self.panels.scale(place + lane))
        zeros = None
        if self.has_zero:
            stored = tirx.Cast(self._type("int32"), self._vector(self.panels.buffers[2], place))
            zeros = bind(stored + self._wide(self.method.offset))
        return _Factors(bind(self._vector(scales, int64(0))), zeros)

    def _add(self, block: _Block, row: Expr, v: int | Expr, total: Expr, factors: _Factors) -> None:
        """Emit the addition of a block's sums of products, `total`, to the totals of row `row`."""
        if self.rows.sums is not None:
            sums = self._wide(load(self.rows.sums, [block.sums + row]))
            total = total + (sums if factors.zeros is None else sums * factors.zeros)
        place = self._total(row, v)
        value = tirx.Cast(self._type("float32"), total) * factors.scales
        self._store(self.totals, place, self._vector(self.totals, place) + value)

    def _word(self, place: Expr) -> Expr:
        """32 bits of x from element `place` on, in every lane: four bytes, or a pair of 16 bits."""
        count = 2 if self.method.in_pairs else GROUP
        word = tirx.reinterpret("int32", load(self.rows.elements, [ramp(place, count)]))
        return tirx.reinterpret(f"{self.rows.dtype}x{count * self.lanes}", tirx.Broadcast(word, self.lanes))

    def _in_chunks(self, block: _Block, count: Expr | int) -> None:
        """Emit a block by chunks of weights that fit the registers, one vector of columns after the other."""
        per_line = self.form.per_word
        together = _HELD // ((1 + self.method.in_pairs) * (1 + self.method.is_int4))  # lines
        whole, rest = divmod(self.form.lines(block.length), together)
        held = self.scratch.sums if whole + (rest > 0) > 1 else None

        def chunk(line: Expr, lines: int, v: Expr, factors: _Factors, begins: bool) -> None:
            levels = [part for n in range(lines) for part in self._levels(block, line + int64(n), v)]
            with serial(count) as number:
                row = bind(number)
                x = bind(block.x + row * int64(block.pitch) + line * int64(per_line))
                total = self._sum(levels, x)
                if held is None:
                    self._add(block, row, v, total, factors)
                    return
                place = bind(self.scratch.first_sum + row * int64(self.lanes))
                self._store(held, place, total if begins else self._vector(held, place) + total)

        with serial(self.vectors) as index:
            v = bind(index)
            factors = self._factors(block, v)
            if whole:
                chunk(int64(0), together, v, factors, True)
            if whole > 1:
                with serial(whole - 1, 1) as number:
                    chunk(bind(number * int64(together)), together, v, factors, False)
            if rest:
                chunk(int64(whole * together), rest, v, factors, not whole)
            if held is not None:
                with serial(count) as number:
                    row = bind(number)
                    place = bind(self.scratch.first_sum + row * int64(self.lanes))
                    self._add(block, row, v, self._vector(held, place), factors)

    def _levels(self, block: _Block, line: Expr, v: Expr | int) -> list[Expr]:
        """The stored numbers of a line: vectors of bytes, or of 16 bits, in the order of the words of x."""
        word = self._words(block, line, v)
        words = [word]
        if self.method.is_int4:
            words = [part & self._wide(_LOW_HALVES) for part in (word, word >> self._wide(4))]
        if not self.method.in_pairs:
            return [bind(tirx.reinterpret(f"int8x{GROUP * self.lanes}", part)) for part in words]
        pairs, eight = [], tirx.Broadcast(tirx.const(8, "int16"), 2 * self.lanes)
        for part in words:
            halves = bind(tirx.reinterpret(f"int16x{2 * self.lanes}", part))
            pairs += [bind((halves << eight) >> eight), bind(halves >> eight)]
        return pairs

    def _sum(self, levels: Sequence[Expr], x: Expr) -> Expr:
        """The sums of products of the vectors `levels` with the words of x from element `x` on."""
        lanes, total = self.lanes, None
        size = 2 if self.method.in_pairs else GROUP
        for number, level in enumerate(levels):
            word = self._word(x + int64(size * number))
            if self.method.in_pairs:
                product = multiply_pairs(self.method.name, lanes, level, word)
            else:
                product = tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", _BYTES[lanes], level, word)
            total = product if total is None else total + product
        if not self.method.in_pairs:
            total = multiply_pairs("pairs", lanes, total, tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes))
        return bind(total)

    def _in_registers(self, block: _Block, rows: range) -> None:
        """Emit a block of `rows` rows by sums of 32 bits in registers."""
        lanes = self.lanes
        held = [[registers([lanes], "int32") for _ in range(self.vectors)] for _ in rows]
        for sums_of_row in held:
            for sums in sums_of_row:
                self._store(sums, int64(0), self._wide(0))
        per_line = self.form.per_word

        def line(number: Expr, groups: int) -> None:
            number = bind(number)
            words = [self._words(block, number, v) for v in range(self.vectors)]
            for group in range(groups):
                rights = [self._right(word, group) for word in words]
                for row, sums_of_row in zip(rows, held, strict=True):
                    place = block.x + int64(row * block.pitch + GROUP * group) + number * int64(per_line)
                    self._multiply(bind(place), rights, sums_of_row)

        whole, rest = divmod(block.length, per_line)
        if whole:
            with serial(whole) as number:
                line(number, per_line // GROUP)
        if rest:
            line(int64(whole), -(-rest // GROUP))
        for v in range(self.vectors):
            factors = self._factors(block, v)
            for row, sums_of_row in zip(rows, held, strict=True):
                self._add(block, int64(row), v, self._vector(sums_of_row[v], int64(0)), factors)

    def _right(self, word: Expr, group: int) -> list[Expr]:
        """The weights of group number `group` of a line, as the method multiplies them."""
        if self.method.name == "plain":
            return [self._number(word, group, k) for k in range(GROUP)]
        if self.method.is_int4:
            word = (word >> self._wide(4) if group else word) & self._wide(_LOW_HALVES)
        elif self.method.offset:
            word = tirx.bitwise_xor(word, self._wide(_SIGNS))
        values = tirx.reinterpret(f"int8x{GROUP * self.lanes}", word)
        if self.method.centred:
            values = values - tirx.Broadcast(tirx.const(8, "int8"), GROUP * self.lanes)
        return self.operands.split(bind(values))

    def _number(self, word: Expr, group: int, k: int) -> Expr:
        """Stored number `k` of a group, as an int32."""
        if self.method.is_int4:
            shift = 8 * k + 4 * group
            return bind((word >> self._wide(shift) if shift else word) & self._wide(15))
        shift = 24 - 8 * k
        return bind((word << self._wide(shift) if shift else word) >> self._wide(24))

    def _multiply(self, place: Expr, rights: Sequence[list[Expr]], sums_of_row: Sequence[Any]) -> None:
        """Emit the products of four bytes of x from `place` on with the weights of each vector of columns."""
        if self.method.name == "plain":
            for k in range(GROUP):
                x = self._wide(tirx.Cast("int32", load(self.rows.elements, [place + int64(k)])))
                for sums, right in zip(sums_of_row, rights, strict=True):
                    self._store(sums, int64(0), self._vector(sums, int64(0)) + x * right[k])
            return
        left = self.operands.left(self.rows.elements, place, None)
        for sums, right in zip(sums_of_row, rights, strict=True):
            operands = (right, left) if self.method.name == "vnni" else (left, right)
            product = self.operands.multiply(self._vector(sums, int64(0)), *operands)
            self._store(sums, int64(0), product)


@dataclass(frozen=True)
class _Block:
    """A run of k: its length, bytes between rows of x, and where its words, scales, x and sums of x begin."""

    length: int
    pitch: int
    words: Expr
    scales: Expr
    x: Expr
    sums: Expr


@dataclass(frozen=True)
class _Factors:
    """The scales of a vector of columns in a block, and their zero points; None: all have the method's."""

    scales: Expr
    zeros: Expr | None
