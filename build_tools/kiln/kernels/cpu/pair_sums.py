"""Sums of products of 16-bit pairs by one instruction; rows and columns may have been 8 bits before.

Sums of 64 bits are kept as two of 32: the sum modulo 2^32, and the sum of the upper 16 bits of the products
of each pair. Its difference from 2^16 times the second is a number from 0 to 2^16 for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.runtime_product import multiply_pairs
from kiln.tir.builder import bind, int64, load, registers, serial, store
from kiln.tir.vector_expr import ramp


def pairs_of_group(group: Expr, half: int, lanes: int) -> Expr:
    """The first (`half` 0) or last two of four 8-bit weights of each of `lanes` columns, in 16 bits.

    `group`: the weights of one group as packed by gemm_int8.py, four of each column, as int16x(2 * lanes).
    """
    chosen = [tirx.IntImm("int32", lane) for lane in range(half, 2 * lanes, 2)]
    pairs = tirx.reinterpret(f"int8x{2 * lanes}", tirx.Shuffle([group], chosen))
    return bind(tirx.Cast(f"int16x{2 * lanes}", pairs))


@dataclass(frozen=True)
class WidenedColumns:
    """Columns of 16 bits, for each pair of k `stride` vectors of `lanes` columns.

    `first`: offset in `buffer` of the first pair.
    """

    buffer: Any
    first: Expr
    stride: int
    lanes: int


def pair_sums(
    method: str, rows: Any, starts: Sequence[Expr], columns: WidenedColumns, count: int, vectors: int
) -> list[list[Any]]:
    """Emit the sums of `count` pairs of products; return the registers of each row and vector of columns.

    `method`: of runtime_product.PAIRS. `rows`: the buffer of 16-bit rows, which begin at `starts`.
    `vectors`: of the columns, the first of each pair that are multiplied.
    """
    lanes, width, sums = columns.lanes, 2 * columns.lanes, ramp(int64(0), columns.lanes)
    totals = [[registers([lanes], "int32") for _ in range(vectors)] for _ in starts]
    for accumulator in (accumulator for row in totals for accumulator in row):
        store(accumulator, [sums], tirx.Broadcast(tirx.const(0, "int32"), lanes))
    with serial(count) as pair:
        offset = bind(columns.first + pair * int64(columns.stride * width))
        right = [bind(load(columns.buffer, [ramp(offset + int64(v * width), width)])) for v in range(vectors)]
        for start, row in zip(starts, totals, strict=True):
            two = tirx.reinterpret("int32", load(rows, [ramp(start + pair * int64(2), 2)]))
            left = bind(tirx.reinterpret(f"int16x{width}", tirx.Broadcast(two, lanes)))
            for accumulator, column in zip(row, right, strict=True):
                products = multiply_pairs(method, lanes, left, column)
                store(accumulator, [sums], load(accumulator, [sums]) + products)
    return totals


# The most products of pairs of which `joined` makes the sum.
MOST_PAIRS = 32764


def upper_bits(products: Expr, lanes: int, lowest: bool) -> Expr:
    """The upper 16 bits of the products of a pair, in each lane.

    lowest: also of 2^31, which is the sum of two products of -2^15 by itself and -2^31 as int32. No other two
    products have that sum, and less 1 it is nearly 2^31.
    """
    if lowest:
        products = bind(products - tirx.Broadcast(tirx.const(1, "int32"), lanes))
    return tirx.shift_right(products, tirx.Broadcast(tirx.const(16, "int32"), lanes))


def joined(low: Expr, high: Expr, lanes: int) -> Expr:
    """The sums in int64, of the sums modulo 2^32 and those of at most MOST_PAIRS `upper_bits`."""
    above = tirx.shift_left(high, tirx.Broadcast(tirx.const(16, "int32"), lanes))
    rest = tirx.Cast(f"int64x{lanes}", low - above)  # below 2^31
    places = tirx.Broadcast(tirx.const(16, "int64"), lanes)
    return tirx.shift_left(tirx.Cast(f"int64x{lanes}", high), places) + rest
