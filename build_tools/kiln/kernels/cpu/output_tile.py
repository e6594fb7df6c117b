"""The operands and the results of one register tile of a packed matmul, whichever instructions compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.config.sizes import ceil_div
from kiln.tir.builder import Expr, chunks, int64, vector

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
    """The results of a tile: `columns` columns from `first_column` on, of each of `rows`."""

    rows: Sequence[Expr]
    first_column: Expr
    columns: int
    finish: Finish

    def store(self, row: Expr, lanes: int, sums: Callable[[int, int, Expr], Expr]) -> None:
        """Emit `finish` for all columns of `row`, in vectors of `lanes` columns.

        sums(v, offset, lane): expression of the sums in the lanes `offset` + `lane` of vector `v`.
        """
        for v in range(ceil_div(self.columns, lanes)):
            for offset, width in chunks(min(lanes, self.columns - v * lanes), lanes):
                with vector(width) as lane:
                    value = sums(v, offset, lane)
                    self.finish(row, self.first_column + int64(v * lanes + offset) + lane, value)
