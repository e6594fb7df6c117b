"""Short reductions of kernels/cpu/gemm_dot.py: all columns of one row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.dot_operands import (
    call,
    extracted,
    halves_of,
    mask_of,
    pair_of,
    vector_of,
    widened,
    word_of,
)
from kiln.kernels.cpu.dot_packing import BLOCK, QUAD, DotPacking, blocks_of, slots_of
from kiln.tir.builder import bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import i32, ramp

_LANES = 4  # 32-bit lanes of a vector


@dataclass(frozen=True)
class ShortRow:
    """Emits all columns of one row, whose values of x stay in registers.

    `x`, `weights`: flat buffers. `base`: offset in `x` of the first value that the row reads. `panel`: number
    of the first panel.
    """

    packing: DotPacking
    x: Any
    base: Expr
    weights: Any
    panel: Expr

    def emit(self, columns: int, finish: Any) -> None:
        """Emit the sums, and finish(column, sum) for each of them."""
        packing, wide = self.packing, self.packing.tile.columns
        left = {"smlad": self._pairs, "vmladava": self._vectors, "mla": self._values}[packing.method]()
        whole_panels = columns // wide
        with serial(whole_panels) as number:
            self._panel(left, number, wide, finish)
        if columns % wide:
            self._panel(left, int64(whole_panels), columns % wide, finish)

    def _panel(self, left: Any, number: Expr, columns: int, finish: Any) -> None:
        packing = self.packing
        start = bind((self.panel + number) * int64(packing.panel_bytes))
        first = number * int64(packing.tile.columns)
        if packing.method == "smlad":
            for column in range(0, columns, 2):
                offset = start + int64(column * 2 * len(left))
                self._two_columns(
                    left,
                    offset,
                    min(2, columns - column),
                    lambda i, v, c=column: finish(first + int64(c + i), v),
                )
            return
        if packing.method == "vmladava" and columns == _LANES:
            lanes = registers([_LANES], "int32")
            for column in range(columns):
                value = self._sum_of_vectors(left, start + int64(column * packing.run))
                store(lanes, [int64(column)], value)
            with vector(_LANES) as lane:
                finish(first + lane, load(lanes, [lane]))
            return
        for column in range(columns):
            offset = start + int64(column * packing.run)
            total = self._sum_of_vectors if packing.method == "vmladava" else self._sum_of_values
            finish(first + int64(column), total(left, offset))

    def _sum_of_vectors(self, left: Sequence[Expr], offset: Expr) -> Expr:
        """The sum of a column, whose weights begin at `offset`; method `vmladava`."""
        sums = registers([1], "int32")
        starts = itertools.accumulate(map(len, blocks_of(self.packing.offsets)), initial=0)
        for at, block in zip(starts, left, strict=False):
            right = bind(load(self.weights, [ramp(offset + int64(at), BLOCK)]))
            held, zero = load(sums, [int64(0)]) if at else i32(0), i32(0)
            value = call("int32", "llvm.arm.mve.vmldava.v16i8", zero, zero, zero, held, block, right)
            store(sums, [int64(0)], value)
        return load(sums, [int64(0)])

    def _sum_of_values(self, left: Sequence[Expr], offset: Expr) -> Expr:
        """The sum of a column, whose weights begin at `offset`; method `mla`."""
        sums = registers([1], "int32")
        store(sums, [int64(0)], i32(0))
        for k, value in enumerate(left):
            weight = tirx.Cast("int32", load(self.weights, [offset + int64(k)]))
            store(sums, [int64(0)], load(sums, [int64(0)]) + value * weight)
        return load(sums, [int64(0)])

    def _two_columns(self, left: Sequence[Expr], offset: Expr, columns: int, finish: Any) -> None:
        """Emit two columns, whose weights begin at `offset`; method `smlad`."""
        packing = self.packing
        sums = registers([2], "int32")
        for column in range(columns):
            store(sums, [int64(column)], i32(0))
        for slot, value in enumerate(left):
            word = word_of(self.weights, offset + int64(4 * slot))
            rights = [bind(extracted(word, False, True))]
            if columns == 2:
                rights.append(word if packing.shared else bind(extracted(word, True, True)))
            for column, right in enumerate(rights):
                indices = [int64(column)]
                store(sums, indices, call("int32", "llvm.arm.smlad", value, right, load(sums, indices)))
        first, second = load(sums, [int64(0)]), load(sums, [int64(1)])
        finish(0, first)
        if columns == 2:
            finish(1, tirx.shift_right(second - first, i32(8)) if packing.shared else second)

    def _values(self) -> list[Expr]:
        return [bind(widened(self.x, self.base + int64(offset))) for offset in self.packing.offsets]

    def _pairs(self) -> list[Expr]:
        """The values of x as pairs of 16 bits, in the order of the slots."""
        packing = self.packing
        quads, rest = slots_of(packing.run, packing.wide)
        result = []
        if packing.wide:
            for first in range(0, packing.run, 2):
                two = packing.offsets[first : first + 2]
                bases = [self.base + int64(offset) for offset in two]
                adjacent = len(two) == 2 and two[1] - two[0] == 1
                result.append(pair_of(self.x, bases[0], bases[1] if len(two) == 2 else None, adjacent))
            return result
        for quad in range(quads):
            four = packing.offsets[quad * QUAD : quad * QUAD + QUAD]
            if four[-1] - four[0] == QUAD - 1:
                word = word_of(self.x, self.base + int64(four[0]))
                result += [bind(extracted(word, odd, packing.signed)) for odd in (False, True)]
            else:
                result += [self._pair(four[0], four[2]), self._pair(four[1], four[3])]
        for slot in rest:
            first, second = (packing.offsets[k] if k >= 0 else -1 for k in (slot.first, slot.second))
            result.append(self._pair(first, second))
        return result

    def _pair(self, first: int, second: int) -> Expr:
        """The values of x at two offsets as halves of a word; -1: any value."""
        return halves_of(
            self.x, *(None if offset < 0 else self.base + int64(offset) for offset in (first, second))
        )

    def _vectors(self) -> list[Expr]:
        """The values of x in vectors, followed by zeros."""
        return [self._vector(block) for block in blocks_of(self.packing.offsets)]

    def _vector(self, offsets: Sequence[int]) -> Expr:
        """The values of x at `offsets` in a vector, followed by zeros."""
        length = len(offsets)
        if offsets[-1] - offsets[0] == length - 1:
            return vector_of(self.x, self.base + int64(offsets[0]), length)
        positions = [offset - offsets[0] for offset in offsets] + [0] * (BLOCK - length)
        lanes = tirx.Shuffle(
            [tirx.const(position, "uint8") for position in positions], [i32(lane) for lane in range(BLOCK)]
        )
        address = tirx.address_of(load(self.x, [self.base + int64(offsets[0])]))
        name = "llvm.arm.mve.vldr.gather.offset.predicated.v16i8.p0.v16i8.v16i1"
        selected = call(
            f"int8x{BLOCK}",
            name,
            address,
            tirx.reinterpret(f"int8x{BLOCK}", lanes),
            i32(8),
            i32(0),
            i32(1),
            mask_of(length),
        )
        return bind(selected)
