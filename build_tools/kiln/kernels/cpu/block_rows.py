"""Rows of integers for kernels/cpu/block_int8.py: copied so that a run of k lies together, with its sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.compact_weights import CompactForm
from kiln.tir.builder import bind, int64, load, registers, serial, store, vector
from kiln.tir.vector_expr import ramp

GROUP = 4  # values of k whose weights of 8 bits are one word
PAIRS = (0, 2, 1, 3)  # order of the values of a group where pairs of 16 bits are multiplied
_COPIED = 16  # elements that are copied at once, by processors with vectors


@dataclass(frozen=True)
class RunOfRows:
    """One run of k: its number, its first k, and its length."""

    number: Expr
    first: Expr
    length: int


class BlockRows:
    """Copies of up to `most` rows of x in scratch memory, `copies` times: one for each task.

    Elements of type `dtype` are stored as [run][row][k], with zeros after the k of a run up to a multiple of
    the k in a word of weights; in_pairs: each group of four in the order PAIRS. `factor` times the sum of
    each run of a row is kept too; 0: no sums.
    """

    def __init__(
        self, form: CompactForm, most: int, copies: int, factor: int, dtype: str, in_pairs: bool
    ) -> None:
        self.form, self.most, self.factor, self.dtype, self.in_pairs = form, most, factor, dtype, in_pairs
        self.runs = form.runs + (form.last_run > 0)
        self.pitch = form.lines(form.run) * form.per_word if form.runs else 0
        self.last_pitch = form.lines(form.last_run) * form.per_word
        self.size = most * (form.runs * self.pitch + self.last_pitch)
        self.elements = registers([copies * self.size], dtype)
        self.sums = registers([copies * most * self.runs], "int32") if factor else None

    def each_run(self, visit: Any) -> None:
        """Emit a loop over the runs: visit(run, elements from a row to the next)."""
        form = self.form
        if form.runs == 1:
            visit(RunOfRows(int64(0), int64(0), form.run), self.pitch)
        elif form.runs:
            with serial(form.runs) as number:
                run = bind(number)
                visit(RunOfRows(run, run * int64(form.run), form.run), self.pitch)
        if form.last_run:
            run = int64(form.runs)
            visit(RunOfRows(run, int64(form.runs * form.run), form.last_run), self.last_pitch)

    def place(self, copy: Expr, run: Expr) -> Expr:
        """The element at which run number `run` of copy `copy` begins."""
        return copy * int64(self.size) + run * int64(self.most * self.pitch)

    def sum_at(self, copy: Expr, run: Expr, row: Expr) -> Expr:
        """The place of the sum of run number `run` of row number `row` of the copy."""
        return (copy * int64(self.runs) + run) * int64(self.most) + row

    def prepare(
        self, x: Any, place_of: Callable[[Expr], Expr], count: Expr | int, copy: Expr, lanes: int
    ) -> None:
        """Emit the copy of `count` rows of x; `lanes`: of a vector of int32.

        `place_of`: gives the element of x with which a row of the copy begins.
        """

        def run_of_rows(run: RunOfRows, pitch: int) -> None:
            with serial(count) as number:
                row = bind(number)
                source = bind(place_of(row) + run.first)
                target = bind(self.place(copy, run.number) + row * int64(pitch))
                self._copy(x, source, target, run.length, _COPIED if lanes > 1 else 1)
                for k in range(run.length, pitch):
                    store(self.elements, [target + int64(self._place_of(k))], tirx.const(0, self.dtype))
                if self.sums is not None:
                    total = self._sum(target, run.length, lanes)
                    place = self.sum_at(copy, run.number, row)
                    store(self.sums, [place], total * tirx.const(self.factor, "int32"))

        self.each_run(run_of_rows)

    def _place_of(self, k: int) -> int:
        """The place in a run of its element number `k`."""
        return k // GROUP * GROUP + PAIRS[k % GROUP] if self.in_pairs else k

    def _copy(self, x: Any, source: Expr, target: Expr, length: int, width: int) -> None:
        def copied(offset: Expr, size: int) -> None:
            values = load(x, [ramp(source + offset, size)])
            if self.in_pairs:
                order = [tirx.IntImm("int32", self._place_of(k)) for k in range(size)]
                values = tirx.Shuffle([values], order)
            place = [ramp(target + offset, size)]
            store(self.elements, place, tirx.Cast(f"{self.dtype}x{size}", values))

        whole = length // width if width > 1 else 0
        if whole:
            with serial(whole) as index:
                copied(index * int64(width), width)
        done = whole * width
        while width > GROUP and length - done >= GROUP:
            width //= 2
            if length - done >= width:
                copied(int64(done), width)
                done += width

        def single(k: Expr, place: Expr) -> None:
            value = tirx.Cast(self.dtype, load(x, [source + k]))
            store(self.elements, [target + place], value)

        if width == 1:
            with serial(length) as k:
                single(k, k)
            return
        for number in range(done, length):
            single(int64(number), int64(self._place_of(number)))

    def _sum(self, first: Expr, length: int, lanes: int) -> Expr:
        """Emit the sum of the `length` elements of a run of the copy from `first` on; returns it."""
        sums = registers([lanes], "int32")
        with vector(lanes) as lane:
            store(sums, [lane], tirx.const(0, "int32"))
        whole = length // lanes
        if whole:
            with serial(whole) as index, vector(lanes) as lane:
                value = load(self.elements, [first + index * int64(lanes) + lane])
                store(sums, [lane], load(sums, [lane]) + tirx.Cast("int32", value))
        total = registers([1], "int32")
        store(total, [int64(0)], load(sums, [int64(0)]))
        for lane in range(1, lanes):
            store(total, [int64(0)], load(total, [int64(0)]) + load(sums, [int64(lane)]))
        for k in range(whole * lanes, length):
            value = tirx.Cast("int32", load(self.elements, [first + int64(self._place_of(k))]))
            store(total, [int64(0)], load(total, [int64(0)]) + value)
        return bind(load(total, [int64(0)]))
