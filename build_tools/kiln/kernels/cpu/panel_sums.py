"""Sums of one register tile of a float32 matmul whose operands are both known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from kiln.tir.builder import Expr, load, registers, serial, store, vector
from kiln.tir.symbols import Extent, int64


@dataclass(frozen=True)
class RowOperand:
    """Rows of the left operand: row r has its value of k at buffer[bases[r] + k * step]."""

    buffer: Any
    bases: Sequence[Expr]
    step: Extent


@dataclass(frozen=True)
class PanelOperand:
    """Columns of the right operand, adjacent for each k: they begin at buffer[start + k * step]."""

    buffer: Any
    start: Expr
    step: Extent


def tile_sums(
    depth: Extent, left: RowOperand, right: PanelOperand, vectors: Sequence[tuple[int, int]]
) -> list[list[Any]]:
    """Emit the loop over k < `depth` of one tile; the sums by row and vector, each a buffer of one vector.

    `vectors`: first column and width of each vector.
    """
    sums = [[registers([width], "float32") for _, width in vectors] for _ in left.bases]
    for row in sums:
        for accumulator, (_, width) in zip(row, vectors, strict=True):
            with vector(width) as lane:
                store(accumulator, [lane], tirx.const(0, "float32"))
    with serial(depth) as k:
        for base, row in zip(left.bases, sums, strict=True):
            factor = load(left.buffer, [base + k * int64(left.step)])
            for accumulator, (offset, width) in zip(row, vectors, strict=True):
                with vector(width) as lane:
                    first = right.start + k * int64(right.step)
                    value = load(right.buffer, [first + int64(offset) + lane])
                    store(accumulator, [lane], load(accumulator, [lane]) + factor * value)
    return sums
