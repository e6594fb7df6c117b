"""Sums of one register tile of a float32 matmul whose operands are both known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent
from kiln.tir.builder import bind, chunks, load, registers, serial, store, vector
from kiln.tir.symbols import floor_div, int64, is_dynamic
from kiln.tir.vector_expr import ramp


@dataclass(frozen=True)
class RowOperand:
    """Rows of the left operand: row r has its value of k at buffer[bases[r] + k * step].

    `adjacent`: whether bases[r] is bases[0] + r.
    """

    buffer: Any
    bases: Sequence[Expr]
    step: Extent
    adjacent: bool = False

    def at(self, k: Expr, most_lanes: int) -> list[Expr]:
        """The value of k of each row; up to `most_lanes` adjacent rows are loaded together."""
        bases = [base + k * int64(self.step) for base in self.bases]
        if most_lanes == 1 or not self.adjacent:
            return [load(self.buffer, [base]) for base in bases]
        values: list[Expr] = []
        for row, count in chunks(len(bases), most_lanes):
            values += [value for [value] in adjacent_lefts(self.buffer, [bases[row]], count)]
        return values


@dataclass(frozen=True)
class PanelOperand:
    """Columns of the right operand, adjacent for each k: they begin at buffer[start + k * step]."""

    buffer: Any
    start: Expr
    step: Extent


def adjacent_lefts(buffer: tirx.Buffer, offsets: Sequence[Expr], steps: int) -> list[list[Expr]]:
    """Emit a load for each row of its left operands of `steps` consecutive steps of k; returns them by step.

    `offsets`: by row, the offset of the first operand in `buffer`, where the others follow it. They are lanes
    of the loaded vectors, from which the multiply-adds of ISAs in `gemm_tile._LEFT_STEPS` take them.
    """
    if steps == 1:
        return [[load(buffer, [offset]) for offset in offsets]]
    loaded = [bind(load(buffer, [ramp(offset, steps)])) for offset in offsets]
    return [[tirx.Shuffle([row], [tirx.IntImm("int32", k)]) for row in loaded] for k in range(steps)]


def tile_sums(
    depth: Extent, left: RowOperand, right: PanelOperand, vectors: Sequence[tuple[int, int]],
    left_steps: int = 1,
) -> list[list[Any]]:  # fmt: skip
    """Emit the loops over k < `depth` of one tile; the sums by row and vector, each a buffer of one vector.

    `vectors`: first column and width of each vector. `left_steps`: as of a `Tile`.
    """
    sums = [[registers([width], "float32") for _, width in vectors] for _ in left.bases]
    for row in sums:
        for accumulator, (_, width) in zip(row, vectors, strict=True):
            with vector(width) as lane:
                store(accumulator, [lane], tirx.const(0, "float32"))

    def add(lefts: Sequence[Expr], k: Expr) -> None:
        first = right.start + k * int64(right.step)
        for factor, row in zip(lefts, sums, strict=True):
            for accumulator, (offset, width) in zip(row, vectors, strict=True):
                with vector(width) as lane:
                    value = load(right.buffer, [first + int64(offset) + lane])
                    store(accumulator, [lane], load(accumulator, [lane]) + factor * value)

    done: Extent = 0
    if left_steps > 1 and not is_dynamic(left.step) and left.step == 1:
        groups = floor_div(depth, left_steps)
        with serial(groups) as group:
            first = bind(group * int64(left_steps))
            by_step = adjacent_lefts(left.buffer, [base + first for base in left.bases], left_steps)
            for k, lefts in enumerate(by_step):
                add(lefts, first + int64(k))
        done = groups * left_steps
    if isinstance(depth, int) and done == depth:
        return sums
    with serial(depth - done) as rest:
        k = int64(done) + rest
        add(left.at(k, left_steps), k)
    return sums
