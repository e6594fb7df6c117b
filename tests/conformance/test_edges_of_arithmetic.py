"""Results at the edges of element types: comparisons of NaN, and integer divisions that have no quotient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tvm import relax

from .lowered import Array, Compiled, module, runnable_alone

op = relax.op
SIZE = 37  # more than one vector, and not whole ones
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")


def _floats() -> tuple[Array, Array]:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], "float32")
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    return tuple(np.resize(row, SIZE).astype("float32") for row in pairs)  # type: ignore[return-value]


def _integers(dtype: str) -> tuple[Array, Array]:
    limits = np.iinfo(dtype)
    numbers = [limits.min, limits.max, 0, 1, 7, *([-1, -7] if limits.min else [2, 3])]
    pairs = np.array(np.meshgrid(numbers, numbers)).reshape(2, -1)
    return tuple(np.resize(row, SIZE).astype(dtype) for row in pairs)  # type: ignore[return-value]


def _divided(x: Array, y: Array) -> list[Array]:
    """The quotient towards zero, the floored one and their remainders; 0 for a divisor of 0."""
    wide, by = x.astype(object), y.astype(object)
    safe = np.where(y == 0, 1, by)
    floored, rest = wide // safe, wide % safe
    towards_zero = np.where((wide * safe < 0) & (rest != 0), floored + 1, floored)
    found = [towards_zero, floored, wide - towards_zero * safe, rest]
    return [np.where(y == 0, 0, value).astype(object) for value in found]


def _wrapped(value: Array, dtype: str) -> Array:
    """Integers of any size in `dtype`, as in two's complement."""
    bits = np.iinfo(dtype).bits
    modulus = np.array([int(item) % (1 << bits) for item in value], f"uint{bits}")
    return modulus.astype(dtype)


def test_comparisons_of_nan_and_divisions_without_a_quotient(tmp_path: Path) -> None:
    given, expected = [*_floats()], []
    a, b = given
    with np.errstate(invalid="ignore", divide="ignore"):
        expected += [a == b, a != b, a < b, a <= b, ~(a == b), ~(a < b), ~(a <= b)]
        expected += [a == a, a != a, a <= a, ~(a == a), ~(np.abs(a) >= np.abs(a)), a - a, a * 0, 0 / a]
    for dtype in INTEGERS:
        x, y = _integers(dtype)
        given += [x, y]
        expected += [_wrapped(value, dtype) for value in _divided(x, y)]

    def body(*inputs: relax.Var) -> list[relax.Expr]:
        first, second = inputs[:2]
        found = [
            op.equal(first, second), op.not_equal(first, second), op.less(first, second),
            op.less_equal(first, second), op.logical_not(op.equal(first, second)),
            op.logical_not(op.less(first, second)), op.logical_not(op.less_equal(first, second)),
        ]  # fmt: skip
        size, zero = op.abs(first), relax.const(0.0, "float32")
        found += [op.equal(first, first), op.not_equal(first, first), op.less_equal(first, first)]
        found += [op.logical_not(op.equal(first, first)), op.logical_not(op.greater_equal(size, size))]
        found += [op.subtract(first, first), op.multiply(first, zero), op.divide(zero, first)]
        for x, y in zip(inputs[2::2], inputs[3::2], strict=True):
            found += [op.divide(x, y), op.floor_divide(x, y), op.mod(x, y), op.floor_mod(x, y)]
        return found

    compiled = Compiled(
        module([(value.shape, str(value.dtype)) for value in given], body), runnable_alone("x86_64"), tmp_path
    )
    for number, (got, want) in enumerate(zip(compiled.load().separate(given), expected, strict=True)):
        assert got.dtype == want.dtype
        same = (got == want) | ((got != got) & (want != want))
        assert same.all(), f"result {number}: {got[got != want]}, not {want[got != want]}"
