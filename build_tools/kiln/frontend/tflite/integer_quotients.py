"""DIV and L2_NORMALIZATION of quantised tensors with integers, bit for bit as LiteRT's kernels compute them.

A quotient that LiteRT would shift by over 31 bits is 0. A reciprocal comes from three steps of Newton's
method on a divisor that is moved to 1/2 to 1, with 31 bits after the point; one over a square root comes from
`gate_functions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.extents import is_one
from kiln.frontend.tflite.fixed_point import (
    RANGES,
    divided,
    factor_of,
    high_product,
    i32,
    limited,
    range_of_activation,
)
from kiln.frontend.tflite.gate_functions import deviation_shift, inverse_deviation
from kiln.frontend.tflite.gate_quotients import NEWTON, NEWTON_SLOPE, each
from kiln.frontend.tflite.operands import Grid, TfliteOperands

op = relax.op
_ONE = 1 << 29
_MOST_NORMALISED = 1 << 15  # squares of 8 bits whose sum fits 32 bits
_NORM = {"int8": Grid(1 / 128, 0, "int8"), "uint8": Grid(1 / 128, 128, "uint8")}


def _levels(tensor: Any, zero: int, name: str) -> Any:
    """The integers of a tensor, as int32, without their zero point."""
    return each(lambda x: tirx.Cast("int32", x) - i32(zero), tensor, name=name)


def sign_bits(x: Any) -> Any:
    """The number of bits after the first of an int32 that equal the first: 31 for 0 and -1."""
    rest = each(lambda v: v ^ (v >> i32(31)), x, name="rest")
    count = each(lambda _: i32(0), x, name="count")
    for bits in (16, 8, 4, 2, 1):
        free = each(lambda v, b=bits: _chosen(v, b), rest, name="free")
        count = each(lambda c, f: c + f, count, free, name="count")
        rest = each(lambda v, f: v << f, rest, free, name="rest")
    return count


def _chosen(value: Expr, bits: int) -> Expr:
    """`bits` if a 31-bit number has at least that many leading zeros, else 0."""
    return tirx.Cast("int32", value < i32(1 << (31 - bits))) * i32(bits)


def _shifted(x: Expr, bits: Expr) -> Expr:
    """x / 2^bits, ties away from zero, of an int32 above -2^31: no sum is beyond the type. bits: 1 to 32."""
    negative = x >> i32(31)
    size = (x ^ negative) - negative
    size = ((size >> (bits - i32(1))) + i32(1)) >> i32(1)
    return (size ^ negative) - negative


def inverse_of_half(half: Any) -> Any:
    """1 / (2 half) with 31 fractional bits, at most 2^31 - 1.

    `half`: from 1/2 to 1, with 31 fractional bits.
    """
    x = each(lambda h: i32(NEWTON) + high_product(h, i32(NEWTON_SLOPE)), half, name="newton")
    for _ in range(3):
        rest = each(lambda h, v: i32(_ONE) - high_product(h, v), half, x, name="rest")
        x = each(lambda v, r: v + (high_product(v, r) << i32(2)), x, rest, name="newton")
    return each(doubled, x, name="inverse")


def doubled(x: Expr) -> Expr:
    """2 x of a nonnegative int32, saturated at 2^31 - 1, without a branch."""
    return (tirx.min(x, i32((1 << 30) - 1)) << i32(1)) | tirx.Cast("int32", x >= i32(1 << 30))


def _reciprocal(divisor: Any) -> tuple[Any, Any]:
    """1 / |divisor| with 31 bits after the point of a divisor that is moved to 2^31, and the bits it moved.

    divisor: int32 other than 0.
    """
    size = each(lambda v: tirx.max(v, -v), divisor, name="size")
    free = sign_bits(size)
    return inverse_of_half(each(lambda v, f: v << f, size, free, name="half")), free


def division(node: TfliteOperands) -> Any:
    """DIV of quantised tensors; TVM converts other types. A quotient by 0 has no meaning."""
    a, b, result = node.grid(0), node.grid(1), node.result_grid()
    if a is None or b is None or result is None or result.dtype not in RANGES:
        return None
    ratio = np.float32(a.scale) / (np.float32(b.scale) * np.float32(result.scale))
    factor = factor_of(float(ratio))
    limits = range_of_activation(
        node.options("DivOptions").FusedActivationFunction(), result.scale, result.zero, result.dtype
    )

    def compute(dividend: Any, divisor: Any) -> Any:
        below = _levels(divisor, b.zero, "below")
        inverse, moved = _reciprocal(below)

        def signed(*at: Expr) -> Expr:
            negative = _at(below, at) >> i32(31)
            return ((tirx.Cast("int32", _at(dividend, at)) - i32(a.zero)) ^ negative) - negative

        shape = _broadcast(dividend.shape, divisor.shape)
        above = te.compute(shape, signed, name="above")
        free = sign_bits(above)

        def element(*at: Expr) -> Expr:
            quotient = high_product(above(*at) << free(*at), _at(inverse, at))
            right = free(*at) + i32(30 - factor.shift) - _at(moved, at)
            scaled = high_product(quotient, i32(factor.multiplier))
            small = _shifted(scaled, tirx.min(tirx.max(right, i32(1)), i32(32)))
            return limited(small + i32(result.zero), result.dtype, limits)

        return te.compute(shape, element, name="quotient")

    return node.emit_te(compute, node.raw(0), node.raw(1), name="quotient")


def _broadcast(*shapes: Any) -> list[Any]:
    """The shape of an elementwise operator of operands of these shapes."""
    rank = max(len(shape) for shape in shapes)
    padded = [[tirx.IntImm("int64", 1)] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [
        next((size for size in sizes if not is_one(size)), sizes[0]) for sizes in zip(*padded, strict=True)
    ]


def _at(tensor: Any, at: tuple[Expr, ...]) -> Expr:
    """The element of a tensor, whose missing axes and axes of size 1 broadcast, at an index of the result."""
    own = at[len(at) - len(tensor.shape) :]
    first = tirx.IntImm("int64", 0)
    return tensor(*(first if is_one(size) else index for size, index in zip(tensor.shape, own, strict=True)))


def normalised(node: TfliteOperands) -> Any:
    """L2_NORMALIZATION of int8 and uint8 along the last axis; other types: `computing_ops`."""
    source, result = node.grid(0), node.result_grid()
    if source is None or result is None or result != _NORM.get(source.dtype):
        return None
    shape = node.shape(0)
    if shape[-1] > _MOST_NORMALISED:
        return None
    is_signed = source.dtype == "int8"

    def compute(x: Any) -> Any:
        levels = _levels(x, source.zero, "levels")
        column = te.reduce_axis((0, x.shape[1]), name="column")
        first = tirx.IntImm("int64", 0)
        squares = te.compute(
            (x.shape[0], 1),
            lambda row, _: te.sum(levels(row, column) * levels(row, column), axis=column),
            name="squares",
        )
        inverse, right = inverse_deviation(squares), deviation_shift(squares)

        def element(row: Expr, column: Expr) -> Expr:
            bits, of_row = right(row, first), inverse(row, first)
            left = tirx.max(i32(7) - bits, i32(0)) if is_signed else i32(7)
            rest = tirx.max(bits - i32(7), i32(0)) if is_signed else bits
            scaled = divided(high_product(levels(row, column) << left, of_row), rest)
            return limited(scaled + i32(result.zero), result.dtype, RANGES[result.dtype])

        return te.compute(x.shape, element, name="normalised")

    rows = node.bind(op.reshape(node.raw(0), [-1, shape[-1]]))
    return op.reshape(node.emit_te(compute, rows, name="normalised"), shape)


CONVERTERS: dict[str, Callable[[TfliteOperands], Any]] = {"DIV": division, "L2_NORMALIZATION": normalised}
