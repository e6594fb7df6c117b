"""Expressions that are the same for one float32 and for a vector of them: what tir/math.py is made of.

Numbers, casts, choices, values that are computed once, and the ways of rounding.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad

Expr = Any


def f32(value: float) -> Expr:
    """A number."""
    return tirx.FloatImm("float32", value)


def i32(value: int) -> Expr:
    """A whole number, or bits."""
    return tirx.IntImm("int32", value)


def scalar(x: Expr) -> str:
    """The data type of one lane of x."""
    return str(x.ty.dtype).split("x")[0]


def _like(dtype: str, x: Expr) -> str:
    """`dtype` with as many lanes as x has."""
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def reinterpreted(value: Expr, dtype: str) -> Expr:
    """The same bits as another type."""
    return tirx.reinterpret(_like(dtype, value), value)


def cast(dtype: str, x: Expr) -> Expr:
    """x as the number of another type that is nearest; towards zero, where that one is whole."""
    return tirx.Cast(_like(dtype, x), x)


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Lane by lane; scalars stand for every lane."""
    lanes = int(tvm.DataType(str(condition.ty.dtype)).lanes)

    def wide(x: Expr) -> Expr:
        single = int(tvm.DataType(str(x.ty.dtype)).lanes) == 1
        return tirx.Broadcast(x, lanes) if lanes > 1 and single else x

    return tirx.Select(condition, wide(yes), wide(no))


# Statements that must run before the store being rewritten; None where nothing may be moved out.
_hoisted: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("hoisted", default=None)


@contextlib.contextmanager
def hoisted(bindings: list[Any] | None) -> Iterator[None]:
    """Within the block `let` adds its statements to `bindings`; None: it moves nothing out."""
    token = _hoisted.set(bindings)
    try:
        yield
    finally:
        _hoisted.reset(token)


def let(value: Expr, name: str, body: Callable[[Expr], Expr]) -> Expr:
    """Compute `value` once for all its uses in `body`.

    It is put into a register by statements before the store. (A bound variable would say it better, but
    TVM 0.27's LowerIntrin and code generator write its value out at every use, so that chains of functions
    grow exponentially.)
    """
    bindings = _hoisted.get()
    if bindings is None or isinstance(value, tirx.Var | TensorLoad):
        return body(value)
    lanes = int(tvm.DataType(str(value.ty.dtype)).lanes)
    register = tirx.decl_buffer([lanes], scalar(value), name, scope="local")
    zero = tirx.IntImm("int32", 0)
    index = zero if lanes == 1 else tirx.Ramp(zero, tirx.IntImm("int32", 1), lanes)
    bindings += [tirx.AllocBuffer(register), tirx.BufferStore(register, value, [index])]
    return body(tirx.BufferLoad(register, [index]))


def floor(x: Expr) -> Expr:
    """floor(x) by conversion; values of 2^23 and more are whole already."""

    def body(x: Expr) -> Expr:
        whole = cast("float32", cast("int32", x))
        lower = select(whole > x, whole - f32(1.0), whole)
        return select(tirx.abs(x) < f32(8388608.0), lower, x)

    return let(x, "x", body)


def ceil(x: Expr) -> Expr:
    """ceil(x) = -floor(-x)."""
    return f32(0.0) - floor(f32(0.0) - x)


def trunc(x: Expr) -> Expr:
    """x towards zero."""
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


def round_even(x: Expr) -> Expr:
    """Nearest integer, ties to even: 2^23 with the sign of x drops the fraction."""

    def body(x: Expr) -> Expr:
        magic = select(x < f32(0.0), f32(-8388608.0), f32(8388608.0))
        bits = select(x < f32(0.0), i32(-889192448), i32(0x4B000000))
        return select(tirx.abs(x) < f32(8388608.0), (x + magic) - reinterpreted(bits, "float32"), x)

    return let(x, "x", body)


def round_away(x: Expr) -> Expr:
    """Nearest integer, ties away from zero. (x + 0.5 would round up just below a half.)"""

    def body(x: Expr) -> Expr:
        return let(trunc(x), "whole", lambda whole: nearest(x, whole))

    def nearest(x: Expr, whole: Expr) -> Expr:
        further = whole + select(x < f32(0.0), f32(-1.0), f32(1.0))
        return select(tirx.abs(x - whole) < f32(0.5), whole, further)

    return let(x, "x", body)
