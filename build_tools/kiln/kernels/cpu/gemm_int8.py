"""The matmul of gemm.py on 8-bit integers, with the instructions that add several products at once.

Computation  sum[row][column] += x[row][k] * w[k][column], int8 or uint8 by int8, in int32. Four values of k
             make a group: one load of four bytes of x, broadcast to all lanes, times four weights of each
             column.
Packing      [K,N] → [panel][group][NR][4]. The reduction is cut into runs of contiguous bytes of x (a kernel
             row of an NHWC image). The last group of a run whose length is not a multiple of four begins
             earlier, with zero weights for bytes that were counted already: no byte outside is read.
             Where the instruction needs x of the other signedness, x - 128 or x + 128 is used (one
             exclusive or). Each panel then begins with the bits to flip, and with the initial sums that
             undo the shift, one int32 per column. Where the variants of a target differ in the signedness
             that they need, every panel has this head, and kernels without a shift skip it.
Schedule     One of these methods, by the target's instructions:
             vnni  vpdpbusd adds four products u8 x s8 to a lane; 128, 256 or 512 bits. With AMX as well,
                   rows that fill tile registers are multiplied there (amx_tile.py).
             sdot  the ARM instruction for four products s8 x s8; SVE: in registers of any length. NEON: it
                   takes a group of x from any lane, so one load fetches four groups of a row.
             smmla ARM's I8MM: two rows by two columns by eight values of k (matrix_tile.py); usmmla: x in
                   uint8, which needs no shift. A single row is multiplied by sdot or usdot.
             sign  SSSE3 and AVX2: pmaddubsw(|x|, w with the sign of x), then pmaddwd by ones.
             mull  other NEON: smull and smlal put two products in a 16-bit lane, sadalp adds pairs. Two
                   products fit where weights are above -128 (2 * 128 * 127 < 2^15); else each is added.
             dot   WebAssembly: operands are widened to 16 bits, i32x4.dot_i16x8_s adds two products.
Applies      int8 weights; runs of at least four bytes. `sign` keeps two products in 16 bits and changes
             signs of weights, so it needs weights above -128. Other cases are left to gemm.py.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.amx_tile import GroupedColumns, Spacing, TileRegisters, TileSums, tile_registers
from kiln.kernels.cpu.gemm_dot import METHODS, DotProduct, dot_product
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_operands import IntegerOperands
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.kernels.cpu.int8_tile import MOST_SUMS, amx_tile, choose_tile
from kiln.kernels.cpu.int8_vectors import VectorSums
from kiln.kernels.cpu.matrix_tile import NAMES as MATRIX
from kiln.kernels.cpu.matrix_tile import MatrixTile
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.tir.builder import Array, Machine, bind, divide, int64, load, modulo, serial

# Magnitudes of weights: of 7 bits, and of all of int8.
SEVEN_BITS, WHOLE = 64, 128
BYTES = frozenset({"int8", "uint8"})


def magnitude(weights: Array) -> int:
    """The least of 64, 127 and 128 that no element of int8 `weights` exceeds in magnitude; other types: 128.

    64, weights of 7 bits: two products by uint8 fit 16 bits. 127: two products by int8 do.
    """
    if str(weights.dtype) != "int8":
        return WHOLE
    greatest = max(-int(weights.min(initial=0)), int(weights.max(initial=0)))
    return next(limit for limit in (SEVEN_BITS, 127, WHOLE) if greatest <= limit)


def method_of(machine: Machine, weights_narrow: bool, x_type: str = "int8") -> str | None:
    """Name of the method for a machine and the type of x, or None where gemm.py has to compute."""
    if machine.dot in ("vnni", "sdot"):
        return machine.dot
    if machine.dot == "i8mm":
        return "usmmla" if x_type == "uint8" else "smmla"
    if machine.isa in ("neon", "simd128"):
        return "mull" if machine.isa == "neon" else "dot"
    return "sign" if machine.isa in ("sse4", "avx2", "avx512") and weights_narrow else None


def multiplied_types(machine: Machine) -> frozenset[str]:
    """The element types of x that the instructions of a machine multiply by int8 weights."""
    if machine.dot == "i8mm" or machine.isa == "simd128":
        return BYTES
    return frozenset({"uint8" if machine.dot == "vnni" else "int8"})


@dataclass(frozen=True)
class IntegerProduct(IntegerOperands):
    """An int8 matmul by one method; `amx`: in tile registers, but for single rows that are left over."""

    amx: TileRegisters | None = None

    def first_group(self, column: Expr) -> Expr:
        """Offset in the packed weights of the first group of `column`, which need not begin a panel.

        Where panels have a head, the initial sum of `column` is GROUP * tile.columns bytes before it.
        """
        panel = divide(column, self.tile.columns) * int64(self.panel_bytes)
        inside = modulo(column, self.tile.columns) * int64(GROUP)
        return bind(panel + inside + int64(self.head_bytes))

    def vector_offset(self, number: int) -> int:
        """Bytes from a group of a tile's first vector of columns to that of vector `number`, in any panel."""
        panel, inside = self.place_of_vector(number)
        return panel * self.panel_bytes + inside

    def product(self, out: OutputTile, operands: TileOperands) -> None:
        """Emit the computation and the store of one tile."""
        count, vectors = len(out.rows), ceil_div(out.columns, self.tile.lanes)
        starts = [
            bind((operands.panel + int64(p)) * int64(self.panel_bytes))
            for p in range(ceil_div(vectors, self.tile.vectors))
        ]
        # Bytes of a group that belong to columns before the tile.
        skipped = int64(0) if operands.inside is None else bind(operands.inside * int64(GROUP))

        def rows_of(part: slice) -> tuple[OutputTile, TileOperands]:
            return replace(out, rows=out.rows[part]), replace(operands, bases=operands.bases[part])

        first = 0
        if self.amx is not None and count >= self.amx.rows:
            first = count // self.amx.rows * self.amx.rows
            self._in_tile_registers(*rows_of(slice(first)), starts, skipped)
        most = count if self.amx is None else max(1, MOST_SUMS[0] // vectors)
        for begin in range(first, count, most):
            self._in_vectors(*rows_of(slice(begin, begin + most)), starts, skipped)

    def _in_tile_registers(
        self, out: OutputTile, operands: TileOperands, starts: Sequence[Expr], skipped: Expr
    ) -> None:
        """Emit the tile by tile registers, which its rows fill; parameters as of `_in_vectors`."""
        assert self.amx is not None
        count, lanes = self.amx.rows, self.tile.lanes
        groups = [
            bind(starts[panel] + skipped + int64(self.head_bytes + inside))
            for panel, inside in map(self.place_of_vector, range(ceil_div(out.columns, lanes)))
        ]
        columns = GroupedColumns(operands.weights, groups, GROUP * self.tile.columns)
        sums = TileSums(self.amx, self.runs, operands.x, operands.bases[::count], columns).emit()
        for first_row, vectors in zip(out.rows[::count], sums, strict=True):
            with serial(count) as number:
                self._store_row(out, bind(first_row + number), vectors, number * int64(lanes))

    def _in_vectors(
        self, out: OutputTile, operands: TileOperands, starts: Sequence[Expr], skipped: Expr
    ) -> None:
        """Emit the tile by vector registers.

        `starts`: offset in the weights of each panel that the tile spans. `skipped`: bytes of a group before
        the tile's columns.
        """
        vectors = ceil_div(out.columns, self.tile.lanes)
        if self.method in MATRIX and len(out.rows) > 1 and self.run > GROUP:
            groups = [start + skipped + int64(self.head_bytes) for start in starts]
            places = [self.place_of_vector(v) for v in range(vectors)]
            tile = MatrixTile(self, operands.x, operands.bases, operands.weights, groups, places)
            self._store(out, tile.emit())
        else:
            self._store(out, VectorSums(self, operands, vectors, starts, skipped).emit())

    def _store(self, out: OutputTile, sums: Sequence[Sequence[Any]]) -> None:
        """Emit the stores of a tile; `sums`: by row and vector, the buffer that holds them."""
        for row, vectors in zip(out.rows, sums, strict=True):
            self._store_row(out, row, vectors, int64(0))

    def _store_row(self, out: OutputTile, row: Expr, vectors: Sequence[Any], first_sum: Expr) -> None:
        """Emit the stores of a row, whose sums are from `first_sum` on in the buffer of each vector."""
        out.store(
            row, self.tile.lanes,
            lambda v, offset, lane: load(vectors[v], [first_sum + int64(offset) + lane]),
        )  # fmt: skip


def merged(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Drop outer loops of extent 1, and fuse each loop with the inner loop that fills its stride."""
    result: list[Loop] = []
    for loop in reversed(loops):
        if result and loop.x_stride == result[0].extent * result[0].x_stride:
            result[0] = Loop(loop.extent * result[0].extent, result[0].x_stride)
        elif loop.extent > 1 or not result:
            result.insert(0, loop)
    return tuple(result)


@dataclass(frozen=True)
class MatmulSize:
    """`rows` by `columns` sums over `loops`, the loops of the reduction from the outermost to the innermost.

    `line`: number of consecutive rows that are equally spaced in x.
    """

    rows: int
    columns: int
    loops: Sequence[Loop]
    line: int


def integer_product(
    machine: Machine,
    dtypes: Sequence[str],
    weights_narrow: bool,
    size: MatmulSize,
    spacing: Spacing | None = None,
) -> IntegerProduct | DotProduct | None:
    """The method and the tile for the sums of `size`, x and weights of `dtypes`.

    Returns None where gemm.product has to compute them. `weights_narrow`: whether their `magnitude` is below
    128. `spacing`: of the rows, for a product in tile registers; None: vector registers are used.
    """
    rows, columns, runs = size.rows, size.columns, merged(size.loops)
    if machine.isa in METHODS:
        return dot_product(machine, dtypes, weights_narrow, runs, rows, columns)
    method = method_of(machine, weights_narrow, dtypes[0])
    if method is None or dtypes[0] not in BYTES or dtypes[1] != "int8":
        return None
    if runs[-1].extent < GROUP or runs[-1].x_stride != 1:
        return None
    offset = 128 if dtypes[0] == "int8" else -128  # makes x the other type
    shift = 0 if dtypes[0] in multiplied_types(machine) else offset
    heads = bool(shift) or dtypes[0] in machine.heads
    amx = None
    if machine.tiles and spacing is not None:
        amx = tile_registers(rows, spacing, runs[-1].extent, dtypes[0] == "int8")
    tile = (
        choose_tile(method, machine, rows, columns, size.line)
        if amx is None
        else amx_tile(machine, amx, rows, columns)
    )
    arrangement, head_lanes = "halves" if method == "mull" else "groups", tile.lanes
    if machine.packing is not None:
        arrangement, head_lanes = machine.packing.arrangement, machine.packing.head_lanes
        if not arrangement or (method != "mull" and arrangement != "groups"):
            return None
        if head_lanes < tile.lanes and heads:
            return None
    arm32 = machine.registers < 32 and method == "mull"
    head_lanes = head_lanes if heads else 0
    wide = not weights_narrow
    return IntegerProduct(method, arm32, tile, runs, shift, head_lanes, offset, arrangement, wide, amx)
