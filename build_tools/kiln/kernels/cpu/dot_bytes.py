"""All columns of one row of kernels/cpu/gemm_dot.py on cores with few registers: method `bytes`.

A Cortex-M0+ loads a byte with a constant offset in one instruction only without its sign, so weights are
stored plus 128. The sums begin at -128 times the sum of the row's values, which is computed once for all
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.dot_operands import widened
from kiln.kernels.cpu.dot_packing import BYTE_BIAS, DotPacking
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.tir.builder import bind, int64, load, registers, serial, store
from kiln.tir.vector_expr import i32

# Values of k in an iteration of the loop: sums on the stack are loaded and stored once for all of them.
_STEPS = 4


@dataclass(frozen=True)
class ByteRow:
    """Emits all columns of one row.

    `x`, `weights`: flat buffers. `base`: offset in `x` of the first value that the row reads. `panel`: number
    of the first panel.
    """

    packing: DotPacking
    x: Any
    base: Expr
    weights: Any
    panel: Expr

    def emit(self, columns: int, finish: Callable[[Expr, Expr], None]) -> None:
        """Emit the sums, and finish(column, sum) for each of them."""
        wide = self.packing.tile.columns
        total = registers([1], "int32")
        store(total, [int64(0)], i32(0))

        def add(x_offset: Expr, _: Expr) -> None:
            value = widened(self.x, self.base + x_offset)
            store(total, [int64(0)], load(total, [int64(0)]) + value)

        self._over(self.packing.runs, int64(0), int64(0), 1, add)
        first = bind(load(total, [int64(0)]) * i32(-BYTE_BIAS))
        whole_panels, rest = divmod(columns, wide)
        with serial(whole_panels) as number:
            self._panel(first, number, wide, finish)
        if rest:
            self._panel(first, int64(whole_panels), rest, finish)

    def _panel(self, first: Expr, number: Expr, columns: int, finish: Callable[[Expr, Expr], None]) -> None:
        """Emit the first `columns` columns of a panel; `first`: the value at which each sum begins."""
        wide = self.packing.tile.columns
        start = bind((self.panel + number) * int64(self.packing.panel_bytes))
        sums = registers([wide], "int32")
        for column in range(columns):
            store(sums, [int64(column)], first)

        def add(x_offset: Expr, step: Expr) -> None:
            value = bind(widened(self.x, self.base + x_offset))
            for column in range(columns):
                weight = load(self.weights, [start + step * int64(wide) + int64(column)])
                unsigned = tirx.Cast("int32", tirx.reinterpret("uint8", weight))
                indices = [int64(column)]
                store(sums, indices, load(sums, indices) + value * unsigned)

        self._over(self.packing.runs, int64(0), int64(0), _STEPS, add)
        for column in range(columns):
            finish(number * int64(wide) + int64(column), load(sums, [int64(column)]))

    def _over(
        self,
        remaining: Sequence[Loop],
        x_offset: Expr,
        step: Expr,
        unrolled: int,
        body: Callable[[Expr, Expr], None],
    ) -> None:
        """Emit the loops `remaining`, the last one `unrolled` values an iteration: body(offset in x, k)."""
        loop, count = remaining[0], remaining[0].extent

        def at(k: Expr) -> tuple[Expr, Expr]:
            return x_offset + k * int64(loop.x_stride), step * int64(count) + k

        if len(remaining) > 1:
            with serial(count) as k:
                self._over(remaining[1:], *at(k), unrolled, body)
            return
        with serial(count // unrolled) as k:
            for n in range(unrolled):
                body(*at(k * int64(unrolled) + int64(n)))
        for n in range(count // unrolled * unrolled, count):
            body(*at(int64(n)))
