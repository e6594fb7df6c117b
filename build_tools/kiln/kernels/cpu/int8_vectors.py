"""Sums of kernels/cpu/gemm_int8.py in vector registers, one vector of columns for each row of x."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_operands import IntegerOperands, vector_load
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.output_tile import TileOperands
from kiln.kernels.cpu.runtime_product import selects_lane
from kiln.tir.builder import bind, int64, load, registers, serial, store
from kiln.tir.vector_expr import ramp


class VectorSums:
    """Emits the sums of one tile: rows of x that begin at `operands.bases`, by `vectors` vectors of columns.

    `starts`: offset in the weights of each panel that the tile spans. `skipped`: bytes of a group of columns
    before the tile's.
    """

    def __init__(
        self, packing: IntegerOperands, operands: TileOperands, vectors: int, starts: Sequence[Expr],
        skipped: Expr,
    ) -> None:  # fmt: skip
        self.packing, self.starts, self.skipped = packing, starts, skipped
        self.x, self.bases, self.weights = operands.x, operands.bases, operands.weights
        self.lanes = packing.tile.lanes
        self.places = [packing.place_of_vector(v) for v in range(vectors)]
        self.sums = [[registers([self.lanes], "int32") for _ in range(vectors)] for _ in self.bases]
        self._flip: Expr | None = None  # bits of x to flip, which shifts it

    def emit(self) -> list[list[Any]]:
        """Emit the sums; by row and vector, the buffer that holds them."""
        self._begin()
        self._reduce(self.packing.runs, int64(0), int64(0))
        return self.sums

    def _begin(self) -> None:
        """Emit the initial sums, which undo the shift of x, and the load of the bits to flip."""
        packing, lanes = self.packing, self.lanes
        size = GROUP * lanes
        if packing.shift:
            bits = 8 if packing.method == "mull" else size
            self._flip = bind(vector_load(self.weights, self.starts[0], bits))
        for v, (panel, inside) in enumerate(self.places):
            first = tirx.Broadcast(tirx.const(0, "int32"), lanes)
            if packing.shift:
                place = self.starts[panel] + self.skipped + int64(GROUP * packing.head_lanes + inside)
                first = bind(tirx.reinterpret(f"int32x{lanes}", vector_load(self.weights, place, size)))
            for sums_of_row in self.sums:
                store(sums_of_row[v], [ramp(int64(0), lanes)], first)

    def _reduce(self, loops: Sequence[Loop], x_offset: Expr, number: Expr) -> None:
        """Emit the loops `loops` of the reduction, at `x_offset` in x; `number`: of the iteration."""
        if len(loops) == 1:
            self._run(x_offset, number)
            return
        loop = loops[0]
        with serial(loop.extent) as k:
            self._reduce(loops[1:], x_offset + k * int64(loop.x_stride), number * int64(loop.extent) + k)

    def _run(self, x_offset: Expr, number: Expr) -> None:
        """Emit the products of run number `number`, whose contiguous bytes of x begin at `x_offset`."""
        run, lanes = self.packing.run, self.lanes
        whole_groups, done = run // GROUP, 0
        first = number * int64(ceil_div(run, GROUP))
        if selects_lane(self.packing.method, lanes):
            done = whole_groups // lanes * lanes
            with serial(whole_groups // lanes) as k:
                self._groups_of_vector(x_offset + k * int64(GROUP * lanes), first + k * int64(lanes))
        with serial(whole_groups - done) as k:
            at = k + int64(done)
            self._group(x_offset + at * int64(GROUP), first + at)
        if run % GROUP:
            self._group(x_offset + int64(run - GROUP), first + int64(whole_groups))

    def _group(self, x_offset: Expr, number: Expr) -> None:
        """Emit the products of group number `number` of k."""
        self._add((self.packing.left(self.x, base + x_offset, self._flip) for base in self.bases), number)

    def _groups_of_vector(self, x_offset: Expr, number: Expr) -> None:
        """Emit the products of the groups of k in one vector of x, from group number `number` on."""
        by_row = [self.packing.lefts_of_vector(self.x, base + x_offset, self._flip) for base in self.bases]
        for index, lefts in enumerate(zip(*by_row, strict=True)):
            self._add(lefts, number + int64(index))

    def _add(self, lefts: Iterable[list[Expr]], number: Expr) -> None:
        """Add the products of `lefts`, the operands of each row, with the weights of group `number`."""
        packing = self.packing
        base = self.skipped + int64(packing.head_bytes) + number * int64(GROUP * packing.tile.columns)
        rights = [
            packing.right(self.weights, self.starts[panel] + base + int64(inside))
            for panel, inside in self.places
        ]
        where = [ramp(int64(0), self.lanes)]
        for left, sums_of_row in zip(lefts, self.sums, strict=True):
            for sums, right in zip(sums_of_row, rights, strict=True):
                store(sums, where, packing.multiply(load(sums, where), left, right))
