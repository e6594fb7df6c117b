"""Products of one row with weights in 8 or 4 bits, by instructions that add products of bytes.

Converting every weight to float32 takes longer than loading it. Here weights stay bytes: x is rounded to 24
bits of the greatest of each run, as three signed bytes, and each byte of x is multiplied with the weights as
they are stored; the sums are exact. So x has the precision of a float32 of the run's greatest magnitude.

VNNI adds four products u8 x s8 in 32 bits, ARM's SDOT four products s8 x s8. Other x86 has pmaddubsw, which
adds two in 16 bits with saturation: never reached by 4-bit levels, since eight such sums are at most
8 * 2 * 15 * 128 < 2^15. They are then widened by pmaddwd. Levels of 8 bits are converted to float32 instead.

    sum of x * w = (S2 * 2^16 + S1 * 2^8 + S0 - zero * sum of units) * unit * scale,  S = sum of byte * level
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.compact_tile import Reader
from kiln.kernels.cpu.compact_weights import CompactForm
from kiln.kernels.cpu.runtime_product import dot_of_four
from kiln.tir.builder import Machine, bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

# Bytes of x, and its greatest magnitude in units: the highest byte must stay below 128.
_PARTS = 3
_MOST = (1 << 23) - (1 << 16)
# Greatest and least magnitudes of x that are distinguished from infinity and zero.
_LARGEST, _LEAST = 3.4e38, 1e-30
# Fewer columns: preparing x takes longer than this saves.
_LEAST_COLUMNS = 128
# Words from a load to what is prefetched meanwhile: loads alone reach 70 % of the memory's bandwidth.
_AHEAD = 1024
# Longest run whose sums of products of bytes fit 32 bits.
_LONGEST_RUN = (1 << 31) // (255 * 128) - 1
# An exclusive or with _SIGNS flips the top bit of each byte: signed bytes of int8 weights become unsigned.
_SIGNS, _LOW_HALVES = -0x7F7F7F80, 0x0F0F0F0F
_BIAS = 128
# By number of 32-bit lanes: names of pmaddubsw and of pmaddwd; and how many stored lines of eight 4-bit
# levels a sum of 16 bits may have.
_BYTES = {
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
_LINES = 4
_DOT = ("vnni", "sdot", "i8mm")  # instructions that add four products in 32 bits


def method_of(machine: Machine) -> str:
    """The instruction that multiplies bytes: vnni, sdot, or pmaddubsw for levels of 4 bits alone."""
    return {"i8mm": "sdot"}.get(machine.dot, machine.dot) if machine.dot in _DOT else "pmaddubsw"


def applies(form: CompactForm, machine: Machine, rows: int) -> bool:
    """Whether these instructions compute the product of `rows` rows with weights in `form`."""
    dense = form.positions == 1 and form.groups == 1 and form.columns >= _LEAST_COLUMNS
    integers = not form.encoding.is_float and not form.by_row and form.run <= _LONGEST_RUN
    wide = form.tile.lanes == machine.lanes("int32") and form.tile.parts == 1
    narrow = machine.isa in ("sse4", "avx2", "avx512") and form.encoding.kind == "int4"
    # LLVM sees that levels of 4 bits are not negative, and then adds products of other columns with SVE.
    grouped = machine.dot in _DOT and (machine.isa != "sve" or form.encoding.kind == "int8")
    return (grouped or narrow) and rows == 1 and dense and integers and wide


class FixedPointRow:
    """x as bytes in scratch memory, `copies` times: one for each task."""

    def __init__(self, form: CompactForm, copies: int) -> None:
        self.form, self.lanes = form, form.tile.lanes
        self.runs = form.runs + (form.last_run > 0)
        self.stride = form.lines(form.run) * form.per_word  # elements between runs
        self.length = form.runs * self.stride + form.lines(form.last_run) * form.per_word
        self.bytes = registers([copies * _PARTS * self.length], "int8")
        self.units = registers([copies * self.runs], "float32")
        self.sums = registers([copies * self.runs], "float32")

    def prepare(self, x: Any, base: Expr, copy: Expr) -> None:
        """Emit the rounding of x, which begins at element `base`, into copy number `copy`."""
        form = self.form
        if form.runs:
            with serial(form.runs) as run:
                self._run(x, base + run * int64(form.run), bind(run), form.run, copy)
        if form.last_run:
            self._run(x, base + int64(form.runs * form.run), int64(form.runs), form.last_run, copy)

    def _run(self, x: Any, base: Expr, run: Expr, length: int, copy: Expr) -> None:
        lanes, base = self.lanes, bind(base)
        greatest, sums = registers([lanes], "float32"), registers([lanes], "float32")
        for target in (greatest, sums):
            with vector(lanes) as lane:
                store(target, [lane], tirx.const(0, "float32"))

        def note(first: Expr, width: int) -> None:
            with vector(width) as lane:
                store(
                    greatest,
                    [lane],
                    tirx.max(load(greatest, [lane]), tirx.abs(load(x, [base + first + lane]))),
                )
            with vector(width) as lane:
                store(sums, [lane], load(sums, [lane]) + load(x, [base + first + lane]))

        self._vectors(length, note)
        size, number = self._over_lanes(greatest, tirx.max), self._over_lanes(sums, lambda a, b: a + b)
        unit_index = bind(copy * int64(self.runs) + run)
        # With an infinity in x the unit is infinite, with a NaN, which max may ignore, it is NaN.
        finite = tirx.abs(number) <= _f32(_LARGEST)
        endless = tirx.Select(tirx.abs(number) > _f32(_LARGEST), size, number)
        store(self.units, [unit_index], tirx.Select(finite, size * _f32(1 / _MOST), endless))
        bounded = tirx.min(tirx.max(size, _f32(_LEAST)), _f32(_LARGEST))
        factor = bind(tirx.Select(size > _f32(_LEAST), _f32(_MOST) / bounded, _f32(0)))
        start = bind(copy * int64(_PARTS * self.length) + run * int64(self.stride))
        with vector(lanes) as lane:
            store(sums, [lane], _f32(0))

        def split(first: Expr, width: int) -> None:
            def units(lane: Expr) -> Expr:
                scaled = load(x, [base + first + lane]) * factor
                return tirx.min(tirx.max(scaled, _f32(-_MOST)), _f32(_MOST))

            with vector(width) as lane:
                store(sums, [lane], load(sums, [lane]) + units(lane))
            for part_index in range(_PARTS):
                with vector(width) as lane:
                    rounded = tirx.Cast("int32", units(lane))
                    for _ in range(part_index):
                        rounded = (rounded - _lowest(rounded)) >> _i32(8)
                    target = start + int64(part_index * self.length) + first + lane
                    store(self.bytes, [target], tirx.Cast("int8", _lowest(rounded)))

        self._vectors(length, split)
        store(self.sums, [unit_index], self._over_lanes(sums, lambda a, b: a + b))
        for k in range(length, self.form.lines(length) * self.form.per_word):
            for part_index in range(_PARTS):
                store(self.bytes, [start + int64(part_index * self.length + k)], tirx.const(0, "int8"))

    def _over_lanes(self, held: Any, combine: Any) -> Expr:
        """Emit the combination of all lanes of the buffer `held`; returns it."""
        result = registers([1], "float32")
        store(result, [int64(0)], load(held, [int64(0)]))
        with serial(self.lanes - 1, 1) as lane:
            store(result, [int64(0)], combine(load(result, [int64(0)]), load(held, [lane])))
        return bind(load(result, [int64(0)]))

    def _vectors(self, length: int, visit: Any) -> None:
        whole_vectors = length // self.lanes
        if whole_vectors:
            with serial(whole_vectors) as block:
                visit(block * int64(self.lanes), self.lanes)
        if length % self.lanes:
            with serial(length % self.lanes) as index:
                visit(int64(whole_vectors * self.lanes) + index, 1)

    def four_bytes(self, part_index: int, copy: Expr, run: Expr, k: Expr) -> Expr:
        """Four bytes of part `part_index` of x from element `k` of a run, in every lane."""
        offset = (
            copy * int64(_PARTS * self.length)
            + int64(part_index * self.length)
            + run * int64(self.stride)
            + k
        )
        word = tirx.reinterpret("int32", load(self.bytes, [ramp(offset, 4)]))
        return tirx.reinterpret(f"int8x{4 * self.lanes}", tirx.Broadcast(word, self.lanes))


class RowTile:
    """Emits one tile of the result: the sums of `reader`'s columns. `method`: see `method_of`."""

    def __init__(self, reader: Reader, x: FixedPointRow, copy: Expr, method: str) -> None:
        self.reader, self.x, self.copy, self.lanes = reader, x, copy, reader.lanes
        self.method = method
        # VNNI multiplies unsigned bytes.
        self.flips = method == "vnni" and reader.form.encoding.kind == "int8"
        self.form = reader.form
        self.parts = [registers([reader.count, self.lanes], "int32") for _ in range(_PARTS)]
        self.total = registers([reader.count, self.lanes], "float32")

    def emit(self) -> Any:
        """Emit the sums; returns the buffer that holds them."""
        form = self.form
        for v in range(self.reader.count):
            with vector(self.lanes) as lane:
                store(self.total, [int64(v), lane], tirx.const(0, "float32"))
        if form.runs:
            with serial(form.runs) as run:
                self._run(bind(run), form.run)
        if form.last_run:
            self._run(int64(form.runs), form.last_run)
        return self.total

    def _run(self, run: Expr, length: int) -> None:
        form, reader = self.form, self.reader
        for part_sums in self.parts:
            for v in range(reader.count):
                with vector(self.lanes) as lane:
                    store(part_sums, [int64(v), lane], tirx.const(0, "int32"))
        first = bind(run * int64(form.lines(form.run) * form.tile.columns))

        def lines(number: Expr, count: int) -> None:
            base, k = first + number * int64(form.tile.columns), number * int64(form.per_word)
            if self.method == "pmaddubsw":
                self._narrow_lines(bind(base), run, bind(k), count)
            else:
                self._line(base, run, k)

        together = _LINES if self.method == "pmaddubsw" else 1
        whole_lines, remainder = divmod(form.lines(length), together)
        if whole_lines:
            with serial(whole_lines) as number:
                lines(bind(number * int64(together)), together)
        if remainder:
            lines(int64(whole_lines * together), remainder)
        unit = bind(load(self.x.units, [self.copy * int64(self.x.runs) + run]))
        summed = bind(load(self.x.sums, [self.copy * int64(self.x.runs) + run]))
        for v in range(reader.count):
            scale_index = bind(reader.scale_at(run, v))
            with vector(self.lanes) as lane:
                indices = [int64(v), lane]
                low, middle, high = (
                    tirx.Cast("float32", load(part_sums, indices)) for part_sums in self.parts
                )
                whole_lines = high * _f32(1 << 16) + middle * _f32(1 << 8) + low
                zero = reader.panels.zero(scale_index + lane)
                zero = zero + _f32(_BIAS) if self.flips else zero
                products = (whole_lines - zero * summed) * unit * reader.panels.scale(scale_index + lane)
                store(self.total, indices, load(self.total, indices) + products)

    def _line(self, line: Expr, run: Expr, k: Expr) -> None:
        """Emit the products of one stored line, whose first weight is element `k` of the run."""
        is_int4, lanes = self.form.encoding.kind == "int4", self.lanes
        k = bind(k)
        four = [
            [
                bind(self.x.four_bytes(part_index, self.copy, run, k + int64(4 * half)))
                for part_index in range(_PARTS)
            ]
            for half in range(1 + is_int4)
        ]
        for v in range(self.reader.count):
            word = bind(self.reader.words(line, v, _AHEAD if self.method == "vnni" else 0))
            if is_int4:
                halves = [
                    word & _wide(_LOW_HALVES, lanes),
                    (word >> _wide(4, lanes)) & _wide(_LOW_HALVES, lanes),
                ]
            else:
                halves = [tirx.bitwise_xor(word, _wide(_SIGNS, lanes)) if self.flips else word]
            for half, levels in enumerate(halves):
                levels = bind(tirx.reinterpret(f"int8x{4 * lanes}", levels))
                for part_index, sums in enumerate(self.parts):
                    indices = [int64(v), ramp(int64(0), lanes)]
                    store(sums, indices, self._dot(load(sums, indices), levels, four[half][part_index]))

    def _dot(self, sums: Expr, levels: Expr, x: Expr) -> Expr:
        """`sums` plus the four products of bytes in each lane."""
        if self.method == "sdot":
            return dot_of_four(sums, levels, x, self.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return tirx.call_llvm_pure_intrin(f"int32x{self.lanes}", name, sums, levels, x)

    def _narrow_lines(self, line: Expr, run: Expr, k: Expr, count: int) -> None:
        """Emit the products of `count` stored lines of 4-bit levels, in sums of 16 bits."""
        lanes = self.lanes
        multiply, widen = _BYTES[lanes]
        ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes)
        # A loop over vectors at run time: unrolled, their common operands would not fit the registers.
        vectors = self.form.tile.vectors
        for panel in range(ceil_div(self.reader.count, vectors)):
            first = panel * vectors
            with serial(min(vectors, self.reader.count - first)) as index:
                levels = []
                for number in range(count):
                    offset = line + int64(number * self.form.tile.columns + panel * self.form.panel_size)
                    word = bind(self.reader.words(offset + index * int64(lanes), 0, _AHEAD))
                    for moved in (word, word >> _wide(4, lanes)):
                        half = moved & _wide(_LOW_HALVES, lanes)
                        levels.append(bind(tirx.reinterpret(f"int8x{4 * lanes}", half)))
                for part_index, sums in enumerate(self.parts):
                    pair_sums: Expr | None = None
                    for number, half in enumerate(levels):
                        four = self.x.four_bytes(part_index, self.copy, run, k + int64(4 * number))
                        pairs = tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", multiply, half, four)
                        pair_sums = bind(pairs if pair_sums is None else pair_sums + pairs)
                    wide = tirx.call_llvm_pure_intrin(f"int32x{lanes}", widen, pair_sums, ones)
                    indices = [index + int64(first), ramp(int64(0), lanes)]
                    store(sums, indices, load(sums, indices) + wide)


def tasks_and_share(columns: int, width: int, cores: int) -> tuple[int, int]:
    """Number of tasks, and tiles of columns of each: as many tasks as cores, since each prepares x."""
    tiles = ceil_div(columns, width)
    share = ceil_div(tiles, min(tiles, cores))
    return ceil_div(tiles, share), share


def _lowest(value: Expr) -> Expr:
    """The lowest byte of an int32, as a number from -128 to 127."""
    return ((value + _i32(128)) & _i32(255)) - _i32(128)


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _f32(value: float) -> Expr:
    return tirx.const(float(value), "float32")


def _wide(value: int, lanes: int) -> Expr:
    return tirx.Broadcast(_i32(value), lanes)
