"""The remainder of a division of floats as C's fmod defines it, exactly, for any two numbers.

x - n y, where n is x / y without its fraction, is a number of x's type. n is not: it may have 277 bits
(float32) or 2098 (float64). Long division makes it some bits at a time and keeps the rest alone, which is
exact after every step:

- vectors of float32, in float64: a step takes the 29 leading bits of the quotient. A quotient of two numbers
  of 24 bits that is not such a number differs from it by more than float64's rounding, and its product with y
  has 53 bits. Vectors whose quotients are below 2**29 leave the loop after one step.
- one element, and each lane of a vector of float64, in integers: a step appends zeros to the rest of the
  mantissas' division.

The result has the sign of x; of an infinite x, a y of 0 and NaN it is NaN; of an infinite y it is x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import (
    Let,
    cast,
    f64,
    i32,
    i64,
    in_lanes,
    lane_by_lane,
    register,
    reinterpreted,
    scalar,
    select,
)

_BEYOND = 2.0**200  # more than any float32


@dataclass(frozen=True)
class _FloatBits:
    """A type of floats: the unsigned integer of its bits, their number, and that of the stored mantissa."""

    word: str
    bits: int
    stored: int

    def number(self, value: int) -> Expr:
        """A constant of the unsigned integer type."""
        return tirx.IntImm(self.word, value)


_FORMATS = {"float32": _FloatBits("uint32", 32, 23), "float64": _FloatBits("uint64", 64, 52)}


def concerns(node: Any) -> bool:
    """Whether a remainder in TIR is one of floats."""
    return scalar(node) in (*_FORMATS, "float16")


def lowered(let: Let, node: Any) -> Any:
    """A remainder in TIR as an expression without a remainder of floats."""
    if scalar(node) == "float16":
        return cast("float16", _remainder(let, cast("float32", node.a), cast("float32", node.b)))
    return _remainder(let, node.a, node.b) if concerns(node) else node


def _remainder(let: Let, x: Expr, y: Expr) -> Expr:
    """fmod(x, y) of two numbers, or vectors, of float32 or float64."""
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    x, y = let(x, "x"), let(y, "y")
    if lanes > 1 and scalar(x) == "float32":
        return _of_vectors(let, x, y, lanes)
    declaration, store, load = register(x, "rest")
    let.statements.extend([declaration, store(x)])
    if lanes == 1:
        let.statements.append(_of_numbers(x, y, store))
    else:
        let.statements.append(
            lane_by_lane((y, x), (store,), lambda of, put: _of_numbers(of[1], of[0], put[0]))
        )
    return load


def _of_vectors(let: Let, x: Expr, y: Expr, lanes: int) -> Expr:
    """The remainders of vectors of float32; the loop is for lanes whose quotient has more than 29 bits."""
    # In this order, NaN stays NaN. A greater number stands for infinity: its product with 0 is 0.
    divisor = let(tirx.min(f64(_BEYOND), tirx.abs(cast("float64", y))), "divisor")
    declaration, store, rest = register(divisor, "rest")
    let.statements.extend([declaration, store(tirx.abs(cast("float64", x))), _step(rest, divisor, store)])
    unfinished: Any = rest >= divisor
    again = tirx.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{lanes}i1", unfinished)
    let.statements.append(tirx.While(again, _step(rest, divisor, store)))
    sign = reinterpreted(x, "int32") & in_lanes(i32(-(1 << 31)), x)
    return reinterpreted(reinterpreted(cast("float32", rest), "int32") | sign, "float32")


def _step(rest: Expr, divisor: Expr, store: Any) -> Any:
    """The statement that subtracts from the rest its quotient's 29 leading bits, times the divisor."""
    statements: list[Any] = []
    let = Let(statements)
    quotient = let(rest / divisor, "quotient")
    leading = reinterpreted(reinterpreted(quotient, "int64") & in_lanes(i64(-(1 << 24)), quotient), "float64")
    whole = cast("float64", cast("int32", quotient))
    count = let(select(quotient < f64(2.0**28), whole, leading), "count")
    statements.append(store(rest - count * divisor))
    return tirx.SeqStmt(statements)


def _of_lane(operands: Sequence[Expr], stores: Sequence[Any]) -> Any:
    """The statement that stores the remainder of one lane of y and x."""
    y, x = operands
    return _of_numbers(x, y, stores[0])


def _of_numbers(x: Expr, y: Expr, store: Any) -> Any:
    """The statement that stores the remainder of two numbers, where it is not x itself.

    |x| < |y| and an infinite y leave x, whose bits are then below those of y.
    """
    of = _FORMATS[scalar(x)]
    statements: list[Any] = []
    let = Let(statements)
    sizes = of.number((1 << of.bits - 1) - 1)
    infinity = of.number(((1 << of.bits - of.stored - 1) - 1) << of.stored)
    a, b = (let(reinterpreted(value, of.word) & sizes, "bits") for value in (x, y))
    sign = let((reinterpreted(x, of.word) >> of.number(of.bits - 1)) << of.number(of.bits - 1), "sign")
    finite = tirx.all(a < infinity, b <= infinity, b > of.number(0))
    divided = tirx.IfThenElse(
        finite, _divided(a, b, sign, of, store), store(tirx.FloatImm(scalar(x), float("nan")))
    )
    statements.append(tirx.IfThenElse(tirx.any(a >= b, a > infinity, b > infinity), divided, None))
    return tirx.SeqStmt(statements)


def _divided(a: Expr, b: Expr, sign: Expr, of: _FloatBits, store: Any) -> Any:
    """The statement that stores the remainder of finite numbers, given by their bits without signs, a >= b.

    Each is m 2**(e - c), with a whole m and the same c. As many zeros are appended to the rest of the
    division of one m by the other as the exponents e differ by; the word has room for `room` at a time.
    """
    room = of.bits - of.stored - 1
    statements: list[Any] = []
    let = Let(statements)
    (whole, exponent), (divisor, least) = (_parts(let, bits, of) for bits in (a, b))
    # The bits of a remainder are never more than those of the divisor.
    declare_rest, store_rest, rest = register(whole, "rest")
    declare_left, store_left, left = register(exponent, "left")
    inner: list[Any] = []
    count = Let(inner)(tirx.min(left, of.number(room)), "count")
    inner += [store_rest(tirx.Mod(rest << count, divisor)), store_left(left - count)]
    statements += [
        declare_rest, declare_left, store_rest(tirx.Mod(whole, divisor)), store_left(exponent - least),
        tirx.While(left > of.number(0), tirx.SeqStmt(inner)),
    ]  # fmt: skip
    # The leading bit moves to its place, or as far as the least exponent allows: to a subnormal number.
    leading, one = of.number(1 << of.stored), of.number(1)
    declare_exponent, store_exponent, exponent = register(least, "exponent")
    moves = tirx.all(rest - one < leading - one, exponent > one)  # 0 - 1 is the greatest number
    moved = tirx.SeqStmt([store_rest(rest << one), store_exponent(exponent - one)])
    statements += [declare_exponent, store_exponent(least), tirx.While(moves, moved)]
    value = rest + ((exponent - one) << of.number(of.stored))
    value = select(tirx.EQ(rest, of.number(0)), of.number(0), value) | sign
    statements.append(store(reinterpreted(value, f"float{of.bits}")))
    return tirx.SeqStmt(statements)


def _parts(let: Let, bits: Expr, of: _FloatBits) -> tuple[Expr, Expr]:
    """The whole mantissa and the exponent, at least 1, of a finite number without a sign."""
    leading = of.number(1 << of.stored)
    exponent = let(bits >> of.number(of.stored), "exponent")
    mantissa = bits & (leading - of.number(1))
    normal = exponent > of.number(0)
    whole = let(select(normal, mantissa | leading, bits), "whole")
    return whole, let(tirx.max(exponent, of.number(1)), "exponent")
