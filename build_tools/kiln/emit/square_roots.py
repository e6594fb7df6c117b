"""Square roots on cores without an instruction for them, whose compilers' libraries have no such function.

Method    A first estimate of 1/sqrt(x) from the bits of x, Newton's iterations, and one for x/sqrt(x) itself.
Accuracy  Within 1 unit in the last place; exact for 0, infinity and NaN, NaN below 0. Of numbers below the
          least normal one the root of a multiple is taken.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr
from tvm.target.codegen import llvm_lookup_intrinsic_id

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.shared_values import STATEMENTS, rewritten_statement
from kiln.tir.vector_expr import Let, f32, f64, i32, i64, reinterpreted, scalar, select


@dataclass(frozen=True)
class _Format:
    """A format of floats: its constants, the estimate's first bits, iterations, and the scale of small ones.

    `scale`: even exponent of two that makes each number below 2^`least` normal.
    """

    number: Any
    whole: Any
    bits: str
    first: int
    iterations: int
    least: int
    scale: int


_FORMATS = {
    "float32": _Format(f32, i32, "int32", 0x5F3759DF, 3, -100, 64),
    "float64": _Format(f64, i64, "int64", 0x5FE6EB50C7B537A9, 4, -900, 256),
}


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


def _root(let: Let, x: Expr) -> Expr:
    form = _FORMATS[scalar(x)]
    number = form.number

    def scaled(x: Expr) -> Expr:
        tiny = x < number(2.0**form.least)
        scaled = select(tiny, x * number(2.0**form.scale), x)
        back = select(tiny, number(2.0 ** (-form.scale // 2)), number(1.0))
        return let(scaled, "given", lambda scaled: chosen(x, refined(scaled) * back))

    def refined(given: Expr) -> Expr:
        bits = reinterpreted(given, form.bits)
        start = reinterpreted(form.whole(form.first) - (bits >> form.whole(1)), scalar(x))
        half = given * number(0.5)

        def better(half: Expr, estimate: Expr, steps_left: int) -> Expr:
            if steps_left == 0:
                return let(given * estimate, "root", lambda root: last(root, estimate))
            # half * estimate first: the square of the estimate may be too small for a normal number.
            nearer = estimate * (number(1.5) - half * estimate * estimate)
            return let(nearer, "estimate", lambda found: better(half, found, steps_left - 1))

        def last(root: Expr, estimate: Expr) -> Expr:
            return root + number(0.5) * estimate * (given - root * root)

        return let(half, "half", lambda h: let(start, "start", lambda s: better(h, s, form.iterations)))

    def chosen(x: Expr, root: Expr) -> Expr:
        none = number(float("nan"))
        ordinary = tirx.all(x > number(0.0), x < number(float("inf")))
        return select(ordinary, root, select(x < number(0.0), none, x))

    return let(x, "x", scaled)
