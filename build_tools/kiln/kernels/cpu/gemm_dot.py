"""The matmul of gemm.py on 8-bit integers, for cores whose instructions add products to a scalar sum.

Computation  sum[row][column] += x[row][k] * w[k][column], int8, uint8 or int16 by int8, in int32.
Packing      The reduction is cut into runs of contiguous bytes of x (a kernel row of an NHWC image).
             smlad: [K,N] → [panel][run][pair of columns][slot][4], where a slot is two values of k. The four
             bytes of columns a and b are a[k], b[k], a[k'], b[k']: SXTB16 extracts the two weights of a, and
             the word itself, read as two halves of 16 bits, is 256 b + a. So one multiply-add of x by the
             extracted weights adds to the sum of a, and one by the word itself to 256 (sum of b) + (sum of
             a): half of the weights are never unpacked. b is stored less 1 where a is negative.
             vmladava: [K,N] → [panel][run][block of 16 values of k][column][values of the block], and after
             the last panel zeros, so that the last vector of a run needs no mask.
             bytes: [K,N] → [panel][k][column], plus 128.
Schedule     smlad: four bytes of x are a load and two SXTB16, which give k, k + 2 and k + 1, k + 3. What is
             left of a run whose length is not a multiple of four is loaded byte by byte, or together with
             bytes that were counted already and have zero weights: no byte outside is read.
             The 32-bit sums of 256 b + a keep 24 bits of b's sum: every `limit` values of k they are
             added to totals.
             vmladava: 16 products for each instruction; the last block of x is loaded under a mask.
             int16 x: a word is two values, k and k + 1, and no columns share words; a vector has 8 values,
             and the weights are widened as they are loaded.
             Short reductions, such as the 9 values of a 3 x 3 kernel on a grey image, are loaded once for
             each pixel, as one run, and the columns are the inner loop. mla: the same on cores that have
             neither instruction.
             bytes: four columns of a row at a time (dot_bytes.py), on cores with few registers as well.
             vmladava: up to four vectors, gathered from rows of the image, if runs fill fewer lanes alone, as
             those of a convolution with groups do; up to twelve, if runs would take twice as many.
             vmladava: four columns of a row, whose results are computed as a vector; longer reductions two
             rows by two columns, which share loads.
Applies      int8 weights. Weights of -128 need both columns to be unpacked. vmladava: int8 x. mla: short
             reductions only. bytes: 8-bit x, from 8 columns.
Accuracy     Exact: no step saturates or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.dot_bytes import ByteRow
from kiln.kernels.cpu.dot_packing import BLOCK, DotPacking, blocks_of
from kiln.kernels.cpu.dot_short import ShortRow
from kiln.kernels.cpu.dot_tile import VectorTile, WordTile
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.tir.builder import Machine, int64

METHODS = {"dsp": "smlad", "mve": "vmladava", "none": "mla"}  # by the target's instructions
_MOST_VECTORS = 4  # of x, which stay in registers
_MOST_SPILLED = 12  # vectors of x, some of which are reloaded for each panel
# The longest reduction whose values of x all stay in registers, by method.
_SHORT = {"smlad": 12, "vmladava": _MOST_SPILLED * BLOCK, "mla": 9}
_REGISTERS = 12  # of a core that keeps the values of a short reduction in registers
_LEAST_COLUMNS = 8  # of a row whose values are worth being added up, for method `bytes`
_GREATEST_DEPTH = 1 << 14  # of sums of weights that are greater by 128, which must fit 32 bits
_BYTE_COLUMNS = 4  # of a panel of method `bytes`: offsets of loads are below 32
_LEAST_SHARED = 18 * BLOCK  # values of a sum, from which shared loads save more than a vector of results


@dataclass(frozen=True)
class DotProduct(DotPacking):
    """An int8 matmul by one of METHODS."""

    def product(self, out: OutputTile, operands: TileOperands) -> None:
        """Emit the computation and the store of one tile."""
        if self.offsets or self.method == "bytes":
            kind = ShortRow if self.offsets else ByteRow
            kind(self, operands.x, operands.bases[0], operands.weights, operands.panel).emit(
                out.columns, lambda column, value: out.finish(out.rows[0], out.first_column + column, value)
            )
            return
        if self.method == "vmladava":
            VectorTile(self, out.columns, operands).emit(out)
            return
        WordTile(self, out.columns, operands).emit()(
            lambda row, column, value: out.finish(out.rows[row], out.first_column + int64(column), value)
        )


def _depth(runs: Sequence[Loop]) -> int:
    """Values of a sum."""
    return int(np.prod([loop.extent for loop in runs], dtype=np.int64))


def _tile(method: str, rows: int, columns: int, depth: int) -> Tile:
    """The register tile: the sums and one row's operands fit the registers.

    depth: values of a sum. With vectors, two rows share loads of weights, one row has a vector of results.
    """
    panel = 4 if columns % 4 in (0, 3) else 2
    if rows == 1 or (method == "vmladava" and panel == 4 and depth < _LEAST_SHARED):
        return Tile(1, panel, 1, adjacent=min(4 // panel, ceil_div(columns, panel)))
    return Tile(2, 2, 1, parts=panel // 2)


def _whole_row(method: str, columns: int) -> Tile:
    """The tile of a short reduction: all columns of one row; the slots of a pair are one panel.

    With vectors, a panel has four columns, whose results are a vector, if these are few columns too many.
    """
    panel = 4 if method == "vmladava" and columns % 4 in (0, 3) else 2
    return Tile(1, panel, 1, adjacent=ceil_div(columns, panel))


def _short_offsets(method: str, runs: tuple[Loop, ...], columns: int) -> tuple[int, ...]:
    """Offsets in x of the values of a short reduction; empty where `runs` is longer."""
    offsets = [0]
    if _depth(runs) > _SHORT[method] or columns < 2:
        return ()
    for loop in runs:
        offsets = [before + k * loop.x_stride for before in offsets for k in range(loop.extent)]
    if method != "vmladava":
        return tuple(offsets)
    # Where the runs alone would fill as many vectors, several rows share each vector of weights.
    blocks = blocks_of(tuple(offsets))
    of_runs = ceil_div(runs[-1].extent, BLOCK) * (len(offsets) // runs[-1].extent)
    fewer = len(blocks) == 1 or len(blocks) < of_runs
    if len(blocks) > _MOST_VECTORS:
        fewer = len(blocks) <= min(_MOST_SPILLED, of_runs // 2)
    return tuple(offsets) if fewer else ()


def _of_bytes(
    machine: Machine, dtypes: Sequence[str], runs: tuple[Loop, ...], columns: int
) -> DotProduct | None:
    """Method `bytes` for sums as of `dot_product`; None where another method must compute them."""
    arrangement, wanted = "bytes", None if machine.packing is None else machine.packing.arrangement
    if dtypes[0] not in ("int8", "uint8") or dtypes[1] != "int8" or wanted not in (None, arrangement):
        return None
    if wanted is None and (columns < _LEAST_COLUMNS or _depth(runs) > _GREATEST_DEPTH):
        return None
    tile = Tile(1, _BYTE_COLUMNS, 1, adjacent=ceil_div(columns, _BYTE_COLUMNS))
    return DotProduct("bytes", tile, runs, dtypes[0] == "int8", False, arrangement)


def dot_product(
    machine: Machine, dtypes: Sequence[str], weights_narrow: bool, runs: tuple[Loop, ...], rows: int,
    columns: int,
) -> DotProduct | None:  # fmt: skip
    """The method for `rows` x `columns` sums over `runs`, the last of which has stride 1.

    Parameters: see gemm_int8.integer_product. Returns None where another method must compute the sums.
    """
    method = METHODS.get(machine.isa)
    if method == "mla" and machine.registers < _REGISTERS:
        return _of_bytes(machine, dtypes, runs, columns)
    if method is None or dtypes[0] not in ("int8", "uint8", "int16") or dtypes[1] != "int8":
        return None
    if runs[-1].x_stride != 1 or (method == "vmladava" and dtypes[0] == "uint8"):
        return None
    wide = dtypes[0] == "int16"
    shared = weights_narrow and method == "smlad" and not wide
    arrangement = f"{method}{' shared' if shared else ''}{' wide' if wide else ''}"
    arrangement_given = None if machine.packing is None else machine.packing.arrangement
    is_long = arrangement_given == arrangement or (wide and method == "vmladava")
    offsets = () if is_long else _short_offsets(method, runs, columns)
    arrangement += " short" if offsets else ""
    if arrangement_given is not None and arrangement_given != arrangement:
        return None
    if method == "mla" and not offsets:
        return None
    tile = _whole_row(method, columns) if offsets else _tile(method, rows, columns, _depth(runs))
    signed = dtypes[0] != "uint8"
    rolled = rows == 1 and method == "vmladava"
    return DotProduct(method, tile, runs, signed, shared, arrangement, offsets, wide=wide, rolled=rolled)
