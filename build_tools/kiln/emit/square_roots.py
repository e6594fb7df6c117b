"""Square roots on cores without an instruction for them, whose compilers' libraries have no such function.

Method    Of the mantissa as an integer, bit by bit: a comparison and a few additions for each bit. Newton's
          method takes eight times as many instructions, as each operation on floats is a function.
Accuracy  Rounded to the nearest float, as by the instruction. NaN below 0.
Source    K. Turkowski, Fixed-point square root, Apple technical report 96, 1994.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr
from tvm.target.codegen import llvm_lookup_intrinsic_id

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.shared_values import STATEMENTS, rewritten_statement
from kiln.tir.vector_expr import Let, i32, i64, register, reinterpreted, scalar, select


@dataclass(frozen=True)
class _Format:
    """A format of floats: constants of its bits, the type of all of them, and how many are the mantissa's."""

    whole: Callable[[int], Any]
    bits: str
    mantissa: int
    bias: int

    @property
    def hidden(self) -> int:
        """The first bit of a mantissa, which a normal number does not store."""
        return 1 << self.mantissa

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return (2 * self.bias + 1) << self.mantissa


_FORMATS = {"float32": _Format(i32, "int32", 23, 127), "float64": _Format(i64, "int64", 52, 1023)}


def root_in_software(func: tirx.PrimFunc, dtypes: Collection[str]) -> tirx.PrimFunc:
    """`func` in which arithmetic computes the square roots of the types `dtypes`, of float32 and float64."""

    intrinsic = llvm_lookup_intrinsic_id("llvm.sqrt")

    def is_root(node: Any) -> bool:
        name = getattr(node.op, "name", "")
        called = name == "tirx.call_llvm_pure_intrin" and int(node.args[0]) == intrinsic
        return (called or name == "tirx.sqrt") and scalar(node) in dtypes

    def concerns(expr: Expr) -> bool:
        def visit(node: Any) -> Any:
            return tvm_ffi.VisitInterrupt() if is_root(node) else None

        return structural_walk(expr, ((Call, visit),)) is not None

    def rewrite(let: Let, expr: Expr) -> Any:
        rule = (Call, lambda node: _root(let, node.args[-1]) if is_root(node) else node)
        return structural_map(expr, (rule,))

    rules = ((STATEMENTS, lambda statement: rewritten_statement(statement, concerns, rewrite)),)
    return func.with_body(structural_map(func.body, rules))


class _Integer:
    """An integer in a register: `value` is what it holds when it is read, `set` makes a statement."""

    def __init__(self, let: Let, value: Expr, name: str) -> None:
        declaration, self.set, self.value = register(value, name)
        let.statements.extend([declaration, self.set(value)])


def _root(let: Let, x: Expr) -> Expr:
    form = _FORMATS[scalar(x)]
    whole, bits = form.whole, _Integer(let, reinterpreted(x, form.bits), "bits").value
    rest = _Integer(let, tirx.bitwise_and(bits, whole(form.hidden - 1)), "rest")
    power = _Integer(let, bits >> whole(form.mantissa), "power")
    let.statements.extend(_normal(form, rest, power))
    root = _digits(let, form, rest)
    # The first bit of the root adds 1 to the exponent.
    exponent = (power.value >> whole(1)) + whole(form.bias - 1)
    made = (root >> whole(1)) + (exponent << whole(form.mantissa))
    ordinary = tirx.all(bits > whole(0), bits < whole(form.infinity))
    is_zero = tirx.EQ(bits << whole(1), whole(0))
    none = whole(form.infinity | form.hidden >> 1)  # NaN
    same = tirx.any(is_zero, tirx.EQ(bits, whole(form.infinity)))
    return reinterpreted(select(ordinary, made, select(same, bits, none)), scalar(x))


def _normal(form: _Format, rest: _Integer, power: _Integer) -> list[Any]:
    """Statements that make `rest` the mantissa with its first bit, and `power` its even exponent.

    The mantissa of an odd exponent is twice as large. Of a number below the least normal one it is shifted.
    """
    whole = form.whole
    shifted = tirx.SeqStmt([rest.set(rest.value << whole(1)), power.set(power.value - whole(1))])
    short = tirx.all(rest.value > whole(0), rest.value < whole(form.hidden))
    return [
        tirx.IfThenElse(
            tirx.EQ(power.value, whole(0)),
            tirx.SeqStmt([power.set(whole(1)), tirx.While(short, shifted)]),
            rest.set(tirx.bitwise_or(rest.value, whole(form.hidden))),
        ),
        power.set(power.value - whole(form.bias)),
        tirx.IfThenElse(
            tirx.EQ(tirx.bitwise_and(power.value, whole(1)), whole(1)), rest.set(rest.value << whole(1)), None
        ),
    ]


def _digits(let: Let, form: _Format, rest: _Integer) -> Expr:
    """The root of `rest`, with one bit more than a mantissa, rounded to a mantissa: its last bit is spare."""
    whole = form.whole
    let.statements.append(rest.set(rest.value << whole(1)))
    root, twice = _Integer(let, whole(0), "root"), _Integer(let, whole(0), "twice")
    bit = _Integer(let, whole(form.hidden << 1), "bit")
    larger = twice.value + bit.value
    fits = tirx.SeqStmt([
        rest.set(rest.value - larger), twice.set(larger + bit.value), root.set(root.value + bit.value)
    ])  # fmt: skip
    step = tirx.SeqStmt([
        tirx.IfThenElse(larger <= rest.value, fits, None),
        rest.set(rest.value << whole(1)),
        bit.set(bit.value >> whole(1)),
    ])  # fmt: skip
    rounded = root.set(root.value + tirx.bitwise_and(root.value, whole(1)))
    let.statements.extend([
        tirx.For(tirx.Var("digit", "int32"), i32(0), i32(form.mantissa + 2), tirx.ForKind.SERIAL, step),
        tirx.IfThenElse(tirx.NE(rest.value, whole(0)), rounded, None),
    ])  # fmt: skip
    return root.value
