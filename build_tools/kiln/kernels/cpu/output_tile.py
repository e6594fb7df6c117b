"""The operands and the results of one register tile of a packed matmul, whichever instructions compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import Expr

from kiln.tir.builder import Machine, chunks, int64, load, registers, store, vector

# finish(row, column, sum) emits the epilogue and the store of one element of the output.
Finish = Callable[[Expr, Expr, Expr], None]


@dataclass(frozen=True)
class TileOperands:
    """The operands of a tile: some rows of `x`, and the panel of `weights` that has its columns.

    `x`, `weights`: buffers of one dimension. `bases`: offset in `x` of the first element of each row.
    `panel`: number of the panel. `inside`: first column of the tile in its panel; None: 0.
    """

    x: Any
    bases: Sequence[Expr]
    weights: Any
    panel: Expr
    inside: Expr | None = None


@dataclass(frozen=True)
class OutputTile:
    """The results of a tile: `columns` columns from `first_column` on, of each of `rows`.

    `together`: the most columns that are stored at once, see `stored_together`; 0: a vector of sums.
    """

    rows: Sequence[Expr]
    first_column: Expr
    columns: int
    finish: Finish
    together: int = 0

    def store(self, row: Expr, lanes: int, sums: Callable[[int, int, Expr], Expr]) -> None:
        """Emit `finish` for all columns of `row`, in vectors of `lanes` columns.

        sums(v, offset, lane): expression of the sums in the lanes `offset` + `lane` of vector `v`.
        """
        for first, width in chunks(self.columns, max(lanes, self.together)):
            v, offset = divmod(first, lanes)
            joined = self._joined(v, width, lanes, sums) if width > lanes else None
            with vector(width) as lane:
                value = sums(v, offset, lane) if joined is None else load(joined, [lane])
                self.finish(row, self.first_column + int64(first) + lane, value)

    def _joined(self, v: int, width: int, lanes: int, sums: Callable[[int, int, Expr], Expr]) -> Any:
        """Emit copies of `width` sums of int32, from vector `v` on, into one buffer; returns that buffer."""
        buffer = registers([width], "int32")
        for offset in range(0, width, lanes):
            with vector(lanes) as lane:
                store(buffer, [int64(offset) + lane], sums(v + offset // lanes, 0, lane))
        return buffer


def stored_together(machine: Machine, result: str) -> int:
    """The number of columns that are stored at once; 0: those of one vector of sums.

    `result`: the type of the results; sums are int32.

    Sums that fill several vectors are narrowed to one vector of bytes by fewer instructions than each alone:
    on 64-bit ARM 3 for 16 bytes in place of 11.
    """
    return machine.vector_bits // 8 if machine.isa == "neon" and result in ("int8", "uint8") else 0
