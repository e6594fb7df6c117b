"""A register tile of a depthwise convolution: a few columns of one output row (a strip), or of several."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_tile import adds_halves
from kiln.kernels.cpu.runtime_product import PAIRS, method_of_pairs, multiply_pairs
from kiln.tir.builder import Machine, bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

_BYTES = 8  # in the operands of SMULL
# LLVM's names of SMULL, by method.
MULTIPLY = {"smull": "llvm.aarch64.neon.smull.v8i16", "vmull": "llvm.arm.neon.vmulls.v8i16"}


@dataclass(frozen=True)
class Place:
    """Output pixels of a tile: `rows` rows from row `h` of image `n`, `columns` columns from `column`.

    `shared`: whether the pixels of one row share the inputs that they load.
    """

    n: Expr
    h: Expr
    rows: int
    column: Expr
    columns: int
    shared: bool


@dataclass(frozen=True)
class ChannelRange:
    """Adjacent channels of a tile: `count` of them from `first` on."""

    first: Expr
    count: int


def emit(
    conv: Convolution, buffers: list[tirx.Buffer], place: Place, channels: ChannelRange,
    accumulator: str, element: Epilogue, method: str,
) -> None:  # fmt: skip
    """Emit the computation and store of the pixels of `place`, for `channels`.

    `buffers`: of the kernel: x and the weights first. `accumulator`: dtype of the sums. `method`: of
    `method_of`.
    """
    tile = _Tile(conv, buffers, place, channels, accumulator, method)
    (tile.strip if place.rows == 1 else tile.several)()
    for row in range(place.rows):
        tile.finish(row, element)


def method_of(machine: Machine, dtypes: Sequence[str], accumulator: str, weights_narrow: bool) -> str:
    """The method that adds products of numbers of 16 bits or fewer to sums of 32 bits.

    "pairs": by x86's PMADDWD, which adds the products of two numbers, one of them 0 here: half the work of
    PMULLD, which LLVM chooses. "vnni": by VPDPWSSD, which adds them to the sum as well. "smull" and "vmull":
    by SMULL and SMLAL of 64-bit and 32-bit ARM, which add the products of two taps in 16 bits: they fit where
    both are int8 and `weights_narrow`, whether the magnitudes of weights are below 128. "": as LLVM chooses.
    """
    halves = adds_halves(dtypes, accumulator)
    if machine.isa == "neon" and halves and weights_narrow and set(dtypes) == {"int8"}:
        return "smull" if machine.registers >= 32 else "vmull"
    if method_of_pairs(machine) != "pairs" or not halves:
        return ""
    return "vnni" if machine.dot == "vnni" else "pairs"


class _Tile:
    """Emits the sums of one register tile."""

    def __init__(
        self, conv: Convolution, buffers: list[tirx.Buffer], place: Place, channels: ChannelRange,
        accumulator: str, method: str,
    ) -> None:  # fmt: skip
        self.conv, self.place, self.channel, self.width = conv, place, channels.first, channels.count
        possible = self.width == _BYTES if method in MULTIPLY else ("pairs", self.width) in PAIRS
        self.method = method if possible else ""
        self.x, self.weights, self.accumulator = buffers[0], buffers[1], accumulator
        # One buffer per row: TVM puts buffers of more than 1 KiB on the heap.
        self.sums = [registers([place.columns, self.width], accumulator) for _ in range(place.rows)]
        top = place.n * int64(conv.height) + place.h * int64(conv.stride_h) + int64(conv.top)
        self.top = bind(top * int64(conv.width))
        self.left = bind(place.column * int64(conv.stride_w) + int64(conv.left))

    def strip(self) -> None:
        """Emit the sums of one output row, one kernel row after the other."""
        conv = self.conv
        for index in range(self.place.columns):
            with vector(self.width) as lane:
                store(self.sums[0], [int64(index), lane], tirx.const(0, self.accumulator))
        with serial(conv.kernel_h) as i:
            line = self._line(i * int64(conv.dilation_h))
            taps = bind(i * int64(conv.kernel_w * conv.channels) + self.channel)
            if self.place.shared:
                self._add(line, [(0, taps, False)])
            else:
                self._add_in_loop(line, taps)

    def several(self) -> None:
        """Emit the sums of several output rows: each line of x is added to all rows that read it."""
        conv = self.conv
        # Line of x → the rows of the tile that read it, each with the kernel row.
        reached: dict[int, list[tuple[int, int]]] = {}
        for row in range(self.place.rows):
            for i in range(conv.kernel_h):
                reached.setdefault(row * conv.stride_h + i * conv.dilation_h, []).append((row, i))
        for number, rows in sorted(reached.items()):
            step = conv.kernel_w * conv.channels
            self._add(
                self._line(int64(number)), [(row, self.channel + int64(i * step), i == 0) for row, i in rows]
            )

    def finish(self, row: int, element: Epilogue) -> None:
        """Store row `row` of the tile, with the epilogue."""
        position = self.place
        for index in range(position.columns):
            with vector(self.width) as lane:
                indices = [
                    position.n,
                    position.h + int64(row),
                    position.column + int64(index),
                    self.channel + lane,
                ]
                element.store(indices, load(self.sums[row], [int64(index), lane]))

    def _line(self, number: Expr) -> Expr:
        """Offset in x of input line `number` of the tile, counted from the first."""
        conv = self.conv
        position = self.top + number * int64(conv.width) + self.left
        return bind(position * int64(conv.pitch) + self.channel)

    def _add(self, line: Expr, rows: list[tuple[int, Expr, bool]]) -> None:
        """Add the products of the line of x at `line` and rows of the kernel to rows of the tile.

        `rows`: (row of the tile, offset of the weights, whether these are the first products of that row).
        Unrolled, so that LLVM sees which inputs the pixels of the tile share.
        """
        conv, step = self.conv, 2 if self.method in MULTIPLY else 1
        for first in range(0, conv.kernel_w, step):
            js = range(first, min(first + step, conv.kernel_w))
            for row, taps, begins in rows:
                for index in range(self.place.columns):
                    operands = [
                        (
                            line + int64((index * conv.stride_w + j * conv.dilation_w) * conv.pitch),
                            taps + int64(j * conv.channels),
                        )
                        for j in js
                    ]
                    self._add_products(row, index, operands, begins and not first)

    def _add_in_loop(self, line: Expr, taps: Expr) -> None:
        """Add the products of the line of x at `line` and the kernel row at `taps` to row 0 of the tile."""
        conv = self.conv
        with serial(conv.kernel_w) as j:
            pixel = bind(line + j * int64(conv.dilation_w * conv.pitch))
            tap = bind(taps + j * int64(conv.channels))
            for index in range(self.place.columns):
                offset = index * conv.stride_w * conv.pitch
                self._add_products(0, index, [(pixel + int64(offset), tap)], False)

    def _add_products(self, row: int, index: int, operands: Sequence[tuple[Expr, Expr]], first: bool) -> None:
        """Add products to column `index` of row `row`; `first`: store them, without the sum.

        `operands`: of each product the offset in x and that in the weights: of two with a method of MULTIPLY.
        """
        if self.method in MULTIPLY:
            self._add_in_16_bits(row, index, operands, first)
            return
        ((pixel, tap),) = operands
        if self.method:
            self._add_halves(row, index, pixel, tap, first)
            return
        with vector(self.width) as lane:
            value = tirx.Cast(self.accumulator, load(self.x, [pixel + lane]))
            total = value * tirx.Cast(self.accumulator, load(self.weights, [tap + lane]))
            if not first:
                total = load(self.sums[row], [int64(index), lane]) + total
            store(self.sums[row], [int64(index), lane], total)

    def _add_in_16_bits(
        self, row: int, index: int, operands: Sequence[tuple[Expr, Expr]], first: bool
    ) -> None:
        """`_add_products` by a method of MULTIPLY."""
        where = [int64(index), ramp(int64(0), _BYTES)]
        products = []
        for pixel, tap in operands:
            left, right = load(self.x, [ramp(pixel, _BYTES)]), load(self.weights, [ramp(tap, _BYTES)])
            multiply = MULTIPLY[self.method]
            products.append(tirx.call_llvm_pure_intrin(f"int16x{_BYTES}", multiply, left, right))
        total = tirx.Cast(f"int32x{_BYTES}", functools.reduce(operator.add, products))
        store(self.sums[row], where, total if first else load(self.sums[row], where) + total)

    def _add_halves(self, row: int, index: int, pixel: Expr, tap: Expr, first: bool) -> None:
        """`_add_products` by `method`: each number is half of a pair; the other half of the weights is 0."""
        lanes, sums_type, halves_type = (
            ramp(int64(0), self.width),
            f"int32x{self.width}",
            f"int16x{2 * self.width}",
        )
        where = [int64(index), lanes]
        value = tirx.Cast(sums_type, load(self.x, [ramp(pixel, self.width)]))
        low_half = tirx.Broadcast(tirx.const(0xFFFF, "int32"), self.width)
        weights = tirx.bitwise_and(
            tirx.Cast(sums_type, load(self.weights, [ramp(tap, self.width)])), low_half
        )
        left, right = (tirx.reinterpret(halves_type, operand) for operand in (value, weights))
        if self.method == "vnni" and not first:
            name = f"llvm.x86.avx512.vpdpwssd.{32 * self.width}"
            held = load(self.sums[row], where)
            store(self.sums[row], where, tirx.call_llvm_pure_intrin(sums_type, name, held, left, right))
            return
        products = multiply_pairs("pairs", self.width, left, right)
        store(self.sums[row], where, products if first else load(self.sums[row], where) + products)
