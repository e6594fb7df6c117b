"""The work of a block of threads in an attention kernel for a GPU; see kernels/gpu/attention.py."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div as whole
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.gpu.attention_nests import TF32, AttentionOperand, FusedAttention
from kiln.kernels.gpu.attention_tile import LANES, ROWS, AttentionTile
from kiln.kernels.gpu.global_loads import COMMIT, COPY, WAIT
from kiln.tir.builder import bind, registers, store, unravel
from kiln.tir.fused import replace
from kiln.tir.symbols import ceil_div, int64, is_dynamic

_OPERANDS = ("queries", "keys", "values")
# C++ names of the types of operands in attention.cuh.
_TYPES = {"float32": "kiln_f32", TF32: "kiln_tf32", "float16": "kiln_f16", "bfloat16": "kiln_bf16"}
_NO_SCORE = -math.inf


class ThreadBlock:
    """Emits the work of a block of threads: `block`, `warp` and `lane` are its place, and a thread's."""

    def __init__(
        self, attention: FusedAttention, tile: AttentionTile, block: Expr, warp: Expr, lane: Expr
    ) -> None:
        self.attention, self.tile, self.fused = attention, tile, attention.fused
        self.queries, self.keys = (int64(size) for size in attention.sizes)
        self.depth, self.columns = attention.widths
        count = ceil_div(attention.sizes[0], tile.rows)
        *self.lead, number = (bind(index) for index in unravel(block, [*attention.lead, count]))
        self.first = bind(number * int64(tile.rows))
        self.thread = warp * int64(LANES) + lane
        self.lane, self.pair = lane, lane % 4 * 2
        self.warp, self.part = bind(warp // tile.parts), bind(warp % tile.parts)
        self.row = self.first + self.warp * int64(ROWS) + lane // 4
        names = {buffer: buffer for buffer in [*self.fused.params, attention.last.buffer]}
        self.score = Epilogue(self.fused, attention.product, attention.scores, names)
        self.result = Epilogue(self.fused, attention.weighted, attention.last, names)
        axes = attention.product.axes[:-2]
        self.here = {axis.var: index for axis, index in zip(axes, self.lead, strict=True)}
        pairs = zip(attention.places[:-1], self.lead, strict=True)
        self.there = {axis.var: index for axis, index in pairs if axis is not None}
        self.type = _TYPES[tile.factor]
        # Queries, then keys and values of a step; after all products, what is added of parts.
        rows = [tile.rows, tile.keys_of_block, tile.keys_of_block]
        sizes = [count * self.pitch(name) for name, count in zip(_OPERANDS, rows, strict=True)]
        self.begin = dict(zip(_OPERANDS, itertools.accumulate([0, *sizes[:-1]]), strict=True))
        elements = tile.shared_bytes // tile.element_bytes
        self.memory = registers([elements], "float32" if tile.factor == TF32 else tile.factor, "shared")

    # ---- the whole ----

    def emit(self) -> None:
        """All work of the block; a barrier before each product, whose operands other threads have copied."""
        tile, attention = self.tile, self.attention
        query, key = (axis.var for axis in attention.product.axes[-2:])
        depth, second = attention.product.reduced[0].var, attention.weighted.reduced[0].var
        copy_queries = self.copier("queries", attention.queries, self.here, query, self.queries, depth)
        copy_keys = self.copier("keys", attention.keys, self.here, key, self.keys, depth)
        column = attention.column.var
        copy_values = self.copier("values", attention.values, self.there, second, self.keys, column)
        sums, total = self.local(tile.keys // 2), self.local(tile.columns // 2, 0.0)
        held = registers([max(1, 4 * tile.held)], "uint32", "local")
        top, weight, factor = self.local(2, _NO_SCORE), self.local(2, 0.0), self.local(2)
        copy_queries(self.first)
        copy_keys(int64(0))
        self.call(COMMIT)
        self.arrived()
        if tile.held:
            self.call(f"kiln_queries<{self.type}, {tile.pitches[0]}, {tile.held}>", held, self.own("queries"))
        end, size = self.end(), int64(tile.keys_of_block)
        with builder.serial(int64(0), tirx.floordiv(end + size - int64(1), size)) as step:
            first_key = bind(step * size)
            copy_values(first_key)
            self.call(COMMIT)
            arguments = f"{self.type}, {tile.pitches[0]}, {tile.steps}, {tile.held}, {tile.keys // 8}"
            self.call(f"kiln_scores<{arguments}>", sums, held, self.own("queries"), self.own("keys"))
            self.arrived()
            with builder.If(first_key + size < end), builder.Then():
                copy_keys(first_key + size)
            self.call(COMMIT)
            self.scores(sums, first_key + self.part * int64(tile.keys))
            self.weights(sums, top, weight, factor)
            self.each(tile.columns // 2, lambda i: store(total, [i], total[i] * factor[_half(i)]))
            arguments = f"{self.type}, {tile.pitches[1]}, {tile.keys // 8}, {tile.columns // 8}"
            self.call(f"kiln_weighted<{arguments}>", total, sums, self.own("values"))
            self.arrived()
        self.over_lanes(weight, operator.add)
        if tile.parts == 1:
            self.invert(weight)
            self.each(tile.columns // 2, lambda i: self.finish(i, total[i], weight))
        else:
            self.add_parts(total, top, weight)

    def end(self) -> Expr:
        """The number of keys that a query of the block attends to at most."""
        if not self.attention.causal:
            return self.keys
        seen = self.first + int64(self.tile.rows) + self.keys - self.queries
        return bind(tirx.max(tirx.min(self.keys, seen), int64(0)))

    def local(self, count: int, value: float | None = None) -> Any:
        """An array of `count` float32 registers, filled with `value` unless that is None."""
        array = registers([count], "float32", "local")
        if value is not None:
            self.each(count, lambda i: store(array, [i], tirx.const(value, "float32")))
        return array

    def over_lanes(self, array: Any, combine: Callable[[Expr, Expr], Expr]) -> None:
        """Combine the two numbers of a lane with those of the three other lanes that have the same rows."""
        for distance in (1, 2):
            for r in range(2):
                store(array, [r], combine(array[r], _shuffled(array[r], distance)))

    def pitch(self, name: str) -> int:
        """Elements between rows of an operand in shared memory."""
        return self.tile.pitches[1 if name == "values" else 0]

    def own(self, name: str) -> Any:
        """The address of the warp's queries, keys or values."""
        number, rows = (self.warp, ROWS) if name == "queries" else (self.part, self.tile.keys)
        place = int64(self.begin[name]) + number * int64(rows * self.pitch(name))
        return tirx.address_of(tirx.BufferLoad(self.memory, [place]))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of attention.cuh or global_loads.py; a buffer is passed by its address."""
        words = [
            tirx.address_of(tirx.BufferLoad(item, [int64(0)])) if tirx.is_buffer_var(item) else item
            for item in arguments
        ]
        builder.evaluate(tirx.call_extern("int32", function, *words))

    def arrived(self) -> None:
        """Wait for this thread's copies, then for all threads of the block."""
        self.call(f"{WAIT}<0>")
        builder.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))

    def exp(self, value: Expr) -> Expr:
        """e^value; where tensor cores round their operands, by the unit for short approximations."""
        if self.tile.factor == "float32":
            return tirx.exp(value)
        return tirx.call_pure_extern("float32", "kiln_exp", value)

    def each(self, count: int, visit: Callable[[Expr], None]) -> None:
        """Emit visit(number) for each number below `count`, as an unrolled loop."""
        with builder.unroll(int64(0), int64(count)) as index:
            visit(index)

    # ---- operands ----

    def copier(
        self, name: str, operand: AttentionOperand, bound: dict[Any, Expr], row: Any, rows: Expr, inner: Any
    ) -> Callable[[Expr], None]:
        """A function that copies a block of rows, from a given one on, to shared memory, with zeros around.

        `rows`: of the operand; `inner`: the axis along a row.
        """
        buffer, begin = self.memory, int64(self.begin[name])
        pitch, width = self.pitch(name), self.columns if name == "values" else self.depth
        count = self.tile.rows if name == "queries" else self.tile.keys_of_block
        lanes = _lanes_of_copy(operand, inner, width, str(buffer.dtype))
        vectors = whole(width, 16) * 16 // lanes
        total = count * vectors

        def copy(first: Expr, flat: Expr) -> None:
            at, place = bind(flat // vectors), bind(flat % vectors * lanes)
            inside = tirx.all(first + at < rows, place < int64(width))
            source_row = tirx.max(tirx.min(first + at, rows - int64(1)), int64(0))
            source_place = place if width % 16 == 0 else tirx.min(place, int64(width - lanes))
            where = {**bound, row: source_row, inner: source_place}
            source = _element(operand, where)
            target = [begin + at * int64(pitch) + place]
            if lanes == 1:
                dtype = str(buffer.dtype)
                value = source if str(source.ty.dtype) == dtype else tirx.Cast(dtype, source)
                store(buffer, target, tirx.if_then_else(inside, value, tirx.const(0, dtype)))
                return
            addresses = (tirx.address_of(tirx.BufferLoad(buffer, target)), inside, tirx.address_of(source))
            self.call(f"{COPY}<16>", *addresses)

        def block(first: Expr) -> None:
            threads = self.tile.threads
            with builder.serial(int64(0), int64(whole(total, threads))) as index:
                flat = index * int64(threads) + self.thread
                if total % threads == 0:
                    copy(first, flat)
                else:
                    with builder.If(flat < int64(total)), builder.Then():
                        copy(first, flat)

        return block

    # ---- the softmax ----

    def scores(self, sums: Any, first_key: Expr) -> None:
        """Scores of the sums of the first product; of keys past the last one -inf."""

        def score(i: Expr) -> None:
            row = self.row + _half(i) * int64(8)
            key = first_key + i // 4 * int64(8) + self.pair + i % 2
            where = [tirx.min(row, self.queries - int64(1)), tirx.min(key, self.keys - int64(1))]
            value = bind(self.score.value([*self.lead, *where], sums[i]))  # not in a branch
            store(sums, [i], tirx.Select(key < self.keys, value, tirx.const(_NO_SCORE, "float32")))

        self.each(self.tile.keys // 2, score)

    def weights(self, sums: Any, top: Any, weight: Any, factor: Any) -> None:
        """Replace the scores in `sums` by exponentials relative to `top`, the greatest score of a row so far.

        By row: `weight`: the exponentials' sum; `factor`: that of earlier results, as `top` has changed.
        """
        used = self.local(2)
        self.each(2, lambda r: store(used, [r], top[r]))
        self.each(self.tile.keys // 2, lambda i: store(used, [_half(i)], tirx.max(used[_half(i)], sums[i])))
        self.over_lanes(used, tirx.max)

        def row(r: Expr) -> None:
            greatest = bind(used[r])
            store(used, [r], self.finite(greatest))
            store(factor, [r], self.exp(top[r] - used[r]))
            store(top, [r], greatest)
            store(weight, [r], weight[r] * factor[r])

        self.each(2, row)

        def exponential(i: Expr) -> None:
            store(sums, [i], self.exp(sums[i] - used[_half(i)]))
            store(weight, [_half(i)], weight[_half(i)] + sums[i])

        self.each(self.tile.keys // 2, exponential)

    def add_parts(self, total: Any, top: Any, weight: Any) -> None:
        """Add the results of the warps with the same queries, each of which stores a part of the columns."""
        tile, lanes, numbers = self.tile, int64(LANES), self.tile.columns // 2

        def place(part: Expr, number: Expr) -> Expr:
            return ((self.warp * int64(tile.parts) + part) * int64(numbers + 4) + number) * lanes + self.lane

        def put(number: Expr, value: Expr) -> None:
            self.call("kiln_set_number", self.memory, place(self.part, number), value)

        def of_parts(number: Expr) -> list[Expr]:
            address = tirx.address_of(tirx.BufferLoad(self.memory, [int64(0)]))
            places = [place(int64(part), number) for part in range(tile.parts)]
            return [tirx.call_extern("float32", "kiln_number", address, at) for at in places]

        for array, first in ((top, numbers), (weight, numbers + 2)):
            for r in range(2):
                put(int64(first + r), array[r])
        self.arrived()
        greatest, own = self.local(2), self.local(2)

        def row(r: Expr) -> None:
            tops = [bind(number) for number in of_parts(int64(numbers) + r)]
            store(greatest, [r], self.finite(bind(functools.reduce(tirx.max, tops))))
            store(own, [r], self.exp(top[r] - greatest[r]))
            sums = of_parts(int64(numbers + 2) + r)
            shares = [total * self.exp(top - greatest[r]) for top, total in zip(tops, sums, strict=True)]
            store(weight, [r], functools.reduce(operator.add, shares))

        self.each(2, row)
        self.invert(weight)
        self.each(numbers, lambda i: put(i, total[i] * own[_half(i)]))
        self.arrived()
        count = numbers // tile.parts

        def element(j: Expr) -> None:
            i = self.part * int64(count) + j
            self.finish(i, functools.reduce(operator.add, of_parts(i)), weight)

        self.each(count, element)

    def finite(self, greatest: Expr) -> Expr:
        """The number that scores are relative to: `greatest`, or 0 if that is -inf: -inf - -inf is NaN."""
        nothing = greatest == tirx.const(_NO_SCORE, "float32")
        return tirx.Select(nothing, tirx.const(0, "float32"), greatest)

    def invert(self, weight: Any) -> None:
        """Replace the sums of weights by their reciprocals; with `guarded`, a sum of 0 stays 0."""
        one, zero = tirx.const(1, "float32"), tirx.const(0, "float32")
        for r in range(2):
            total = bind(weight[r])
            store(
                weight,
                [r],
                tirx.Select(total > zero, one / total, zero) if self.attention.guarded else one / total,
            )

    def finish(self, i: Expr, total: Expr, inverse: Any) -> None:
        """Store number `i` of a lane: `total` times the `inverse` of its row."""
        zero = tirx.const(0, "float32")
        # Not an index: a register has none.
        scale = tirx.Select(_half(i) == int64(0), inverse[0], inverse[1])
        row, column = self.row + _half(i) * int64(8), i // 4 * int64(8) + self.pair + i % 2
        value = total * scale
        if self.attention.guarded:
            value = tirx.Select(scale > zero, value, zero)
        places = {**self.there, self.attention.places[-1].var: row, self.attention.column.var: column}
        indices = [places.get(axis.var, int64(0)) for axis in self.attention.weighted.axes]
        inside = tirx.all(row < self.queries, column < int64(self.columns))
        with builder.If(inside), builder.Then():
            self.result.store(indices, value)


def _half(i: Expr) -> Expr:
    """The row, 0 or 1 of the two of a lane, that the lane's number `i` of a fragment is in."""
    return i // 2 % 2


def _shuffled(value: Expr, distance: int) -> Expr:
    """The value of the lane whose number differs in one bit; such lanes of four have the same rows."""
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_pure_extern("float32", "__shfl_xor_sync", mask, value, tirx.const(distance, "int32"))


def _element(operand: AttentionOperand, bound: dict[Any, Expr]) -> Any:
    """The load of an operand's element at the indices `bound`; those of other axes are 0."""
    others = dict.fromkeys(operand.strided.strides, int64(0))
    return replace(operand.load, {**others, **bound}, {})


def _lanes_of_copy(operand: AttentionOperand, inner: Any, width: int, dtype: str) -> int:
    """Elements that a thread copies at once: 16 bytes if every row begins at a multiple of it, else one."""
    strided = operand.strided
    lanes = 16 * 8 // int(tvm.DataType(dtype).bits)
    if str(strided.buffer.dtype) != dtype or width % lanes != 0:
        return 1
    adjacent = strided.strides[inner]
    if is_dynamic(adjacent) or int(adjacent) != 1:
        return 1
    steps = [stride for axis, stride in strided.strides.items() if not axis.same_as(inner)]
    analyzer = sym.Analyzer()
    aligned = all(
        analyzer.can_prove_equal(tirx.floormod(int64(step), int64(lanes)), int64(0))
        for step in [strided.start, *steps]
    )
    return lanes if aligned else 1
