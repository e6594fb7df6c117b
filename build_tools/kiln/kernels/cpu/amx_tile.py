"""Sums of kernels/cpu/gemm_int8.py in the tile registers of Intel's AMX.

A tile register has up to 16 rows of 64 bytes. One instruction (TDPBSSD, TDPBUSD) multiplies `rows` rows of up
to 64 bytes of x by up to 16 groups of four values of k in 16 columns, and adds to `rows` by 16 sums of 32
bits: as many products in a cycle as eight VPDPBUSD. The groups are those of the panels for VPDPBUSD. x is
loaded from where it is: its rows are at equal distances.

Four registers hold sums, two hold x and two hold weights: two by two products for four loads. Where k is not
divided into equal parts, two more registers of other sizes hold the last part, and three hold sums. There are
no instructions on registers but loads, stores and products, so that sums are stored on the stack for the
epilogue. Sizes are set once for a call of a kernel (`with_tile_registers`); rows that are left over go to
VPDPBUSD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.tir.builder import bind, int64, load, registers, serial, store

LANES = 16  # columns in a tile register
# Of a tile register. It has 16 rows, but sums of 1 KiB are not put on the stack (tir/builder.py: registers).
_MOST_ROWS, _ROW_BYTES = 15, 64
_REGISTERS = 8


@dataclass(frozen=True)
class TileRegisters:
    """The sizes of a kernel's tile registers: `rows` rows of x, `chunk` bytes of k.

    `rest`: bytes of k after the last whole chunk of a run. `stride`: bytes between adjacent rows of x.
    `signed`: whether x is int8, not uint8.
    """

    rows: int
    chunk: int
    rest: int
    stride: int
    signed: bool

    @property
    def down(self) -> int:
        """Registers of rows in a block."""
        return 3 if self.rest else 2

    @property
    def across(self) -> int:
        """Registers of columns in a block."""
        return 1 if self.rest else 2

    @property
    def left(self) -> list[int]:
        """The registers that hold x, by turns."""
        return [3, 4] if self.rest else [4, 5]

    @property
    def right(self) -> list[int]:
        """The registers that hold weights, one for each register of columns."""
        return [5] if self.rest else [6, 7]


# Fewest rows and bytes of k with which tile registers are faster than VPDPBUSD.
_FEWEST_ROWS, _LEAST_CHUNK = 4, 16
# The time to load and store registers, in rows of products; and of a row by VPDPBUSD.
_BLOCK_COST, _ROW_COST = 2, 8
_REST_LEFT, _REST_RIGHT = 6, 7  # registers of the last part of a run


@dataclass(frozen=True)
class Spacing:
    """Rows of x at equal distances: `stride` bytes, for each `line` consecutive rows (None: for all rows)."""

    stride: int
    line: int | None


def tile_registers(rows: int, spacing: Spacing, run: int, signed: bool) -> TileRegisters | None:
    """The sizes for a matmul of `rows` rows (at most) of x; None where VPDPBUSD is faster.

    `run`: contiguous bytes of x in the innermost loop of the reduction. `signed`: whether x is int8.
    """
    if run % GROUP or run < _LEAST_CHUNK:
        return None
    chunk, rest = parts_of(run)
    allowed = [
        count
        for count in range(_FEWEST_ROWS, min(rows, _MOST_ROWS) + 1)
        if spacing.line is None or spacing.line % count == 0
    ]
    if not allowed:
        return None

    def cost(count: int) -> tuple[int, int]:
        return rows // count * (count + _BLOCK_COST) + rows % count * _ROW_COST, -count

    return TileRegisters(min(allowed, key=cost), chunk, rest, spacing.stride, signed)


def parts_of(run: int) -> tuple[int, int]:
    """Bytes of k in a register, and the bytes left over, for runs of `run` bytes, a multiple of GROUP.

    A product takes the same time for any number of bytes: none are left if a quarter more products suffice.
    """
    fewest = ceil_div(run, _ROW_BYTES)
    for parts in range(fewest, fewest * 5 // 4 + 1):
        if run % (parts * GROUP) == 0:
            return run // parts, 0
    return _ROW_BYTES, run % _ROW_BYTES


def _call(name: str, *operands: Expr) -> None:
    builder.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *operands))


def _number(register: int) -> Expr:
    return tirx.const(register, "uint8")


def _address(buffer: tirx.Buffer, offset: Expr) -> Expr:
    return tirx.address_of(load(buffer, [offset]))


def _configure(sizes: TileRegisters) -> None:
    """Emit the instruction that sets the sizes of the tile registers."""
    row_bytes, counts = [_ROW_BYTES] * _REGISTERS, [sizes.rows] * _REGISTERS  # of sums
    parts = [(left, right, sizes.chunk) for left in sizes.left for right in sizes.right]
    parts += [(_REST_LEFT, _REST_RIGHT, sizes.rest)] if sizes.rest else []
    for left, right, size in parts:
        row_bytes[left], counts[right] = size, size // GROUP
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

    Without `sizes`, these instructions are left out. Registers that are not freed are saved at each switch of
    threads.
    """
    if sizes is not None:
        _configure(sizes)
    emit()
    if sizes is not None:
        _call("tilerelease")


@dataclass(frozen=True)
class GroupedColumns:
    """Weights in groups of four values of k, which are `group_bytes` apart.

    `starts`: offset in `buffer` of the first group of each 16 columns.
    """

    buffer: Any
    starts: Sequence[Expr]
    group_bytes: int


class TileSums:
    """Emits the sums of up to `down` registers of rows of x by `across` registers of columns.

    `bases`: offset in x of the first row of each register. `runs`: the reduction, innermost loop over
    contiguous bytes of x. `initial`: buffers of the sums that the products of each 16 columns are added to;
    None: zeros.
    """

    def __init__(
        self, sizes: TileRegisters, runs: Sequence[Loop], x: Any, bases: Sequence[Expr],
        columns: GroupedColumns, initial: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        self.initial = initial
        self.sizes, self.runs, self.group_bytes = sizes, runs, columns.group_bytes
        self.x, self.bases, self.weights, self.starts = x, bases, columns.buffer, columns.starts

    def emit(self) -> list[list[Any]]:
        """Emit the sums; return a buffer of [rows * LANES] int32 by register of x and 16 columns."""
        for register in range(len(self.bases) * len(self.starts)):
            if self.initial is None:
                _call("tilezero", _number(register))
            else:  # a stride of 0: the same sums in every row
                sums = _address(self.initial[register % len(self.starts)], int64(0))
                _call("tileloadd64", _number(register), sums, int64(0))
        self._reduce(self.runs, int64(0), int64(0))
        stored = [self._stored(register) for register in range(len(self.bases) * len(self.starts))]
        across = len(self.starts)
        return [stored[row * across : (row + 1) * across] for row in range(len(self.bases))]

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
        sizes, chunks = self.sizes, loop.extent // self.sizes.chunk
        first = bind(step * int64(loop.extent // GROUP * self.group_bytes))
        chunk_bytes = sizes.chunk // GROUP * self.group_bytes
        if chunks:
            with serial(chunks) as k:
                weights_offset = first + k * int64(chunk_bytes)
                self._products(x_offset + k * int64(sizes.chunk), weights_offset, sizes.left, sizes.right)
        if sizes.rest:
            rest = x_offset + int64(chunks * sizes.chunk), first + int64(chunks * chunk_bytes)
            self._products(*rest, [_REST_LEFT], [_REST_RIGHT])

    def _products(
        self, x_offset: Expr, weights_offset: Expr, left: Sequence[int], right: Sequence[int]
    ) -> None:
        """Emit the products of one part of k, in the registers `left` of x and `right` of weights."""
        for start, register in zip(self.starts, right, strict=False):
            address = _address(self.weights, start + weights_offset)
            _call("tileloadd64", _number(register), address, int64(self.group_bytes))
        name = "tdpbssd" if self.sizes.signed else "tdpbusd"
        for row, base in enumerate(self.bases):
            x_register = left[row % len(left)]
            address = _address(self.x, base + x_offset)
            _call("tileloadd64", _number(x_register), address, int64(self.sizes.stride))
            for column, register in zip(range(len(self.starts)), right, strict=False):
                sums = row * len(self.starts) + column
                _call(name, _number(sums), _number(x_register), _number(register))
