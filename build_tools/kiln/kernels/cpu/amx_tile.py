"""Sums of kernels/cpu/gemm_int8.py in the tile registers of Intel's AMX.

A tile register has up to 16 rows of 64 bytes. One instruction (TDPBSSD, TDPBUSD) multiplies `rows` rows of up
to 64 bytes of x by up to 16 groups of four values of k in 16 columns, and adds to `rows` by 16 sums of 32
bits: as many products in a cycle as eight VPDPBUSD. The groups are those of the panels for VPDPBUSD. x is
loaded from where it is: its rows are at equal distances.

Four registers hold sums, two hold x and two hold weights: two by two products for four loads. Registers have
no instructions but loads, stores and products, so that the sums are stored on the stack for the epilogue.
Their sizes are set once for a call of a kernel (`with_tile_registers`); rows that are left over go to VPDPBUSD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.tir.builder import Expr, bind, int64, load, registers, serial, store

LANES = 16  # columns in a tile register
BLOCK = 2  # tile registers of x, and of weights, in a block
# Of a tile register, which has 16 rows: sums of 1 KiB are not put on the stack (`registers` in tir/builder.py).
_MOST_ROWS, _ROW_BYTES = 15, 64
_LEFT, _RIGHT = BLOCK * BLOCK, BLOCK * BLOCK + BLOCK  # first registers of x and of weights
_REGISTERS = 8


@dataclass(frozen=True)
class TileRegisters:
    """The sizes of a kernel's tile registers: `rows` rows of x, `chunk` bytes of k.

    `stride`: bytes between adjacent rows of x. `signed`: whether x is int8, not uint8.
    """

    rows: int
    chunk: int
    stride: int
    signed: bool


# Fewest rows and bytes of k with which tile registers are faster than VPDPBUSD.
_FEWEST_ROWS, _LEAST_CHUNK = 4, 16
# The time to load and store registers, in rows of products; and of a row by VPDPBUSD.
_BLOCK_COST, _ROW_COST = 2, 8


@dataclass(frozen=True)
class Spacing:
    """Rows of x at equal distances: `stride` bytes, for each `line` consecutive rows (None: for all rows)."""

    stride: int
    line: int | None


def tile_registers(rows: int, spacing: Spacing, run: int, signed: bool) -> TileRegisters | None:
    """The sizes for a matmul of `rows` rows (at most) of x; None where VPDPBUSD is faster.

    `run`: contiguous bytes of x in the innermost loop of the reduction. `signed`: whether x is int8.
    """
    chunk = chunk_of(run)
    if chunk is None or chunk < _LEAST_CHUNK:
        return None
    allowed = [
        count
        for count in range(_FEWEST_ROWS, min(rows, _MOST_ROWS) + 1)
        if spacing.line is None or spacing.line % count == 0
    ]
    if not allowed:
        return None

    def cost(count: int) -> tuple[int, int]:
        return rows // count * (count + _BLOCK_COST) + rows % count * _ROW_COST, -count

    return TileRegisters(min(allowed, key=cost), chunk, spacing.stride, signed)


def chunk_of(run: int) -> int | None:
    """Bytes of k in a register for runs of `run` bytes: equal parts of whole groups; None if there are none.

    A product takes the same time for any number of bytes. At most half of them may be missing.
    """
    if run % GROUP:
        return None
    fewest = ceil_div(run, _ROW_BYTES)
    for parts in range(fewest, 2 * fewest + 1):
        if run % (parts * GROUP) == 0:
            return run // parts
    return None


def _call(name: str, *operands: Expr) -> None:
    builder.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *operands))


def _number(register: int) -> Expr:
    return tirx.const(register, "uint8")


def _address(buffer: Any, offset: Expr) -> Expr:
    return tirx.address_of(load(buffer, [offset]))


def _configure(sizes: TileRegisters) -> None:
    """Emit the instruction that sets the sizes of the tile registers."""
    groups = sizes.chunk // GROUP
    row_bytes = [_ROW_BYTES] * _LEFT + [sizes.chunk] * BLOCK + [_ROW_BYTES] * BLOCK
    counts = [sizes.rows] * _RIGHT + [groups] * BLOCK
    palette, unused = [1, *[0] * 15], [0] * _REGISTERS
    content = [
        *palette,
        *(byte for size in row_bytes for byte in (size, 0)),
        *unused,
        *unused,
        *counts,
        *unused,
    ]
    memory = registers([len(content) // 8], "int64")
    for index in range(len(content) // 8):
        word = int.from_bytes(bytes(content[8 * index : 8 * index + 8]), "little")
        store(memory, [int64(index)], int64(word))
    _call("ldtilecfg", _address(memory, int64(0)))


def with_tile_registers(sizes: TileRegisters | None, emit: Callable[[], None]) -> None:
    """Emit the statements of `emit()` between the instructions that set up and free tile registers.

    `sizes`: None: without these instructions. Registers that are not freed are saved at each switch of
    threads.
    """
    if sizes is not None:
        _configure(sizes)
    emit()
    if sizes is not None:
        _call("tilerelease")


class TileSums:
    """Emits the sums of up to BLOCK * `sizes.rows` rows by BLOCK * LANES columns.

    `bases`: offset in x of the first row of each register. `starts`: offset in `weights` of the first group
    of each 16 columns; groups are `group_bytes` apart. `runs`: the reduction, innermost loop over contiguous
    bytes of x.
    """

    def __init__(
        self, sizes: TileRegisters, runs: Sequence[Loop], group_bytes: int, x: Any, bases: Sequence[Expr],
        weights: Any, starts: Sequence[Expr],
    ) -> None:  # fmt: skip
        self.sizes, self.runs, self.group_bytes = sizes, runs, group_bytes
        self.x, self.bases, self.weights, self.starts = x, bases, weights, starts

    def emit(self) -> list[list[Any]]:
        """Emit the sums; return a buffer of [rows * LANES] int32 by register of x and 16 columns."""
        for row in range(len(self.bases)):
            for column in range(len(self.starts)):
                _call("tilezero", _number(BLOCK * row + column))
        self._reduce(self.runs, int64(0), int64(0))
        return [
            [self._stored(BLOCK * row + column) for column in range(len(self.starts))]
            for row in range(len(self.bases))
        ]

    def _stored(self, register: int) -> Any:
        """Emit the store of a register of sums; return the buffer."""
        held = registers([self.sizes.rows * LANES], "int32")
        _call("tilestored64", _number(register), _address(held, int64(0)), int64(_ROW_BYTES))
        return held

    def _reduce(self, remaining: Sequence[Loop], x_offset: Expr, step: Expr) -> None:
        """Emit the loops `remaining` of the reduction, at `x_offset` in x and iteration `step`."""
        loop = remaining[0]
        if len(remaining) > 1:
            with serial(loop.extent) as k:
                inner = step * int64(loop.extent) + k
                self._reduce(remaining[1:], x_offset + k * int64(loop.x_stride), inner)
            return
        chunks = loop.extent // self.sizes.chunk
        first = bind(step * int64(loop.extent // GROUP * self.group_bytes))
        with serial(chunks) as k:
            weights_of_chunk = first + k * int64(self.sizes.chunk // GROUP * self.group_bytes)
            self._chunk(x_offset + k * int64(self.sizes.chunk), weights_of_chunk)

    def _chunk(self, x_offset: Expr, weights_offset: Expr) -> None:
        """Emit the products of one chunk of k."""
        for column, start in enumerate(self.starts):
            address = _address(self.weights, start + weights_offset)
            _call("tileloadd64", _number(_RIGHT + column), address, int64(self.group_bytes))
        for row, base in enumerate(self.bases):
            address = _address(self.x, base + x_offset)
            _call("tileloadd64", _number(_LEFT + row), address, int64(self.sizes.stride))
            for column in range(len(self.starts)):
                name = "tdpbssd" if self.sizes.signed else "tdpbusd"
                sums = BLOCK * row + column
                _call(name, _number(sums), _number(_LEFT + row), _number(_RIGHT + column))
