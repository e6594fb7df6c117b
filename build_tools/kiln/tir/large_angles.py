"""Angles of float32 that are too large for a few products: the rest after quarters of a turn.

Of x = m * 2**e with a whole m of 24 bits, only the bits of 2 / pi from 2**(1 - e) on count: those before make
whole turns (M. Payne, R. Hanek: Radian reduction for trigonometric functions, 1983). Computed lane by lane,
in a branch that vectors without such an angle do not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import Let, cast, f32, i32, i64, lane_by_lane, register, reinterpreted, select

Store = Callable[[Expr], Any]  # makes the statement that stores a value

LIMIT = 8192.0  # the least |x| that is reduced here
_WORD = 0xFFFFFFFF
_LARGEST = 3.4028234663852886e38  # of float32
# 32 zeros, for x below 2**25, then the bits of 2 / pi behind the point.
_BITS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041)


def with_large(let: Let, x: Expr, rest: Expr, quarter: Expr) -> tuple[Expr, Expr]:
    """`rest` and `quarter`, an int32, of lanes of x below LIMIT in magnitude, and the right ones of others.

    x = rest + quarter * pi / 2. The rest of an infinity is NaN.
    """
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    rests, quarters = register(rest, "r"), register(quarter, "q")
    for (declaration, store, _), value in ((rests, rest), (quarters, quarter)):
        let.statements.extend([declaration, store(value)])
    stores, loads = (rests[1], quarters[1]), (rests[2], quarters[2])
    is_large: Any = tirx.abs(x) >= f32(LIMIT)
    if lanes == 1:
        branch = _reduced(x, *stores)
    else:
        is_large = tirx.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{lanes}i1", is_large)
        branch = lane_by_lane((x, *loads), stores, _where_large)
    let.statements.append(tirx.IfThenElse(is_large, branch, None))
    return loads


def _where_large(lanes: Sequence[Expr], stores: Sequence[Store]) -> Any:
    """The statement that replaces the rest and the quarter of an angle if that is large."""
    return tirx.IfThenElse(tirx.abs(lanes[0]) >= f32(LIMIT), _reduced(lanes[0], *stores), None)


def _reduced(x: Expr, store_rest: Store, store_quarter: Store) -> Any:
    """The statement that stores the rest and the quarter of one float32 x."""
    statements: list[Any] = []
    let = Let(statements)
    bits = let(reinterpreted(tirx.abs(x), "int32"), "bits")
    turn, below = _turn(let, bits & i32(0x7FFFFF) | i32(0x800000), (bits >> i32(23)) - i32(120))
    quarter = let(cast("int32", (turn + i64(1 << 29)) >> i64(30)), "quarter")
    fraction = cast("float32", cast("int32", ((turn << i64(2)) | (below >> i64(30))) & i64(_WORD)))
    more = cast("float32", cast("int32", (below & i64((1 << 30) - 1)) >> i64(6)))
    rest = let((fraction + more * f32(2.0**-24)) * f32(math.pi * 2.0**-33), "rest")
    negative = x < f32(0.0)
    signed = select(negative, f32(0.0) - rest, rest)
    statements += [
        store_rest(select(tirx.abs(x) > f32(_LARGEST), x - x, signed)),
        store_quarter(select(negative, i32(0) - quarter, quarter)),
    ]
    return tirx.SeqStmt(statements)


def _turn(let: Let, whole: Expr, position: Expr) -> tuple[Expr, Expr]:
    """`whole`, of 24 bits, times the 64 bits of 2 / (4 pi) from `position` on, without whole turns.

    Two words, as int64: the fraction of a turn in units of 2**-32, and in units of 2**-64.
    """
    word, shift = position >> i32(5), cast("uint32", position & i32(31))
    first, second, third = (let(_chosen(word, _BITS[skip : skip + 5]), "bits") for skip in range(3))
    high, low = _joined(first, second, shift), _joined(second, third, shift)
    whole = let(cast("int64", whole), "whole")
    product = let(whole * cast("int64", low), "low")
    carried = whole * cast("int64", high) + (product >> i64(32))
    return let(carried & i64(_WORD), "turn"), product & i64(_WORD)


def _chosen(number: Expr, words: Sequence[int]) -> Expr:
    """The word with `number`, from 0 to 4."""
    constants = [tirx.IntImm("uint32", word) for word in words]
    chosen: Expr = constants[-1]
    for index in reversed(range(len(constants) - 1)):
        chosen = select(number <= i32(index), constants[index], chosen)
    return chosen


def _joined(first: Expr, second: Expr, shift: Expr) -> Expr:
    """The 32 bits from bit `shift` < 32 on of two words of 32 bits."""
    one, all_but_one = tirx.IntImm("uint32", 1), tirx.IntImm("uint32", 31)
    return (first << shift) | ((second >> one) >> (all_but_one - shift))
