"""The register tiles of kernels/cpu/gemm_int8.py: their sizes for a method and a processor."""

from __future__ import annotations

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.amx_tile import TileRegisters
from kiln.kernels.cpu.gemm_tile import Tile, adjacent_panels, fitted
from kiln.kernels.cpu.matrix_tile import LANES as MATRIX_LANES
from kiln.kernels.cpu.matrix_tile import NAMES as MATRIX
from kiln.kernels.cpu.runtime_product import selects_lane
from kiln.tir.builder import Machine

# By method: the most vectors of sums in a tile, and the most vectors in a row. The other registers hold
# weights, x and intermediate products.
_SUMS = {"smmla": (20, 2), "usmmla": (20, 2), "mull": (16, 4), "sign": (8, 2)}
MOST_SUMS = (24, 4)  # of the other methods
# Of SDOT that takes x from lanes of a register, which holds four groups of a row: 5 rows by 4 vectors.
SUMS_BY_LANE = 20
_SUMS_16_REGISTERS = {"vnni": (12, 2), "mull": (6, 2), "sign": (8, 2), "dot": (8, 2)}

_SIGN_LANES = 8  # most sums in a vector of the method `sign`, which AVX-512 lacks


def choose_tile(method: str, machine: Machine, rows: int, columns: int, line: int) -> Tile:
    """Choose the register tile; runs of `line` rows (pixels of an image row) are equally spaced in x."""
    lanes = min(machine.lanes("int32"), _SIGN_LANES) if method == "sign" else machine.lanes("int32")
    lanes = MATRIX_LANES if method in MATRIX else lanes
    table = _SUMS if machine.registers >= 32 else _SUMS_16_REGISTERS
    sums, vectors = table.get(method, MOST_SUMS)
    if selects_lane(method, lanes):
        sums = SUMS_BY_LANE
    vectors = min(vectors, ceil_div(columns, lanes))
    greatest_rows = min(rows, max(1, sums // vectors), 16)
    step = 2 if method in MATRIX and greatest_rows > 1 else 1  # pairs of rows
    even = max(
        (count for count in range(step, greatest_rows + 1, step) if line % count == 0), default=greatest_rows
    )
    number = adjacent_panels(rows, columns, vectors, lanes)
    tile = Tile(even if 2 * even > greatest_rows else greatest_rows, vectors, lanes, number)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)


def amx_tile(machine: Machine, amx: TileRegisters, rows: int, columns: int) -> Tile:
    """The tile of a block of tile registers, or of the part of the block that `rows` and `columns` fill."""
    lanes = machine.lanes("int32")
    down, across = min(amx.down, rows // amx.rows), min(amx.across, ceil_div(columns, lanes))
    tile = Tile(down * amx.rows, across, lanes)
    return tile if machine.packing is None else fitted(tile, machine.packing.columns, columns)
