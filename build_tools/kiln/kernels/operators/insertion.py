"""topk of a few elements across lines, on CPUs with vectors: sorted insertion into registers.

Each lane of a vector is a line of its own. For every lane the best elements so far, and their positions, are
in registers, from the best to the worst. An element takes the place of the first that it is better than, and
the others from there on move by one place: one comparison and four selections for each element kept, without
branches. Of equal elements the first is better, as in ONNX and TFLite. If elements are NaN, positions are
arbitrary but never outside the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent
from kiln.kernels.operators.threshold import DTYPES
from kiln.tir.builder import bind, chunks, load, registers, serial, store, vector
from kiln.tir.symbols import int64, is_dynamic

# Elements of a vector: two registers of 16 bytes.
_LANES = 8
# With more elements to keep, they would not fit the registers.
_MOST_KEPT = 8


def applies(sizes: Sequence[Extent], axis: int, kept: Extent, dtype: str) -> bool:
    """Whether the `kept` best elements along `axis` of a tensor of shape `sizes` are selected by insertion.

    This needs a last axis other than `axis`, whose elements fill at least half of a vector.
    """
    last = sizes[-1]
    adjacent = axis == len(sizes) - 1 or is_dynamic(last) or last < _LANES // 2
    return not adjacent and not is_dynamic(kept) and 1 < kept <= _MOST_KEPT and dtype in DTYPES


class Insertion:
    """Writes the `kept` best elements along an axis, for all lines that differ in the last index."""

    def __init__(
        self, source: Any, results: Sequence[Any], line: list[Expr], axis: int, largest: bool
    ) -> None:
        """`results`: buffers of values and indices; `line`: indices of the axes but `axis` and the last."""
        self.source, self.line, self.axis, self.largest = source, line, axis, largest
        self.values, self.indices = results

    def write(self, length: Extent, kept: int, lines: int) -> None:
        """Emit the selection of `kept` of `length` elements, for `lines` lines."""
        whole, remainder = divmod(lines, _LANES)
        if whole:
            with serial(whole) as number:
                self._write(length, kept, bind(number * int64(_LANES)), _LANES)
        for offset, width in chunks(remainder, _LANES):
            self._write(length, kept, int64(whole * _LANES + offset), width)

    def _at(self, position: Expr, last: Expr) -> list[Expr]:
        return [*self.line[: self.axis], position, *self.line[self.axis :], last]

    def _write(self, length: Extent, kept: int, first: Expr, width: int) -> None:
        """Emit the selection for `width` lines from `first`."""
        dtype = str(self.source.dtype)
        best = [(registers([width], dtype), registers([width], "int32")) for _ in range(kept)]
        item = registers([width], dtype), registers([width], "int32")

        def insert(position: Expr, among: int, filled: int) -> None:
            """Emit the insertion of the element at `position` into a sorted list.

            The list has `among` elements, `filled` of which are set.
            """
            with vector(width) as lane:
                store(item[0], [lane], load(self.source, self._at(position, first + lane)))
                store(item[1], [lane], tirx.Cast("int32", position))
            for slot in reversed(range(among)):  # the worst first: it is replaced by the one before it
                for part in (1, 0):
                    with vector(width) as lane:
                        new = load(item[part], [lane])
                        if slot:
                            moves = self._better(item, best[slot - 1], lane)
                            new = tirx.Select(moves, load(best[slot - 1][part], [lane]), new)
                        if slot < filled:
                            kept_there = load(best[slot][part], [lane])
                            new = tirx.Select(self._better(item, best[slot], lane), new, kept_there)
                        store(best[slot][part], [lane], new)

        for slot in range(kept):
            insert(int64(slot), slot + 1, slot)
        with serial(int64(length) - int64(kept)) as step:
            insert(step + int64(kept), kept, kept)
        for slot in range(kept):
            with vector(width) as lane:
                store(self.values, self._at(int64(slot), first + lane), load(best[slot][0], [lane]))
                place = tirx.Cast(str(self.indices.dtype), load(best[slot][1], [lane]))
                store(self.indices, self._at(int64(slot), first + lane), place)

    def _better(self, a: Any, b: Any, lane: Expr) -> Expr:
        """Whether the values in the registers a come before those in b."""
        one, other = load(a[0], [lane]), load(b[0], [lane])
        return one > other if self.largest else one < other
