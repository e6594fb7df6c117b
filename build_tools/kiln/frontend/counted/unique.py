"""The distinct rows of a tensor, how often and where each first occurs, and which one each row is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import shape_of
from kiln.frontend.counted.memory import SORT_SLOTS, IndexRow, Slots, merge_sort, serial
from kiln.frontend.counted.sizes import counted
from kiln.frontend.symbols import Symbols, int64, int64_of

_LESS, _MORE, _GROUPS, _SORT = 0, 1, 2, 3  # slots


@dataclass(frozen=True)
class Distinct:
    """The distinct rows of a tensor of n rows, in order: `first` and `counts` are int64 of shape (count,).

    first: index of the first row of each group of equal rows. counts: the number of rows in the group. kinds:
    int64, shape (n,): for each row, which of the distinct rows equals it.
    """

    first: Any
    counts: Any
    kinds: Any


def distinct(
    builder: relax.BlockBuilder, symbols: Symbols, tensor: str, rows: Any, ascending: bool
) -> Distinct:
    """The distinct rows of `rows`, of shape (n, m), in ascending order, or in that of their first occurrence.

    NaN equals itself and is above all numbers. `tensor`: the tensor of the file that is counted.
    """
    n = shape_of(rows)[0]
    most, greatest = symbols.most_counted(tensor, n), symbols.greatest([n])
    if greatest is None:
        raise ValueError("its number of elements has no greatest value")

    def compute(x: Any) -> Any:
        one = [int64_of(most)]
        shapes = [one, one, [int64_of(n)], [int64(1)], [int64(5), int64_of(n)], [int64(_SORT + SORT_SLOTS)]]
        return te.extern(
            shapes, [x], lambda i, o: _Grouping(i[0], o, greatest, ascending).statement(),
            dtype=["int64", "int64", "int64", "int64", "int32", "int64"], name="unique",
        )  # fmt: skip

    distinct_rows = builder.emit_te(compute, rows, primfunc_name_hint="unique")
    first, counts, kinds, count = (
        builder.emit(relax.TupleGetItem(distinct_rows, index)) for index in range(4)
    )
    first, counts = counted(builder, symbols, tensor, count, [first, counts], most)
    return Distinct(first, counts, kinds)


class _Grouping:
    """Writes the statement over the buffers of `distinct`."""

    def __init__(self, x: Any, made: Any, greatest: int, ascending: bool) -> None:
        self.x, self.rows, self.width = x, x.shape[0], x.shape[1]
        self.first, self.counts, self.kinds = made[:3]
        self.count, self.slots = Slots(made[3]), Slots(made[5])
        # The rows in ascending order, spare memory; by group its first row, its size, and its final number.
        self.order, self.spare, self.heads, self.sizes, self.numbers = (
            IndexRow(made[4], n) for n in range(5)
        )
        self.greatest, self.ascending = greatest, ascending

    def statement(self) -> Any:
        """Sort, then go through the groups of equal rows."""
        slots = self.slots
        with IRBuilder() as ir, script.seq_scope():
            with serial(self.rows) as row:
                self.order[row] = row
            merge_sort(
                self.order, self.spare, int64_of(self.rows), self.greatest, self._follows, slots, _SORT
            )  # fmt: skip
            slots[_GROUPS] = int64(0)
            with serial(self.rows) as place:
                self._group(place)
            self._number()
            with serial(self.rows) as row:
                number = self.numbers[_load(self.kinds, row)]
                script.buffer_store(self.kinds, number, [row])
            self.count[0] = slots[_GROUPS]
        return ir.get()

    def _group(self, place: Any) -> None:
        """Add row number `place` of the sorted ones to the last group, or to a new one."""
        slots, row = self.slots, self.order[place]
        before = self.order[tirx.max(place - int64(1), int64(0))]
        follows = self._follows(row, before)
        with script.If(tirx.any(place == 0, follows)), script.Then():
            self.heads[slots[_GROUPS]] = row
            self.sizes[slots[_GROUPS]] = int64(0)
            slots[_GROUPS] = slots[_GROUPS] + int64(1)
        group = slots[_GROUPS] - int64(1)
        self.sizes[group] = self.sizes[group] + int64(1)
        script.buffer_store(self.kinds, group, [row])

    def _number(self) -> None:
        """Number the groups, and write where they begin and how large they are."""
        if self.ascending:
            with serial(self.slots[_GROUPS]) as group:
                self._write(group, group)
            return
        self.slots[_LESS] = int64(0)
        with serial(self.rows) as row:
            group = _load(self.kinds, row)
            with script.If(self.heads[group] == row), script.Then():
                self._write(group, self.slots[_LESS])
                self.slots[_LESS] = self.slots[_LESS] + int64(1)

    def _write(self, group: Any, number: Any) -> None:
        self.numbers[group] = number
        with script.If(number < self.first.shape[0]), script.Then():
            script.buffer_store(self.first, self.heads[group], [number])
            script.buffer_store(self.counts, self.sizes[group], [number])

    def _follows(self, a: Any, b: Any) -> Any:
        """Whether row a is above row b: by the first element in which they differ."""
        slots = self.slots
        if isinstance(self.width, tirx.IntImm) and int(self.width) == 1:
            return self._above(a, b, int64(0))
        slots[_LESS], slots[_MORE] = int64(0), int64(0)
        with serial(self.width) as column, script.If(slots[_LESS] + slots[_MORE] == 0), script.Then():
            slots[_MORE] = self._above(a, b, column)
            slots[_LESS] = self._above(b, a, column)
        return slots[_MORE] == 1

    def _above(self, a: Any, b: Any, column: Any) -> Any:
        left, right = (tirx.BufferLoad(self.x, [row, column]) for row in (a, b))
        dtype = str(self.x.dtype)
        if dtype == "bool":
            return tirx.all(left, tirx.Not(right))
        if not dtype.startswith("float"):
            return left > right
        return tirx.any(left > right, tirx.all(_is_nan(left, dtype), tirx.Not(_is_nan(right, dtype))))


def _is_nan(value: Any, dtype: str) -> Any:
    """Whether a float is NaN, by its bits: TVM compares floats such that NaN differs from none."""
    width = int(dtype.removeprefix("float"))
    infinity = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}[width]
    bits = tirx.reinterpret(f"uint{width}", value)
    magnitude = bits & tirx.const((1 << (width - 1)) - 1, f"uint{width}")
    return magnitude > tirx.const(infinity, f"uint{width}")


def _load(buffer: Any, index: Any) -> Any:
    return tirx.BufferLoad(buffer, [index])
