"""Layouts of tensor-core operands in shared memory: float16, bfloat16, 8-bit integers, and tf32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm

from kiln.kernels.gpu import half
from kiln.kernels.gpu.block_tile import DEPTH
from kiln.tir.symbols import is_dynamic


@dataclass(frozen=True)
class FragmentForm:
    """Layout of operands in shared memory.

    `dtype`: data type of an element; `edge`: elements of a fragment along k; `row_gap`: elements by which the
    distance of rows exceeds a multiple of 16, where k is contiguous and where it is not. None: k is
    contiguous, and divided into columns of `edge` elements, each of which holds all rows.
    """

    dtype: str
    edge: int
    row_gap: tuple[int, int] | None

    @property
    def widest(self) -> int:
        """Elements of the widest copy, of 16 bytes."""
        return 128 // self.bits

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return int(tvm.DataType(self.dtype).bits)

    def gap(self, along_k: bool) -> int | None:
        """Elements between rows in shared memory, of an operand that is contiguous `along_k` or not.

        None without a gap.
        """
        return None if self.row_gap is None else self.row_gap[0 if along_k else 1]

    def step_bytes(self, i: int, j: int, depth: int, transposed: bool) -> int:
        """Bytes in shared memory of the slices of both operands in a step: `i` rows of A, `j` columns of B.

        `depth`: elements of k in the step; `transposed`: B is contiguous along k, as A always is.
        """
        rows = (i, depth), (j, depth) if transposed else (depth, j)
        gaps = self.gap(True) or 0, self.gap(transposed) or 0
        return sum(n * (length + gap) for (n, length), gap in zip(rows, gaps, strict=True)) * self.bits // 8

    def depth(self, k: Any) -> int:
        """Elements of k in a step: of 8 bits twice as many, unless more of them would be padding."""
        long = self.row_gap is None and not is_dynamic(k) and int(k) % (2 * DEPTH) == 0
        return 2 * DEPTH if long else DEPTH


HALF, BRAIN = (FragmentForm(dtype, 16, (8, 8)) for dtype in (half.HALF, half.BRAIN))
# Each lane reads one word of a fragment: the lanes cover 8 rows by 4 of k, or 4 of k by 8 columns.
TF32 = FragmentForm("float32", 8, (4, 8))
INTEGERS = [FragmentForm(dtype, 16, None) for dtype in ("int8", "uint8")]


@dataclass(frozen=True)
class OperandSlice:
    """The part of operand `number` that a block reads in one step of k.

    `of_thread`: elements that a thread copies. `run`: contiguous elements in memory. `gap`: of its rows in
    shared memory, see FragmentForm.gap.
    """

    number: int
    of_thread: int
    run: Any
    gap: int | None
