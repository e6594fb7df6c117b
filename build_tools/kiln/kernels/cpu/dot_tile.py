"""Register tiles of kernels/cpu/gemm_dot.py: a few rows by a few columns, by words or by vectors of x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.cpu.dot_operands import (
    call,
    extracted,
    halves_of,
    halves_vector,
    pair_of,
    vector_of,
    word_of,
)
from kiln.kernels.cpu.dot_packing import QUAD, DotPacking, Slot, slots_of
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.tir.builder import bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import i32

_LANES = 4  # 32-bit lanes of a vector
_ROLLED = range(9, 24)  # blocks of a run that LLVM would unroll, with more vectors of x than registers
_BLOCKS_PER_ITERATION = 2  # blocks in one iteration of a loop over the others: the offsets of loads reach 127


class _DotTile:
    """Emits the sums of one tile: the rows of `operands` by `columns` columns, which may span panels."""

    def __init__(self, packing: DotPacking, columns: int, operands: TileOperands) -> None:
        self.packing, self.count, self.columns = packing, len(operands.bases), columns
        self.x, self.bases = operands.x, operands.bases
        self.weights, self.inside = operands.weights, operands.inside
        held = min(packing.tile.columns, packing.tile.vectors)
        self.places = [divmod(column, held) for column in range(columns)]  # panel, column within the tile
        self.starts = [
            bind((operands.panel + int64(number)) * int64(packing.panel_bytes))
            for number in range(self.places[-1][0] + 1)
        ]
        self.sums = [registers([columns], "int32") for _ in range(self.count)]

    def clear(self, sums: Sequence[Any]) -> None:
        for column_sums in sums:
            for column in range(self.columns):
                store(column_sums, [int64(column)], i32(0))

    def add(self, row: int, column: int, name: str, left: Expr, right: Expr, *flags: Expr) -> None:
        """sums[row][column] = name(…)."""
        indices = [int64(column)]
        accumulator = load(self.sums[row], indices)
        operands = (*flags, accumulator, left, right) if flags else (left, right, accumulator)
        store(self.sums[row], indices, call("int32", name, *operands))


class WordTile(_DotTile):
    """A register tile computed with `smlad`: x is read as words of four bytes."""

    def emit(self) -> Any:
        """Emit the sums; returns a function that calls its argument for each of them."""
        packing = self.packing
        depth = int(np.prod([loop.extent for loop in packing.runs], dtype=np.int64))
        self.parts = packing.shared and depth > packing.limit
        if self.parts:
            self.totals = [registers([self.columns], "int32") for _ in range(self.count)]
            self.clear(self.totals)
        else:
            self.clear(self.sums)
        self._reduce(packing.runs, int64(0), int64(0), not self.parts)

        def deliver(visit: Any) -> None:
            for row in range(self.count):
                for column in range(self.columns):
                    held = self.totals if self.parts else self.sums
                    value = load(held[row], [int64(column)])
                    if packing.shared and not self.parts and column % 2:
                        value = self._of_second(row, column)
                    visit(row, column, value)

        return deliver

    def _of_second(self, row: int, column: int) -> Expr:
        """The sum of the second column of a pair."""
        pair, first = (load(self.sums[row], [int64(index)]) for index in (column, column - 1))
        return tirx.shift_right(pair - first, i32(8))

    def _part(self, body: Callable[[], Any]) -> None:
        """Emit `body`, then add the sums to the totals."""
        self.clear(self.sums)
        body()
        for row in range(self.count):
            for column in range(self.columns):
                indices = [int64(column)]
                value = self._of_second(row, column) if column % 2 else load(self.sums[row], indices)
                store(self.totals[row], indices, load(self.totals[row], indices) + value)

    def _reduce(self, remaining: Sequence[Loop], x_offset: Expr, step: Expr, counted: bool) -> None:
        """Emit the loops `remaining`; `counted`: the caller adds the sums to the totals."""
        packing = self.packing
        depth = int(np.prod([loop.extent for loop in remaining], dtype=np.int64))
        if not counted and depth <= packing.limit:
            self._part(lambda: self._reduce(remaining, x_offset, step, True))
            return
        if len(remaining) > 1:
            loop = remaining[0]
            with serial(loop.extent) as k:
                self._reduce(
                    remaining[1:], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k, counted
                )
            return
        quads, rest = slots_of(packing.run, packing.wide)
        first = step * int64(packing.run_bytes)
        size = 4 * packing.tile.columns  # bytes of a quad of a panel

        def loop_of(begin: Expr, extent: int) -> None:
            with serial(extent) as k:
                number = begin + k
                self._quad(x_offset + number * int64(QUAD), first + number * int64(size))

        def end() -> None:
            if rest:
                self._rest(x_offset, first + int64(quads * size), rest)

        if counted:
            loop_of(int64(0), quads)
            end()
            return
        quads_per_block = packing.limit // QUAD
        with serial(quads // quads_per_block) as block:
            self._part(lambda: loop_of(block * int64(quads_per_block), quads_per_block))
        begin = quads // quads_per_block * quads_per_block

        def after_blocks() -> None:
            loop_of(int64(begin), quads - begin)
            end()

        self._part(after_blocks)

    def _quad(self, x_offset: Expr, offset: Expr) -> None:
        """Emit four values of k: `offset`: offset of their weights in the panel."""
        row_values = []
        for row in range(self.count):
            base = self.bases[row] + x_offset
            if self.packing.wide:
                row_values.append([word_of(self.x, base + int64(k), 2) for k in (0, 2)])
                continue
            word = word_of(self.x, base)
            row_values.append([bind(extracted(word, odd, self.packing.signed)) for odd in (False, True)])
        self._multiply(row_values, offset)

    def _rest(self, x_offset: Expr, offset: Expr, slots: Sequence[Slot]) -> None:
        """Emit the values of k after the last whole quad."""
        row_values = []
        for row in range(self.count):
            base = self.bases[row] + x_offset
            if slots[0].word >= 0:
                word = word_of(self.x, base + int64(slots[0].word))
                row_values.append([bind(extracted(word, odd, self.packing.signed)) for odd in (False, True)])
                continue
            if self.packing.wide:
                row_values.append([
                    pair_of(self.x, base + int64(slot.first), None, slot.second >= 0) for slot in slots
                ])  # fmt: skip
                continue
            row_values.append([
                halves_of(self.x, *(None if k < 0 else base + int64(k) for k in (slot.first, slot.second)))
                for slot in slots
            ])  # fmt: skip
        self._multiply(row_values, offset)

    def _multiply(self, left: Sequence[Sequence[Expr]], offset: Expr) -> None:
        """Add the products of x, `left` of each row and slot, and the weights at `offset` of each panel."""
        slots = len(left[0])
        for column in range(0, self.columns, 2):
            number, within = self.places[column]
            at = self.starts[number] + offset + int64(within * 2 * slots)
            if self.inside is not None:
                at = at + self.inside * int64(2 * slots)
            for slot in range(slots):
                word = word_of(self.weights, at + int64(slot * 4))
                first, second = bind(extracted(word, False, True)), word
                if not self.packing.shared and column + 1 < self.columns:
                    second = bind(extracted(word, True, True))
                for row in range(self.count):
                    self.add(row, column, "llvm.arm.smlad", left[row][slot], first)
                    if column + 1 < self.columns:
                        self.add(row, column + 1, "llvm.arm.smlad", left[row][slot], second)


class VectorTile(_DotTile):
    """A register tile computed with `vmladava`: x is read as vectors of 16 bytes."""

    def emit(self, out: OutputTile) -> None:
        """Emit the sums and the results: those of four columns as vectors, the others one by one."""
        self.clear(self.sums)
        self._reduce(self.packing.runs, int64(0), int64(0))
        whole = self.columns // _LANES * _LANES
        for row in range(self.count):
            for first in range(0, whole, _LANES):
                lanes = registers([_LANES], "int32")  # apart, else LLVM keeps the sums in a vector
                for lane in range(_LANES):
                    store(lanes, [int64(lane)], load(self.sums[row], [int64(first + lane)]))
                with vector(_LANES) as lane:
                    out.finish(out.rows[row], out.first_column + int64(first) + lane, load(lanes, [lane]))
            for column in range(whole, self.columns):
                value = load(self.sums[row], [int64(column)])
                out.finish(out.rows[row], out.first_column + int64(column), value)

    def _reduce(self, remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        packing = self.packing
        if len(remaining) > 1:
            loop = remaining[0]
            with serial(loop.extent) as k:
                self._reduce(
                    remaining[1:], x_offset + k * int64(loop.x_stride), step * int64(loop.extent) + k
                )
            return
        whole_blocks, remainder = divmod(packing.run, packing.block)
        first = step * int64(packing.run_bytes)
        rolled = self._loop(whole_blocks, x_offset, first) if packing.rolled else 0
        with serial(whole_blocks - rolled) as k:
            number = k + int64(rolled)
            self._block(
                x_offset + number * int64(packing.block),
                first + number * int64(packing.block * packing.tile.columns),
                packing.block,
            )
        if remainder:
            self._block(
                x_offset + int64(whole_blocks * packing.block),
                first + int64(whole_blocks * packing.block * packing.tile.columns),
                remainder,
            )

    def _loop(self, count: int, x_offset: Expr, offset: Expr) -> int:
        """Emit a loop over the first of `count` blocks of a run; returns the number of blocks in the loop.

        Unrolled by LLVM, it would keep all vectors of x and the addresses of all weights on the stack, and
        reload them for each panel. The saturation changes nothing, but LLVM does not fold it.
        """
        if count not in _ROLLED:
            return 0
        packing, repeats = self.packing, count // _BLOCKS_PER_ITERATION
        opaque = call("int32", "llvm.arm.usat", i32(repeats), i32(31))
        # The mask bounds the positions in tensors for TVM: only then are they computed in 32 bits.
        limit = tirx.bitwise_and(opaque, i32((1 << repeats.bit_length()) - 1))
        with builder.serial(i32(0), limit) as iteration:
            for k in range(_BLOCKS_PER_ITERATION):
                number = tirx.Cast("int64", iteration * i32(_BLOCKS_PER_ITERATION) + i32(k))
                self._block(
                    x_offset + number * int64(packing.block),
                    offset + number * int64(packing.block * packing.tile.columns),
                    packing.block,
                )
        return repeats * _BLOCKS_PER_ITERATION

    def _block(self, x_offset: Expr, offset: Expr, length: int) -> None:
        """Emit the products of `length` values of k, at most those of a vector.

        After them, the vector of x has zeros, and that of the weights has weights of the next block.
        """
        wide = self.packing.wide
        left = [
            halves_vector(self.x, "int16", base + x_offset, length)
            if wide
            else vector_of(self.x, base + x_offset, length)
            for base in self.bases
        ]
        for column, (number, within) in enumerate(self.places):
            at = self.starts[number] + offset + int64(within * length)
            if self.inside is not None:
                at = at + self.inside * int64(length)
            if wide:
                right = halves_vector(self.weights, "int8", at, self.packing.block)
            else:
                right = vector_of(self.weights, at, self.packing.block)
            for row in range(self.count):
                flags = [i32(0)] * 3  # signed; added; not exchanged
                name = f"llvm.arm.mve.vmldava.{'v8i16' if wide else 'v16i8'}"
                self.add(row, column, name, left[row], right, *flags)
