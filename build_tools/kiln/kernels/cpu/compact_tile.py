"""A register tile of a product with stored weights, which are widened in registers (compact_weights.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.compact_weights import StoredPanels, Values
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_prefetch import prefetch
from kiln.kernels.cpu.output_tile import OutputTile
from kiln.tir.builder import bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

# Up to so many rows, the sum of x over a block is kept too: zero points are subtracted once for each block.
_ROWS_SUMMED = 2


# Elements from a load of weights to what is prefetched meanwhile.
_AHEAD = 2048
# ISAs on which a single row prefetches, too. Measured on Emerald Rapids with 16-bit weights: 1.1 to 1.4 times
# as fast where they come from memory, 2 times with 128 MiB, but 0.9 times where a cache still has them.
_ROW_AHEAD = ("sse4", "avx2", "avx512")


class Reader:
    """The vectors of a tile of `columns` columns from column `inside` of panel `panel`."""

    def __init__(self, panels: StoredPanels, panel: Expr, inside: Expr, columns: int) -> None:
        self.panels, self.form, self.inside = panels, panels.form, inside
        tile = self.form.tile
        self.lanes, self.count = tile.lanes, ceil_div(columns, tile.lanes)
        self.first = bind(panel * int64(self.form.panel_size))
        self.first_scale = bind(panel * int64(self.form.scale_size))

    def _panel_and_column(self, v: int) -> tuple[int, int]:
        """The adjacent panel that vector `v` is in, and its first column in this panel."""
        vectors = self.form.tile.vectors
        return v // vectors, v % vectors * self.lanes

    def numbers(self, line: Expr, v: int, count: int) -> list[Values]:
        """The stored numbers of vector `v` for the `count` values of k of the line at element `line`."""
        panel, column = self._panel_and_column(v)
        offset = self.first + int64(panel * self.form.panel_size) + line + self.inside
        return self.panels.numbers(offset, column, count)

    def prefetch(self, line: Expr, v: int, ahead: int) -> None:
        """Emit a prefetch of the weights `ahead` elements after vector `v` of the line at `line`."""
        panel, column = self._panel_and_column(v)
        offset = self.first + int64(panel * self.form.panel_size + column) + line + self.inside
        prefetch(self.panels.buffers[0], offset + int64(ahead))

    def words(self, line: Expr, v: int, ahead: int = 0) -> Expr:
        """The stored words of vector `v` in the line at element `line` of the panel, as one vector.

        The word `ahead` words later is prefetched; it may be past the end of the weights.
        """
        panel, column = self._panel_and_column(v)
        offset = bind(self.first + int64(panel * self.form.panel_size + column) + line + self.inside)
        if ahead:
            prefetch(self.panels.buffers[0], offset + int64(ahead))
        return load(self.panels.buffers[0], [ramp(offset, self.lanes)])

    def scale_at(self, run: Expr, v: int) -> Expr:
        """The place of the scale of run `run` and the first column of vector `v`."""
        panel, column = self._panel_and_column(v)
        which = run * int64(self.form.tile.columns) if self.form.is_blocked else int64(0)
        start = self.first_scale + int64(panel * self.form.scale_size)
        return start + which + self.inside + int64(column)

    def row_scale_at(self, k: Expr, v: int) -> Expr:
        """The place of the scale of `k` for vector `v`, where each k has one."""
        panel, _ = self._panel_and_column(v)
        return self.first_scale + int64(panel * self.form.scale_size) + k


class _Sums:
    """Sums of a tile: [vectors, lanes] for each row; where zero points need them, sums of x too."""

    def __init__(self, rows: int, vectors: int, lanes: int, summed: bool) -> None:
        # One buffer per row: TVM puts buffers of more than 1 KiB on the heap.
        self.rows = [registers([vectors, lanes], "float32") for _ in range(rows)]
        self.x = [registers([1], "float32") for _ in range(rows if summed else 0)]
        self.vectors, self.lanes = vectors, lanes

    def clear(self) -> None:
        for row in self.rows:
            for v in range(self.vectors):
                with vector(self.lanes) as lane:
                    store(row, [int64(v), lane], tirx.const(0, "float32"))
        for sums in self.x:
            store(sums, [int64(0)], tirx.const(0, "float32"))


class _Emitter:
    """Emits the sums of one tile into `total`; blocks have sums of their own where that is cheaper.

    `bases`: offset in `x` of each row's first element.
    """

    def __init__(self, reader: Reader, conv: Convolution, x: Any, bases: Sequence[Expr]) -> None:
        self.reader, self.form, self.conv, self.x, self.bases = reader, reader.form, conv, x, bases
        form, panels = self.form, reader.panels
        scaled = not form.encoding.is_float and not form.by_row
        few = len(bases) <= _ROWS_SUMMED
        # Whether the scale of a column multiplies whole sums, of each block or of all k.
        self.late = scaled and (few or not form.is_blocked)
        self.summed = self.late and panels.has_zero and few
        self.by_block = self.late and form.is_blocked
        count, lanes = reader.count, reader.lanes
        self.total = _Sums(len(bases), count, lanes, self.summed and not self.by_block)
        self.sums = _Sums(len(bases), count, lanes, self.summed) if self.by_block else self.total
        ahead = len(bases) > 1 or panels.machine.isa in _ROW_AHEAD
        self.ahead = _AHEAD if ahead and lanes > 1 else 0
        # Scale and zero point of each vector, where they multiply the weights themselves.
        early = scaled and not (self.late and (self.summed or not panels.has_zero))
        self.factors = [registers([2, lanes], "float32") for _ in range(count if early else 0)]

    def emit(self) -> None:
        """Emit the sums of the tile into `total`."""
        self.total.clear()
        if self.factors and not self.form.is_blocked:
            self._load_factors(int64(0))
        conv, form = self.conv, self.form
        blocks = conv.depth // form.run

        def position(i: Expr, j: Expr) -> None:
            x = i * int64(conv.dilation_h * conv.width * conv.pitch) + j * int64(conv.dilation_w * conv.pitch)
            number = (i * int64(conv.kernel_w) + j) * int64(blocks)
            self._loop(blocks, lambda block: self._run(
                bind(number + block), bind(x + block * int64(form.run)), form.run))  # fmt: skip
            if form.last_run:
                self._run(bind(number + int64(blocks)), bind(x + int64(blocks * form.run)), form.last_run)

        self._loop(conv.kernel_h, lambda i: self._loop(conv.kernel_w, lambda j: position(i, j)))
        if self.late and not self.by_block:
            self._scale_total()

    def _loop(self, count: int, inside: Callable[[Expr], None]) -> None:
        if count == 1:
            inside(int64(0))
        elif count:
            with serial(count) as index:
                inside(index)

    def _load_factors(self, run: Expr) -> None:
        panels = self.reader.panels
        for v, factor in enumerate(self.factors):
            at = self.reader.scale_at(run, v)
            for index, read in enumerate((panels.scale, panels.zero)):
                with vector(self.reader.lanes) as lane:
                    store(factor, [int64(index), lane], read(at + lane))

    def _run(self, run: Expr, x: Expr, length: int) -> None:
        """Emit run number `run` of `length` k, whose first elements of x are at `x` from the bases."""
        form = self.form
        line = bind(run * int64(form.lines(form.run) * form.tile.columns))
        if self.by_block:
            self.sums.clear()
        if self.factors and form.is_blocked:
            self._load_factors(run)
        per_word = form.per_word

        def step(index: Expr, count: int) -> None:
            k = index * int64(per_word)
            self._step(line + index * int64(form.tile.columns), x + k, run * int64(form.run) + k, count)

        if length // per_word:
            with serial(length // per_word) as index:
                step(index, per_word)
        if length % per_word:
            step(int64(length // per_word), length % per_word)
        if self.by_block:
            self._add_block(run)

    def _step(self, line: Expr, x: Expr, k: Expr, count: int) -> None:
        """Emit the products of the `count` k stored at `line`."""
        lanes, panels = self.reader.lanes, self.reader.panels
        for offset in range(count):
            data = [load(self.x, [base + x + int64(offset)]) for base in self.bases]
            for total, value in zip(self.sums.x, data, strict=False):
                store(total, [int64(0)], load(total, [int64(0)]) + value)
            if self.ahead and not offset:
                for v in range(0, self.reader.count, 2):
                    self.reader.prefetch(line, v, self.ahead)
            numbers = [self.reader.numbers(line, v, count)[offset] for v in range(self.reader.count)]
            for row, v in self._order():
                with vector(lanes) as lane:
                    weight = self._weight(numbers[v](lane), v, lane, k + int64(offset), panels)
                    total, indices = self.sums.rows[row], [int64(v), lane]
                    store(total, indices, load(total, indices) + data[row] * weight)

    def _order(self) -> list[tuple[int, int]]:
        """The products of one k as pairs (row, vector of columns), in the order in which they are computed.

        The longer side is outside, and LLVM keeps what it reads of the other side in registers. In the other
        order it spills sums of tiles that fill the registers: on Emerald Rapids 12 rows took 3 times as long
        on AVX-512, 1.4 times on AVX2.
        """
        rows, vectors = range(len(self.bases)), range(self.reader.count)
        if len(rows) >= len(vectors):
            return [(row, v) for row in rows for v in vectors]
        return [(row, v) for v in vectors for row in rows]

    def _weight(self, number: Expr, v: int, lane: Expr, k: Expr, panels: StoredPanels) -> Expr:
        """The weight for a stored number, without the factors that are applied to its sum later."""
        if self.form.by_row:
            scale_index = self.reader.row_scale_at(k, v)
            return ((number - panels.zero(scale_index)) if panels.has_zero else number) * panels.scale(
                scale_index
            )
        if not self.factors:
            return number
        if panels.has_zero:
            number = number - load(self.factors[v], [int64(1), lane])
        return number if self.late else number * load(self.factors[v], [int64(0), lane])

    def _scaled(self, row: int, v: int, lane: Expr, scale_index: Expr) -> Expr:
        """The sum of a block after subtraction of its zero points and multiplication by its scale."""
        value, panels = load(self.sums.rows[row], [int64(v), lane]), self.reader.panels
        if self.summed:
            value = value - panels.zero(scale_index + lane) * load(self.sums.x[row], [int64(0)])
        return value * panels.scale(scale_index + lane)

    def _add_block(self, run: Expr) -> None:
        for v in range(self.reader.count):
            scale_index = bind(self.reader.scale_at(run, v))
            for row, row_total in enumerate(self.total.rows):
                with vector(self.reader.lanes) as lane:
                    indices = [int64(v), lane]
                    store(
                        row_total, indices, load(row_total, indices) + self._scaled(row, v, lane, scale_index)
                    )

    def _scale_total(self) -> None:
        for v in range(self.reader.count):
            scale_index = bind(self.reader.scale_at(int64(0), v))
            for row, row_total in enumerate(self.total.rows):
                with vector(self.reader.lanes) as lane:
                    store(row_total, [int64(v), lane], self._scaled(row, v, lane, scale_index))


def emit_tile(reader: Reader, conv: Convolution, out: OutputTile, x: Any, bases: Sequence[Expr]) -> None:
    """Emit the computation and the store of one tile; `bases`: offset in `x` of each row's first element."""
    emitter = _Emitter(reader, conv, x, bases)
    emitter.emit()
    store_tile(reader.lanes, out, emitter.total.rows)


def store_tile(lanes: int, out: OutputTile, sums: Sequence[Any]) -> None:
    """Emit the stores of a tile; `sums`: for each row a buffer of [vectors, `lanes`]."""

    def sums_of(accumulator: Any) -> Callable[[int, int, Expr], Expr]:
        return lambda v, offset, lane: load(accumulator, [int64(v), int64(offset) + lane])

    for row, accumulator in zip(out.rows, sums, strict=True):
        out.store(row, lanes, sums_of(accumulator))
