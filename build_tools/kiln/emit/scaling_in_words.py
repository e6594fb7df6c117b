"""Fixed-point scaling on vectors of cores with Helium (MVE), whose lanes have at most 32 bits.

LLVM computes (m_1 x_1 + m_2 x_2 + b) >> n in 64 bits (lower/fixed_point.py) one lane after the other, in
pairs of core registers. Here the upper and the lower words of the sum are vectors: VMULH is the upper word of
a product, and the top bit of VHADD, half of the sum of two unsigned words, is the carry. For n > 32 the
result is the upper words, shifted. For n < 32 it is combined from both (VQSHL, VSRI), and saturates if it
does not fit 32 bits; a saturated value is far outside of the limits (max and min) that follow, so the stored
value is the same. Without limits, VSHL in place of VQSHL gives the lower 32 bits. (m x + 2^30) >> 31 is one
instruction, VQRDMULH.

Applies to four lanes that are stored in at most 32 bits; x and m of at most 32 bits, n constant. Needs
|b| < 2^62, and sums that fit 64 bits.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map
from kiln.tir.vector_expr import i32

_LANES = 4
_WORDS, _WIDE = f"int32x{_LANES}", f"int64x{_LANES}"
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1  # of 32-bit integers
_STORED = {f"{kind}x{_LANES}" for kind in ("int8", "uint8", "int16", "uint16", "int32")}
_NARROW = ("int8", "uint8", "int16", "uint16", "int32")

Halves = tuple[Any, Any]  # the lower and the upper words of four 64-bit integers


def scale_in_words(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each scaling that is stored in at most 32 bits computed on 32-bit lanes."""

    def on_cast(scaling: Any) -> Any:
        dtype = str(scaling.ty.dtype)
        narrow = _narrowed(scaling.value) if dtype in _STORED else None
        return scaling if narrow is None else tirx.Cast(dtype, narrow[0])

    return structural_map(func, ((tirx.Cast, on_cast),))


def _narrowed(value: Any, low: float = -math.inf, high: float = math.inf) -> tuple[Any, int] | None:
    """`value`, four int64, as int32, and their greatest magnitude; None if no scaling, or too large.

    Below `low` and above `high` the exact value does not matter, so it may saturate.
    """
    if str(value.ty.dtype) != _WIDE:
        return None
    if isinstance(value, tirx.RShift):
        return _shifted(value, low >= _LEAST and high <= _MOST, may_wrap=low == -high == -math.inf)
    if not isinstance(value, tirx.Add | tirx.Sub | tirx.Max | tirx.Min):
        return None
    number = _constant(value.b)
    if number is None or not _LEAST < number <= _MOST:
        return None
    if isinstance(value, tirx.Max | tirx.Min):
        limits = (max(low, number), high) if isinstance(value, tirx.Max) else (low, min(high, number))
        inner = _narrowed(value.a, *limits)
        if inner is None:
            return None
        return type(value)(inner[0], tirx.Broadcast(i32(number), _LANES)), max(inner[1], abs(number))
    added = number if isinstance(value, tirx.Add) else -number
    inner = _narrowed(value.a, low - added, high - added)
    return None if inner is None else _added(*inner, added, low >= _LEAST and high <= _MOST)


def _added(words: Any, bound: int, number: int, may_saturate: bool) -> tuple[Any, int] | None:
    """words + number, where |words| <= bound, and the bound of the sum."""
    addend = tirx.Broadcast(i32(number), _LANES)
    if bound + abs(number) <= _MOST:
        return tirx.Add(words, addend), bound + abs(number)
    if not may_saturate:
        return None
    return tirx.call_llvm_pure_intrin(_WORDS, "llvm.sadd.sat.v4i32", words, addend), -_LEAST


def _shifted(value: Any, may_saturate: bool, may_wrap: bool) -> tuple[Any, int] | None:
    """The words of a sum of terms that is shifted to the right, and their bound; None if they may not fit.

    may_wrap: only the lower 32 bits are used.
    """
    count = _constant(value.b)
    rounded = _rounded_product(value.a) if count == 31 else None
    if rounded is not None:
        return rounded, -_LEAST
    if count is None or not 0 < count < 64 or (count < 32 and not may_saturate and not may_wrap):
        return None
    terms = [_halves(term) for term in _terms(value.a)]
    if any(term is None for term in terms):
        return None
    (low, high), *others = [term for term in terms if term is not None]
    for other_low, other_high in others:
        half = _call("llvm.arm.mve.vhadd.v4i32", low, other_low, unsigned=True)
        carried = tirx.RShift(half, tirx.Broadcast(i32(31), _LANES))  # -1 for a carry
        # Through 64 bits, since TVM promises LLVM that no sum of int32 overflows; LLVM computes 32 of them.
        low = tirx.Cast(_WORDS, tirx.Add(tirx.Cast(_WIDE, low), tirx.Cast(_WIDE, other_low)))
        high = tirx.Sub(tirx.Add(high, other_high), carried)
    if count < 32:
        if may_saturate:
            upper = _call("llvm.arm.mve.vqshl.imm.v4i32", high, i32(32 - count), unsigned=False)
        else:
            upper = tirx.LShift(high, tirx.Broadcast(i32(32 - count), _LANES))
        words = tirx.call_llvm_pure_intrin(_WORDS, "llvm.arm.mve.vsri.v4i32", upper, low, i32(count))
        return words, -_LEAST
    words = tirx.RShift(high, tirx.Broadcast(i32(count - 32), _LANES)) if count > 32 else high
    return words, 1 << (63 - count)


def _rounded_product(value: Any) -> Any:
    """(m x + 2^30) >> 31 of the sum `value`; None for other sums."""
    if not isinstance(value, tirx.Add) or _constant(value.b) != 1 << 30 or not isinstance(value.a, tirx.Mul):
        return None
    left, right = _word(value.a.a), _word(value.a.b)
    if left is None or right is None:
        return None
    return tirx.call_llvm_pure_intrin(_WORDS, "llvm.arm.mve.vqrdmulh.v4i32", left, right)


def _terms(value: Any) -> list[Any]:
    """The terms of a sum; a number that is subtracted is a negative term."""
    if isinstance(value, tirx.Add):
        return [*_terms(value.a), *_terms(value.b)]
    number = _constant(value.b) if isinstance(value, tirx.Sub) else None
    if number is not None:
        return [*_terms(value.a), tirx.Broadcast(tirx.const(-number, "int64"), _LANES)]
    return [value]


def _halves(term: Any) -> Halves | None:
    """The words of a product of two 32-bit integers, of a tensor's elements, or of one number; else None."""
    if isinstance(term, tirx.Mul):
        left, right = _word(term.a), _word(term.b)
        if left is None or right is None:
            return None
        low = tirx.Cast(_WORDS, tirx.Mul(tirx.Cast(_WIDE, left), tirx.Cast(_WIDE, right)))
        return low, _call("llvm.arm.mve.vmulh.v4i32", left, right, unsigned=False)
    if isinstance(term, TensorLoad):
        words = tirx.reinterpret(f"int32x{2 * _LANES}", term)
        low, high = (tirx.Shuffle([words], [i32(2 * i + half) for i in range(_LANES)]) for half in (0, 1))
        return low, high
    if isinstance(term, tirx.Broadcast):
        upper = tirx.RShift(term.value, tirx.const(32, "int64"))
        low, high = (tirx.Broadcast(tirx.Cast("int32", half), _LANES) for half in (term.value, upper))
        return low, high
    return None


def _word(value: Any) -> Any:
    """Four int64 that were widened from at most 32 bits, or are one small number, as int32; else None."""
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) in _STORED:
        return value.value if str(value.value.ty.dtype) == _WORDS else tirx.Cast(_WORDS, value.value)
    number = _constant(value)
    if number is not None:
        return tirx.Broadcast(i32(number), _LANES) if -(1 << 31) <= number < 1 << 31 else None
    if isinstance(value, tirx.Broadcast) and isinstance(value.value, tirx.Cast):
        source = value.value.value
        return tirx.Broadcast(tirx.Cast("int32", source), _LANES) if str(source.ty.dtype) in _NARROW else None
    return None


def _constant(value: Any) -> int | None:
    """The value of all lanes of a constant vector; None for other expressions."""
    if isinstance(value, tirx.Broadcast) and isinstance(value.value, tirx.IntImm):
        return int(value.value.value)
    return None


def _call(name: str, left: Any, right: Any, unsigned: bool) -> Any:
    return tirx.call_llvm_pure_intrin(_WORDS, name, left, right, i32(int(unsigned)))
