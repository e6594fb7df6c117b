"""float16 without the functions of a compiler's library that convert it.

On processors without an instruction for it LLVM calls functions, one number at a time. TVM defines those of
float32 in every object, with an integer as the parameter and result, while RISC-V with hardware floats passes
a float16 in a register of floats: results were wrong. Here integer arithmetic converts; sums, products and
comparisons of float16 are those of float32, rounded to float16. From float64 few processors have an
instruction, and the other ones convert it by way of float32. bfloat16 (kiln.tir.bfloat16), which LLVM
compiles for few processors, is converted by integer arithmetic on all of them.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.bfloat16 import TYPE, declares
from kiln.tir.shared_values import STATEMENTS, rewritten_statement
from kiln.tir.vector_expr import Let, cast, in_lanes, reinterpreted, scalar, select

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def convert_halves(func: tirx.PrimFunc, by_instruction: bool) -> tirx.PrimFunc:
    """`func` without a conversion of bfloat16, and without one, a sum, a product or a comparison of float16.

    `by_instruction`: the processor converts float16 from and to float32; only conversions from float64 go.
    """
    if not declares(func, "float16", TYPE):
        return func
    nodes = (tirx.Cast,) if by_instruction else (tirx.Cast, *_ARITHMETIC, *_COMPARISONS)
    has_work = _is_cast_by_integers if by_instruction else _has_half

    def concerns(expr: Any) -> bool:
        def visit(node: Any) -> Any:
            return tvm_ffi.VisitInterrupt() if has_work(node) else None

        return structural_walk(expr, ((nodes, visit),)) is not None

    def rewrite(let: Let, expr: Any) -> Any:
        if by_instruction:
            return structural_map(expr, ((tirx.Cast, lambda node: _by_single(let, _brain(let, node))),))
        rules = (
            (tirx.Cast, lambda node: _converted(let, _brain(let, node))),
            (_ARITHMETIC, lambda node: _computed(let, node)),
            (_COMPARISONS, lambda node: _compared(let, node)),
        )
        return structural_map(expr, rules)

    rules = ((STATEMENTS, lambda statement: rewritten_statement(statement, concerns, rewrite)),)
    return func.with_body(structural_map(func.body, rules))


def _has_half(node: Any) -> bool:
    """Whether a cast, an operation or a comparison has a float16 as result or operand, or casts bfloat16."""
    if isinstance(node, tirx.Cast) and _is_brain(node):
        return True
    return _is_half(node) or _is_half(node.value if isinstance(node, tirx.Cast) else node.a)


def _is_half(expr: Any) -> bool:
    return scalar(expr) == "float16"


def _is_double_to_half(cast: Any) -> bool:
    return _is_half(cast) and scalar(cast.value) == "float64"


def _is_cast_by_integers(cast: Any) -> bool:
    return _is_double_to_half(cast) or _is_brain(cast)


def _is_brain(cast: Any) -> bool:
    return TYPE in (scalar(cast), scalar(cast.value))


def _brain(let: Let, node: Any) -> Any:
    """A cast from or to bfloat16 as one from or to float32, whose upper half its bits are."""
    if not isinstance(node, tirx.Cast) or not _is_brain(node):
        return node
    value, result_dtype = node.value, scalar(node)
    if scalar(value) == TYPE:
        bits = cast("uint32", reinterpreted(value, "uint16"))
        wide = reinterpreted(bits << _u32(16, bits), "float32")
        return wide if result_dtype == "float32" else cast(result_dtype, wide)
    if scalar(value) == "float64":
        value = _to_odd(let, value)
    elif scalar(value) != "float32":
        value = cast("float32", value)

    def rounded(bits: Any) -> Any:
        odd = (bits >> _u32(16, bits)) & _u32(1, bits)
        is_nan = (bits & _u32(0x7FFFFFFF, bits)) > _u32(0x7F800000, bits)
        near = select(is_nan, bits | _u32(0x400000, bits), bits + odd + _u32(0x7FFF, bits))
        return reinterpreted(cast("uint16", near >> _u32(16, bits)), TYPE)

    return let(reinterpreted(value, "uint32"), "wide", rounded)


def _by_single(let: Let, node: Any) -> Any:
    """A cast from float64 to float16 as two casts."""
    if not isinstance(node, tirx.Cast) or not _is_double_to_half(node):
        return node
    return cast("float16", _to_odd(let, node.value))


def _converted(let: Let, node: Any) -> Any:
    """A cast from or to float16 as casts from and to float32."""
    if not isinstance(node, tirx.Cast):
        return node
    value, result_dtype = node.value, scalar(node)
    if _is_half(value):
        if result_dtype == "float16":
            return value
        wide = _widened(let, value)
        return wide if result_dtype == "float32" else cast(result_dtype, wide)
    if result_dtype != "float16":
        return node
    if scalar(value) == "float64":
        return _narrowed(let, _to_odd(let, value))
    return _narrowed(let, value if scalar(value) == "float32" else cast("float32", value))


def _computed(let: Let, node: Any) -> Any:
    if not _is_half(node):
        return node
    return _narrowed(let, type(node)(_widened(let, node.a), _widened(let, node.b)))


def _compared(let: Let, node: Any) -> Any:
    if not _is_half(node.a):
        return node
    return type(node)(_widened(let, node.a), _widened(let, node.b))


def _widened(let: Let, half: Any) -> Any:
    """The float32 of a float16."""
    if isinstance(half, tirx.FloatImm):
        return tirx.FloatImm("float32", half.value)
    return let(cast("uint32", reinterpreted(half, "uint16")), "half", _from_bits)


def _from_bits(bits: Any) -> Any:
    """The float32 of the 16 bits of a float16, which are a uint32."""
    moved = (bits & _u32(0x7FFF, bits)) << _u32(13, bits)
    exponent = bits & _u32(0x7C00, bits)
    # The exponent's bias grows by 112, that of infinities and NaN by twice as much. A subnormal float16 has
    # exponent 0: 2^-14 is added by the exponent, and subtracted as a float, so that no operand is a
    # subnormal float32, which some processors flush.
    bias = select(tirx.EQ(exponent, _u32(0x7C00, bits)), _u32(224 << 23, bits), _u32(112 << 23, bits))
    least = in_lanes(tirx.FloatImm("float32", 2.0**-14), bits)
    small = reinterpreted(moved + _u32(113 << 23, bits), "float32") - least
    size = select(tirx.EQ(exponent, _u32(0, bits)), reinterpreted(small, "uint32"), moved + bias)
    return reinterpreted(size | ((bits & _u32(0x8000, bits)) << _u32(16, bits)), "float32")


def _narrowed(let: Let, wide: Any) -> Any:
    """The float16 that is nearest to a float32, ties to even."""

    def of_bits(bits: Any) -> Any:
        return let(bits & _u32(0x7FFFFFFF, bits), "size", lambda size: _to_bits(bits, size))

    return let(reinterpreted(wide, "uint32"), "wide", of_bits)


def _to_bits(bits: Any, size: Any) -> Any:
    """The float16 of the bits of a float32; `size`: the same bits without the sign."""
    # Below 2^-14 the sum with 0.5 is rounded at the last bit of a subnormal float16.
    half = in_lanes(tirx.FloatImm("float32", 0.5), bits)
    small = reinterpreted(reinterpreted(size, "float32") + half, "uint32") - _u32(126 << 23, bits)
    odd = (size >> _u32(13, bits)) & _u32(1, bits)
    rounded = ((size + odd) - _u32((112 << 23) - 0xFFF, bits)) >> _u32(13, bits)
    # 65520 and more are rounded to the infinity; NaN keeps no more than that it is one.
    special_value = select(size > _u32(0x7F800000, bits), _u32(0x7E00, bits), _u32(0x7C00, bits))
    finite = select(size < _u32(113 << 23, bits), small, rounded)
    chosen = select(size >= _u32(0x477FF000, bits), special_value, finite)
    signed = chosen | ((bits >> _u32(16, bits)) & _u32(0x8000, bits))
    return reinterpreted(cast("uint16", signed), "float16")


def _to_odd(let: Let, value: Any) -> Any:
    """A float64 as float32 that is rounded to odd, so that a second rounding is that of the float64."""

    def of_both(value: Any, near: Any) -> Any:
        back, bits = cast("float64", near), reinterpreted(near, "uint32")
        zero = in_lanes(tirx.FloatImm("float64", 0.0), value)
        beyond = select(value < zero, back < value, back > value)
        bits = bits - select(beyond, _u32(1, bits), _u32(0, bits))
        return reinterpreted(bits | select(tirx.EQ(back, value), _u32(0, bits), _u32(1, bits)), "float32")

    return let(
        value, "value", lambda value: let(cast("float32", value), "near", lambda near: of_both(value, near))
    )


def _u32(value: int, like: Any) -> Any:
    return in_lanes(tirx.const(value, "uint32"), like)
