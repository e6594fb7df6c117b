"""Constant tensors of float32 that are stored in fewer bits, and widened where a kernel loads an element.

These are tensors that are read in their own order, such as tables of embeddings; weights of matmuls are
packed (kernels/cpu/compact_weights.py). Elements keep their order, except that with 4 bits elements c and c +
16 of a row share a byte: 16 lanes load adjacent bytes. Scales and zero points of blocks are tensors of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.config.sizes import ceil_div
from kiln.params.encodings import Encoding, levels_of
from kiln.tir.symbols import int64
from kiln.tir.vector_expr import cast
from kiln.tir.widen import widened

# Smaller tensors stay float32: what a kernel does to widen them takes more code than they save.
LEAST_BYTES = 4096
# Elements of a row whose low halves of bytes precede their high halves.
_HALF = 16
_MIDDLE = 8


@dataclass(frozen=True)
class Table:
    """A constant of `shape`, stored in `encoding`; `half`: whether an instruction converts float16."""

    encoding: Encoding
    shape: tuple[int, ...]
    half: bool

    @property
    def _matrix(self) -> tuple[int, int]:
        return int(np.prod(self.shape[:-1], dtype=np.int64)), self.shape[-1]

    @property
    def _blocks(self) -> tuple[int, int]:
        """Number of blocks along the rows and along the columns of the matrix."""
        (rows, columns), encoding = self._matrix, self.encoding
        return ceil_div(rows, encoding.rows), ceil_div(columns, encoding.columns)

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row with 4 bits."""
        return ceil_div(self._matrix[1], 2 * _HALF) * _HALF

    def parts(self) -> list[tuple[str, str, int]]:
        """(suffix of the name, data type, number of elements) of each stored tensor."""
        rows, columns = self._matrix
        if self.encoding.is_float:
            return [("", "uint16", rows * columns)]
        count = self._blocks[0] * self._blocks[1]
        scales = "uint16" if self.encoding.half_scales else "float32"
        first = ("", "int8", rows * columns)
        if self.encoding.kind == "int4":
            first = ("", "uint8", rows * self._row_bytes)
        zeros = [("_zeros", "int16", count)] if self.encoding.has_zero else []
        return [first, ("_scales", scales, count), *zeros]

    def labels(self) -> list[str]:
        """A label for each stored tensor, for reports."""
        return [self.encoding.kind, "scales", "zeros"][: len(self.parts())]

    def packs(self) -> list[Any]:
        """The functions that make each stored tensor from the constant in float32."""
        makers = [self._elements, self._scales, self._zeros]
        return makers[: len(self.parts())]

    def _elements(self, value: Array) -> Array:
        kind = self.encoding.kind
        if self.encoding.is_float:
            dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
            narrow: Array = value.astype(dtype).reshape(-1)
            return narrow
        numbers = levels_of(value, self.encoding).levels
        if kind == "int8":
            return numbers.reshape(-1)
        unsigned = (numbers + _MIDDLE).astype(np.uint8)
        missing = 2 * self._row_bytes - unsigned.shape[1]
        halves = np.pad(unsigned, ((0, 0), (0, missing))).reshape(len(unsigned), -1, 2, _HALF)
        joined: Array = halves[:, :, 0] | halves[:, :, 1] << 4
        return joined.reshape(-1)

    def _scales(self, value: Array) -> Array:
        return levels_of(value, self.encoding).scales.astype(self.encoding.scale_type).reshape(-1)

    def _zeros(self, value: Array) -> Array:
        return levels_of(value, self.encoding).zeros.reshape(-1)

    def element(self, buffers: Sequence[tirx.Buffer], indices: Sequence[Expr]) -> Expr:
        """The element at `indices`, or at a flat position, in float32; `buffers`: the stored tensors."""
        row, column = self._place(indices)
        if self.encoding.is_float:
            bits = tirx.BufferLoad(buffers[0], [row * int64(self._matrix[1]) + column])
            return widened(bits, self.encoding.kind, self.half)
        block = self._block_of(row, column)
        number = cast("float32", self._level(buffers[0], row, column))
        if self.encoding.has_zero:
            number = number - cast("float32", tirx.BufferLoad(buffers[2], [block]))
        scale = tirx.BufferLoad(buffers[1], [block])
        return number * (widened(scale, "float16", self.half) if self.encoding.half_scales else scale)

    def _place(self, indices: Sequence[Expr]) -> tuple[Expr, Expr]:
        """(row, column) of the matrix."""
        columns = self._matrix[1]
        if len(indices) != len(self.shape):
            (flat,) = indices
            if self.encoding.is_float:
                return int64(0), flat
            return tirx.floordiv(flat, int64(columns)), tirx.floormod(flat, int64(columns))
        row: Expr = int64(0)
        for index, size in zip(indices[:-1], self.shape[:-1], strict=True):
            row = row * int64(size) + index
        return row, indices[-1]

    def _level(self, buffer: tirx.Buffer, row: Expr, column: Expr) -> Expr:
        if self.encoding.kind == "int8":
            return tirx.BufferLoad(buffer, [row * int64(self._matrix[1]) + column])
        # Elements of int8 and uint8 are widened to int32 by their loads.
        byte_index = tirx.floordiv(column, int64(2 * _HALF)) * int64(_HALF) + tirx.floormod(
            column, int64(_HALF)
        )
        byte_value = cast("int32", tirx.BufferLoad(buffer, [row * int64(self._row_bytes) + byte_index]))
        upper = tirx.floormod(tirx.floordiv(column, int64(_HALF)), int64(2))
        shift = cast("int32", upper) * tirx.const(4, "int32")
        return ((byte_value >> shift) & tirx.const(15, "int32")) - tirx.const(_MIDDLE, "int32")

    def _block_of(self, row: Expr, column: Expr) -> Expr:
        """The number of the block of an element."""
        down, across = self._blocks
        block_index: Expr = int64(0)
        if down > 1:
            block_index = row if self.encoding.rows == 1 else tirx.floordiv(row, int64(self.encoding.rows))
        if across > 1:
            block = column
            if self.encoding.columns > 1:
                block = tirx.floordiv(column, int64(self.encoding.columns))
            block_index = block_index * int64(across) + block
        return block_index


@dataclass(frozen=True)
class StoredBuffer:
    """The stored tensors of a constant, as families read it: `load` of tir/builder.py widens elements."""

    table: Table
    buffers: Sequence[Any]
    dtype: str = "float32"

    def element(self, indices: Sequence[Expr]) -> Expr:
        """The element at `indices`, in float32."""
        return self.table.element(self.buffers, indices)


def tables(encodings: Mapping[Any, Encoding], half: bool) -> dict[Any, Table]:
    """The tables of the parameters with an encoding that are large enough, by parameter."""
    tables_made = {}
    for param, encoding in encodings.items():
        shape = tuple(int(size) for size in param.shape)
        if 4 * int(np.prod(shape, dtype=np.int64)) >= LEAST_BYTES:
            tables_made[param] = Table(encoding, shape, half)
    return tables_made
