"""The matmul of gemm.py on 16-bit integers, by instructions that multiply 16 bits and add in 32.

Computation  sum[row][column] += x[row][k] * w[k][column], int16 by int8 or int16, in int32 or int64. On x86
             and WebAssembly two values of k make a group: one load of two values of x, broadcast to all
             lanes, times two weights of each column. On NEON a group is one value.
Packing      [K,N] → [panel][group][NR][2 or 1], in the type of the weights: int8 is widened as it is loaded.
             The reduction is cut into runs of contiguous values of x. The last pair of a run of odd length
             begins one value earlier, with a zero weight for what was counted already: no value outside is
             read.
Schedule     pmaddwd and an addition, or vpdpwssd, which does both; NEON: smlal. Sums of int64 are added up in
             int32, where `limit` groups fit, before they are widened:
             - int8 weights: 511 products are less than 2^31.
             - int16 weights, of which the third product may not fit. NEON widens as many products as fit
               with these weights. On x86, besides the sum modulo 2^32, the upper 16 bits of a few products
               are added up: of as many as fit 32 bits with these weights, at least of one pair. Together
               they give the exact sum: its difference from 2^16 times the second sum is a number from 0 to
               2^16 for each addition.
Applies      One operand int16, the other int16 or of 8 bits (the weights int8). x86 and WebAssembly, where
             runs have at least two values; NEON with sums of int64, as gemm.py uses smlal for int32.
Accuracy     Exact. Sums of int32 wrap as those of other kernels do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop, Tile, adjacent_panels, fitted
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.kernels.cpu.pair_sums import MOST_PAIRS, joined, upper_bits
from kiln.kernels.cpu.runtime_product import method_of_pairs, multiply_pairs
from kiln.tir.builder import Array, Machine, bind, int64, load, padded, registers, serial, store
from kiln.tir.vector_expr import ramp

PAIR = 2  # values of k
_SINGLE = "smlal"  # the method of NEON, for one value of k
# The most vectors of sums in a tile, by registers; an int64 sum of int16 weights takes two of them.
_SUMS = {16: (12, 2), 32: (24, 4)}
# Products of int8 weights whose sums fit 32 bits, of 2^22 each.
_PRODUCTS = 510
ARRANGEMENT = "pairs"


@dataclass(frozen=True)
class PairProduct:
    """A matmul of 16-bit pairs, and how its weights are packed.

    `method`: of runtime_product.PAIRS, or smlal. `adds`: whether vpdpwssd is used. `runs`: the reduction over
    x, innermost loop over contiguous values. `weights`: their type. `accumulator`: the type of the sums.
    `together`: pairs whose products fit 32 bits in sum; 0: those of one pair may be 2^31.
    """

    method: str
    adds: bool
    tile: Tile
    runs: tuple[Loop, ...]
    weights: str
    accumulator: str
    together: int
    arrangement: str = ARRANGEMENT
    head_lanes: int = 0

    @property
    def run(self) -> int:
        """Contiguous values of x in the innermost loop of the reduction."""
        return self.runs[-1].extent

    @property
    def group(self) -> int:
        """Values of k that are multiplied at a time."""
        return 1 if self.method == _SINGLE else PAIR

    @property
    def groups_of_run(self) -> int:
        """Groups of one run."""
        return ceil_div(self.run, self.group)

    @property
    def panel_bytes(self) -> int:
        """Elements of one packed panel."""
        runs = int(np.prod([loop.extent for loop in self.runs[:-1]], dtype=np.int64))
        return self.group * self.tile.columns * self.groups_of_run * runs

    @property
    def split(self) -> bool:
        """Whether the upper bits of the products are added up separately."""
        return (self.accumulator, self.weights) == ("int64", "int16") and self.group > 1

    @property
    def steps(self) -> int:
        """Groups whose products are added before they are added to the sums."""
        return max(1, self.together) if self.split else 1

    @property
    def limit(self) -> int:
        """Greatest number of groups before the sums are widened; 0: they never are."""
        if self.accumulator != "int64":
            return 0
        if self.weights == "int8":
            return _PRODUCTS // self.group
        return MOST_PAIRS if self.split else max(1, PAIR * self.together)

    def pack(self, weights: Array) -> Array:
        """Pack weights [K, N] as described under `Packing`, flat."""
        full = padded(weights, 1, self.tile.columns)
        columns = full.shape[1]
        runs = full.reshape(-1, self.run, columns)
        if self.run % self.group:
            zeros = np.zeros((runs.shape[0], 1, columns), weights.dtype)
            runs = np.concatenate([runs[:, :-1], zeros, runs[:, -1:]], axis=1)
        groups = runs.reshape(-1, self.group, columns // self.tile.columns, self.tile.columns)
        return np.ascontiguousarray(groups.transpose(2, 0, 3, 1)).reshape(-1)

    def product(self, out: OutputTile, operands: TileOperands) -> None:
        """Emit the computation and the store of one tile."""
        sums = _PairTile(self, out, operands)
        sums.emit()
        for row, vectors in zip(out.rows, sums.results, strict=True):
            sums.store(out, row, vectors)


class _PairTile:
    """Emits the sums of one tile; `results`: of each row, a buffer for each vector of columns."""

    def __init__(self, product: PairProduct, out: OutputTile, operands: TileOperands) -> None:
        self.form, self.operands = product, operands
        tile = product.tile
        count, self.vectors = len(out.rows), ceil_div(out.columns, tile.lanes)
        self.low = self._buffers(count, "int32")
        self.high = self._buffers(count, "int32") if product.split else []
        self.results = self._buffers(count, "int64") if product.limit else self.low
        inside = int64(0) if operands.inside is None else operands.inside * int64(product.group)
        self.starts = [
            bind((operands.panel + int64(p)) * int64(product.panel_bytes) + inside)
            for p in range(ceil_div(self.vectors, tile.vectors))
        ]

    def store(self, out: OutputTile, row: Expr, vectors: Sequence[Any]) -> None:
        """Emit the stores of one row of the results."""
        out.store(row, self.form.tile.lanes, lambda v, offset, lane: load(vectors[v], [int64(offset) + lane]))

    def _buffers(self, rows: int, dtype: str) -> list[list[Any]]:
        return [[registers([self.form.tile.lanes], dtype) for _ in range(self.vectors)] for _ in range(rows)]

    @property
    def _lanes(self) -> list[Expr]:
        return [ramp(int64(0), self.form.tile.lanes)]

    def _clear(self, buffers: Sequence[Sequence[Any]]) -> None:
        for buffer in (buffer for row in buffers for buffer in row):
            zero = tirx.const(0, str(buffer.dtype))
            store(buffer, self._lanes, tirx.Broadcast(zero, self.form.tile.lanes))

    def emit(self) -> None:
        """Emit the reduction, after which `results` are the sums."""
        if self.form.limit:
            self._clear(self.results)
        self._clear([*self.low, *self.high])
        if self._reduce(self.form.runs, int64(0), int64(0)) and self.form.limit:
            self._widen()

    def _reduce(self, loops: Sequence[Loop], x_offset: Expr, number: Expr) -> int:
        """Emit the loops of a reduction; returns the number of groups added since the sums were last widened.

        `number`: the number of the run.
        """
        if len(loops) == 1:
            return self._run(x_offset, number)
        loop, inner = loops[0], loops[1:]
        groups = self.form.groups_of_run * int(np.prod([one.extent for one in inner[:-1]], dtype=np.int64))
        after_each = 0 < self.form.limit < groups * loop.extent
        with serial(loop.extent) as k:
            added = self._reduce(inner, x_offset + k * int64(loop.x_stride), number * int64(loop.extent) + k)
            if after_each and added:
                self._widen()
        return 0 if after_each else added * loop.extent

    def _run(self, x_offset: Expr, number: Expr) -> int:
        """Emit one run; returns the number of groups added since the sums were last widened."""
        form = self.form
        whole, rest = divmod(form.run, form.group)
        first = bind(number * int64(form.groups_of_run))

        def some(begin: Expr, count: int) -> None:
            done = 0
            for together in sorted({form.steps, 1}, reverse=True):
                steps = (count - done) // together
                if steps:
                    with serial(steps) as k:
                        at = begin + int64(done) + k * int64(together)
                        self._groups(x_offset + at * int64(form.group), first + at, together)
                done += steps * together

        done, limit = 0, form.limit
        if limit and whole + rest > limit:
            done = whole // limit * limit
            with serial(done // limit) as block:
                some(bind(block * int64(limit)), limit)
                self._widen()
        some(int64(done), whole - done)
        if rest:
            self._groups(x_offset + int64(form.run - form.group), first + int64(whole), 1)
        return whole - done + rest

    def _groups(self, x_offset: Expr, number: Expr, count: int) -> None:
        """Emit the products of `count` groups from `number` on.

        They begin at `x_offset` in each row of x.
        """
        tile, weights, group = self.form.tile, self.operands.weights, self.form.group
        width = group * tile.lanes
        at = bind(number * int64(group * tile.columns))
        rights: list[list[Expr]] = [[] for _ in range(self.vectors)]
        for step, (v, right) in itertools.product(range(count), enumerate(rights)):
            panel, inside = divmod(v, tile.vectors)
            offset = self.starts[panel] + at + int64(step * group * tile.columns + inside * width)
            right.append(bind(tirx.Cast(f"int16x{width}", load(weights, [ramp(offset, width)]))))
        for row, base in enumerate(self.operands.bases):
            lefts = [self._left(base + x_offset + int64(step * group)) for step in range(count)]
            for v, right in enumerate(rights):
                self._add(row, v, lefts, right)

    def _left(self, offset: Expr) -> Expr:
        """The group of x at `offset` in every lane."""
        lanes, x = self.form.tile.lanes, self.operands.x
        if self.form.method == _SINGLE:
            return bind(tirx.Broadcast(tirx.Cast("int16", load(x, [offset])), lanes))
        two = tirx.reinterpret("int32", tirx.Cast("int16x2", load(x, [ramp(offset, PAIR)])))
        return bind(tirx.reinterpret(f"int16x{PAIR * lanes}", tirx.Broadcast(two, lanes)))

    def _add(self, row: int, v: int, lefts: Sequence[Expr], rights: Sequence[Expr]) -> None:
        """Emit the addition of the products of some groups to the sums of a row and a vector of columns."""
        form, lanes, low = self.form, self.form.tile.lanes, self.low[row][v]

        def plus(total: Expr, left: Expr, right: Expr) -> Expr:
            if form.adds:
                return _add_products(total, left, right, lanes)
            if form.method == _SINGLE:
                return total + tirx.Cast(f"int32x{lanes}", left) * tirx.Cast(f"int32x{lanes}", right)
            return total + multiply_pairs(form.method, lanes, left, right)

        if not form.split:
            for left, right in zip(lefts, rights, strict=True):
                store(low, self._lanes, plus(load(low, self._lanes), left, right))
            return
        products = multiply_pairs(form.method, lanes, lefts[0], rights[0])
        for left, right in zip(lefts[1:], rights[1:], strict=True):
            products = plus(products, left, right)
        products = bind(products)
        store(low, self._lanes, load(low, self._lanes) + products)
        high, lowest = self.high[row][v], not form.together
        if form.adds:
            upper = bind(products - tirx.Broadcast(tirx.const(1, "int32"), lanes)) if lowest else products
            halves = tirx.reinterpret(f"int16x{PAIR * lanes}", upper)
            ones = tirx.reinterpret(
                f"int16x{PAIR * lanes}", tirx.Broadcast(tirx.const(1 << 16, "int32"), lanes)
            )
            store(high, self._lanes, _add_products(load(high, self._lanes), halves, ones, lanes))
            return
        store(high, self._lanes, load(high, self._lanes) + upper_bits(products, lanes, lowest))

    def _widen(self) -> None:
        """Emit the addition of the sums of 32 bits to those of 64, and clear them."""
        lanes, wide = self.form.tile.lanes, f"int64x{self.form.tile.lanes}"
        for row, results in enumerate(self.results):
            for v, result in enumerate(results):
                value = load(self.low[row][v], self._lanes)
                if self.form.split:
                    value = joined(value, load(self.high[row][v], self._lanes), lanes)
                else:
                    value = tirx.Cast(wide, value)
                store(result, self._lanes, load(result, self._lanes) + value)
        self._clear([*self.low, *self.high])


def pairs_together(weights: Array) -> int:
    """The number of pairs of products with any int16 whose sum fits 32 bits: 4, 2, 1, or 0 if none does.

    weights: (..., N) of int16, for each column in order of k. Other types, and tensors without axes or
    elements, which are no weights: 0, which is not used.
    """
    if str(weights.dtype) != "int16" or not weights.ndim or not weights.size:
        return 0
    ends = np.cumsum(np.abs(weights.reshape(-1, weights.shape[-1]).astype("int32")), axis=0, dtype="int64")
    ends = np.pad(ends, [(1, 0), (0, 0)])
    for pairs in (4, 2, 1):
        span = min(PAIR * pairs, len(ends) - 1)
        if int((ends[span:] - ends[:-span]).max(initial=0)) < 1 << 16:
            return pairs
    return 0


def _add_products(sums: Expr, left: Expr, right: Expr, lanes: int) -> Expr:
    """`sums` plus two products in each lane, by vpdpwssd."""
    name = f"llvm.x86.avx512.vpdpwssd.{32 * lanes}"
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, left, right)


def pair_product(
    machine: Machine, dtypes: Sequence[str], together: int, runs: tuple[Loop, ...], rows: int, columns: int
) -> PairProduct | None:  # fmt: skip
    """The method for `rows` x `columns` sums over `runs`; None where another method must compute them.

    `dtypes`: of x, the weights and the sums. `together`: the result of `pairs_together` for the weights.
    """
    x, weights, accumulator = dtypes
    neon = machine.isa == "neon" and accumulator == "int64"
    method = _SINGLE if neon else method_of_pairs(machine)
    if method is None or runs[-1].x_stride != 1 or (method != _SINGLE and runs[-1].extent < PAIR):
        return None
    if "int16" not in (x, weights) or x not in ("int8", "uint8", "int16") or weights not in ("int8", "int16"):
        return None
    if machine.packing is not None and machine.packing.arrangement != ARRANGEMENT:
        return None
    lanes = machine.lanes("int32")
    sums, most = _SUMS[32 if machine.registers >= 32 else 16]
    if (accumulator, weights) == ("int64", "int16"):
        sums, most = sums // 2, 2
    vectors = min(most, ceil_div(columns, lanes))
    number = adjacent_panels(rows, columns, vectors, lanes)
    tile = Tile(min(rows, sums // vectors), vectors, lanes, number)
    if machine.packing is not None:
        tile = fitted(tile, machine.packing.columns, columns)
    return PairProduct(method, machine.dot == "vnni", tile, runs, weights, accumulator, together)
