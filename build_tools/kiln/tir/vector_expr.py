"""Building blocks of tir/math.py: expressions that work on one float32 and on a vector of float32 alike.

They are constants, casts, selects, values that are computed once, and rounding functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, TensorLoad


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.FloatImm("float32", value)


def ramp(start: Expr, lanes: int) -> Expr:
    """The int64 indices start, start + 1, …: one for each of `lanes` lanes."""
    return tirx.Ramp(start, tirx.IntImm("int64", 1), lanes)


def i32(value: int) -> Expr:
    """An int32 constant: a number or a bit pattern."""
    return tirx.IntImm("int32", value)


def f64(value: float) -> Expr:
    """A float64 constant."""
    return tirx.FloatImm("float64", value)


def i64(value: int) -> Expr:
    """An int64 constant: a number or a bit pattern."""
    return tirx.IntImm("int64", value)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial with `coefficients`, highest power first, by Horner's rule."""
    result = f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + f32(coefficient)
    return result


def scalar(x: Expr) -> str:
    """The data type of one lane of x."""
    return str(x.ty.dtype).split("x")[0]


def _like(dtype: str, x: Expr) -> str:
    """`dtype` with as many lanes as x has."""
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def in_lanes(value: Expr, like: Expr) -> Expr:
    """`value` in each lane of `like`; `value` itself where that is no vector."""
    lanes = int(tvm.DataType(str(like.ty.dtype)).lanes)
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def reinterpreted(value: Expr, dtype: str) -> Expr:
    """The bits of `value` as `dtype`, lane by lane."""
    return tirx.reinterpret(_like(dtype, value), value)


def cast(dtype: str, x: Expr) -> Expr:
    """x converted to `dtype`, lane by lane: rounded to nearest, or towards zero for an integer type."""
    return tirx.Cast(_like(dtype, x), x)


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `condition` holds, else `no`, lane by lane; a scalar applies to every lane."""
    lanes = int(tvm.DataType(str(condition.ty.dtype)).lanes)

    def wide(x: Expr) -> Expr:
        single = int(tvm.DataType(str(x.ty.dtype)).lanes) == 1
        return tirx.Broadcast(x, lanes) if lanes > 1 and single else x

    return tirx.Select(condition, wide(yes), wide(no))


def register(value: Expr, name: str) -> tuple[Any, Callable[[Expr], Any], Expr]:
    """Make a register, a local buffer called `name` with the type and the lanes of `value`.

    Returns its declaration, a function that makes the statement which stores a value, and its load.
    """
    lanes = int(tvm.DataType(str(value.ty.dtype)).lanes)
    buffer = tirx.decl_buffer([lanes], scalar(value), name, scope="local")
    zero = tirx.IntImm("int32", 0)
    index = zero if lanes == 1 else tirx.Ramp(zero, tirx.IntImm("int32", 1), lanes)

    def store(stored: Expr) -> Any:
        return tirx.BufferStore(buffer, stored, [index])

    return tirx.AllocBuffer(buffer), store, tirx.BufferLoad(buffer, [index])


@dataclass(frozen=True)
class Let:
    """Computes values once for all their uses: let(value, name, body) is body(value, in a register).

    Statements before the store that is being rewritten put values into registers; `statements` collects
    them. (A bound variable would be simpler, but TVM 0.27's LowerIntrin and code generator copy its value to
    every use, so that chains of functions grow exponentially.)
    """

    statements: list[Any]

    def __call__(self, value: Expr, name: str, body: Callable[[Expr], Expr] = lambda value: value) -> Expr:
        """The expression body(value), or the value without a body; the register is called `name`."""
        if isinstance(value, tirx.Var | TensorLoad):
            return body(value)
        declaration, store, load = register(value, name)
        self.statements.extend([declaration, store(value)])
        return body(load)


def lane_by_lane(
    values: Sequence[Expr],
    stores: Sequence[Callable[[Expr], Any]],
    body: Callable[[Sequence[Expr], Sequence[Callable[[Expr], Any]]], Any],
) -> Any:
    """The statement that computes each lane of the last of `values`, vectors of one length, by itself.

    body(lane of each value, function for each result) makes the statement for one lane; the functions make
    statements that store its results. `stores` do so for the vectors, of as many values as they are. The
    lanes are copies in memory, so that the vectors themselves stay in registers.
    """
    lanes = int(tvm.DataType(str(values[0].ty.dtype)).lanes)
    lane, every = tirx.Var("lane", "int64"), ramp(i64(0), lanes)
    copies = [tirx.decl_buffer([lanes], scalar(value), "lanes", scope="local") for value in values]
    results = copies[len(values) - len(stores) :]

    def store_at(buffer: Any) -> Callable[[Expr], Any]:
        return lambda value: tirx.BufferStore(buffer, value, [lane])

    loop = body([tirx.BufferLoad(copy, [lane]) for copy in copies], [store_at(result) for result in results])
    return tirx.SeqStmt([
        *(tirx.AllocBuffer(copy) for copy in copies),
        *(tirx.BufferStore(copy, value, [every]) for copy, value in zip(copies, values, strict=True)),
        tirx.For(lane, i64(0), i64(lanes), tirx.ForKind.SERIAL, loop),
        *(store(tirx.BufferLoad(result, [every])) for result, store in zip(results, stores, strict=True)),
    ])  # fmt: skip


def floor(let: Let, x: Expr) -> Expr:
    """floor(x) by conversion to int32; values of magnitude 2^23 and more are integers already."""

    def body(x: Expr) -> Expr:
        truncated = cast("float32", cast("int32", x))
        lower = select(truncated > x, truncated - f32(1.0), truncated)
        return select(tirx.abs(x) < f32(8388608.0), lower, x)

    return let(x, "x", body)


def ceil(let: Let, x: Expr) -> Expr:
    """ceil(x) = -floor(-x)."""
    return f32(0.0) - floor(let, f32(0.0) - x)


def trunc(let: Let, x: Expr) -> Expr:
    """x rounded towards zero."""
    return let(
        x, "x", lambda x: select(
            tirx.abs(x) < f32(8388608.0), cast("float32", cast("int32", x)), x
        )
    )  # fmt: skip


def round_small(x: Expr) -> Expr:
    """x rounded to the nearest integer, ties to even, for |x| < 2^22: (x + c) - c with c = 1.5 * 2^23.

    The second c is written as bits, since TVM 0.27 simplifies (x + c) - c to x for floats too.
    """
    return (x + f32(12582912.0)) - reinterpreted(i32(0x4B400000), "float32")


def round_to_bits(x: Expr, point: Expr) -> Expr:
    """round_small(x) + `point`, an int32 whose low 16 bits alone are right: fewer instructions than all bits.

    The bits of x + c, with the c of `round_small`, are 0x4B400000 plus the integer. An even constant point is
    part of c: it changes no tie. `point` is an int32 between -2^21 and 2^21.
    """
    if isinstance(point, tirx.IntImm) and int(point.value) % 2 == 0:
        return reinterpreted(x + f32(12582912.0 + int(point.value)), "int32")
    return reinterpreted(x + f32(12582912.0), "int32") + point


def round_even(let: Let, x: Expr) -> Expr:
    """Nearest integer, ties to even: adding, then subtracting 2^23 with the sign of x drops the fraction."""

    def body(x: Expr) -> Expr:
        magic = select(x < f32(0.0), f32(-8388608.0), f32(8388608.0))
        bits = select(x < f32(0.0), i32(-889192448), i32(0x4B000000))
        return select(tirx.abs(x) < f32(8388608.0), (x + magic) - reinterpreted(bits, "float32"), x)

    return let(x, "x", body)


def round_away(let: Let, x: Expr) -> Expr:
    """Nearest integer, ties away from zero; x + 0.5 would round up just below a half."""

    def body(x: Expr) -> Expr:
        return let(trunc(let, x), "whole", lambda whole: nearest(x, whole))

    def nearest(x: Expr, truncated: Expr) -> Expr:
        further = truncated + select(x < f32(0.0), f32(-1.0), f32(1.0))
        return select(tirx.abs(x - truncated) < f32(0.5), truncated, further)

    return let(x, "x", body)
