"""Sigmoid and tanh of integer LSTMs against the fixed-point arithmetic of LiteRT, for every int16."""

from __future__ import annotations

import numpy as np
import tvm
from kiln.arrays import Array
from kiln.frontend.tflite import gate_functions, gate_quotients
from tvm import te

X = np.arange(-(1 << 15), 1 << 15)


def product(a: Array | int, b: Array | int) -> Array:
    """round(a b / 2^15), ties upwards."""
    return np.asarray((np.asarray(a) * b + (1 << 14)) >> 15)


def halved(x: Array, bits: int) -> Array:
    """x / 2^bits, ties away from zero."""
    return np.sign(x) * ((np.abs(x) + (1 << (bits - 1))) >> bits)


def exp(n: Array, bits: int) -> Array:
    """exp(n) with 15 bits after the point of n <= 0 with `bits` of 16 before it."""
    quarter = 1 << (13 - bits)
    lowest = (n & (quarter - 1)) - quarter
    x = (lowest << bits) + (1 << 12)
    square = product(x, x)
    cube_and_fourth = halved(product(square, square), 2) + product(square, x)
    rest = product(cube_and_fourth, round(2**15 / 3)) + square
    at_eighth = round(2**15 * np.exp(-1 / 8))
    result = at_eighth + product(x + halved(rest, 1), at_eighth)
    for number in range(bits + 2):
        has_bit = (lowest - n) & (quarter << number) != 0
        result = np.where(has_bit, product(result, round(2**15 * np.exp(-(2.0 ** (number - 2))))), result)
    if bits > 5:
        result = np.where(n < -(1 << (20 - bits)), 0, result)
    return np.where(n == 0, (1 << 15) - 1, result)


def inverse(of: Array) -> Array:
    """2 / (1 + of) with 13 bits after the point, by Newton's method."""
    half = (of + (1 << 15)) >> 1
    x = round(2**13 * 48 / 17) + product(half, -round(2**13 * 32 / 17))
    for _ in range(3):
        x = x + (product(x, (1 << 13) - product(half, x)) << 2)
    return x


def sigmoid() -> Array:
    positive = np.minimum(inverse(exp(-np.abs(X), 3)) << 1, (1 << 15) - 1)
    return np.where(X == 0, 1 << 14, np.where(X > 0, positive, (1 << 15) - 1 - positive))


def tanh(bits: int) -> Array:
    positive = np.minimum((inverse(exp(-np.abs(X), bits + 1)) - (1 << 13)) << 2, (1 << 15) - 1)
    return np.sign(X) * positive


def test_every_gate() -> None:
    """tanh with 0 to 6 bits before the point: the finer ones compute a polynomial, the others look it up."""
    table = gate_quotients.table()
    x = te.placeholder(X.shape, "int32", "x")
    entries = te.placeholder(table.shape, "int16", "entries")
    results = [gate_functions.sigmoid(x, entries)]
    results += [gate_functions.tanh(x, entries, bits) for bits in range(7)]
    made = te.create_prim_func([x, entries, *results])
    run = tvm.compile(made, target="llvm")
    got = [tvm.runtime.empty(X.shape, "int32") for _ in results]
    run(*(tvm.runtime.tensor(value) for value in (X.astype("int32"), table)), *got)
    for number, (values, expected) in enumerate(zip(got, [sigmoid(), *map(tanh, range(7))], strict=True)):
        np.testing.assert_array_equal(values.numpy(), expected, str(number))
