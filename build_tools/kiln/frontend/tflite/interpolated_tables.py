"""EXP, GELU, LOG and RSQRT of int16, interpolated between 513 values as in LiteRT's kernels.

The table has the function of every 128th level of the input, in levels of the result. All but the last value
are moved by half of the error of the interpolation in the middle of their interval. LiteRT makes its tables
with float32, whose roundings may move a value by a level; so does `of_levels`. Functions are computed with
double precision and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from kiln.arrays import Array
from kiln.frontend.tflite.fixed_point import i32
from kiln.frontend.tflite.gate_quotients import each
from kiln.frontend.tflite.operands import Grid, TfliteOperands, const

op = relax.op
Function = Callable[[Array], Array]
_STEPS, _BITS = 512, 7  # intervals of a table, and bits of a level within one
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1


def _rounded(values: Array) -> Array:
    """The nearest integers, ties away from zero."""
    whole = np.trunc(values)
    return np.asarray(whole + np.copysign(np.abs(values - whole) >= 0.5, values), values.dtype)


def table_of(function: Function, first: float, last: float, levels: float, dtype: str) -> Array:
    """The 513 values of `function` from `first` to `last` times `levels`, computed with floats of `dtype`.

    What is not a number becomes 0, as in LiteRT: exp(x) beyond the largest float, and its neighbours.
    """
    kind = np.dtype(dtype).type
    step = kind(kind(last) - kind(first)) / kind(_STEPS)
    places = kind(first) + np.arange(_STEPS + 1, dtype=dtype) * step
    with np.errstate(all="ignore"):
        at = function(places) * kind(levels)
        middle = function(places[:-1] + step / kind(2)) * kind(levels)
        between = _rounded((at[1:] + _rounded(at[:-1])) / kind(2))
        bias = _rounded((between - _rounded(middle)) / kind(2))
        end = _rounded(function(np.array([last], dtype)) * kind(levels))
        values = np.concatenate([_rounded(at[:-1]) - bias, end])
        return np.asarray(np.nan_to_num(np.clip(values, _LEAST, _MOST), nan=0.0), "int64")


def of_levels(function: Function, source: Grid, result: Grid) -> Array:
    """The table of a function of the levels of `source`, in levels of `result`, both without zero points."""
    scale, unit = np.float32(source.scale), np.float32(result.scale)
    width = unit * np.float32(_MOST) - unit * np.float32(_LEAST)
    first, last = scale * np.float32(_LEAST), scale * np.float32(_MOST)
    return table_of(function, first, last, np.float32(1 << 16) / width, "float32")


def interpolation(places: Any, values: Any, steps: Any, bits: int = _BITS) -> Callable[..., Expr]:
    """The function from indices to an element of the interpolation of a table at `places`, int32.

    The lowest `bits` of a place are the fraction between two values. values, steps: the table, and the
    difference of each value to the next one. Ties are rounded upwards.
    """

    def element(*at: Expr) -> Expr:
        index = places(*at) >> i32(bits)
        rest = places(*at) & i32((1 << bits) - 1)
        value, step = (tirx.Cast("int32", table(tirx.Cast("int64", index))) for table in (values, steps))
        return value + (((step * rest >> i32(bits - 1)) + i32(1)) >> i32(1))

    return element


def parts(table: Array) -> list[relax.Constant]:
    """A table of 513 values as `interpolation` reads it."""
    return [const(part.astype("int16"), "int16") for part in (table[:-1], np.diff(table))]


def looked_up(node: TfliteOperands, place: relax.Expr, table: Array) -> relax.Expr:
    """The value of a table at `place`, an int32 from 0 to 65535, with seven bits between two values."""

    def compute(places: Any, values: Any, steps: Any) -> Any:
        return te.compute(places.shape, interpolation(places, values, steps), name="interpolated")

    return node.emit_te(compute, place, *parts(table), name="interpolated")


def halved(node: TfliteOperands, value: relax.Expr, bits: int) -> relax.Expr:
    """An integer divided by 2^bits, rounded with ties upwards; no sum is greater than the integer."""
    below = node.bind(op.right_shift(value, const(bits - 1, "int32"))) if bits > 1 else value
    return node.bind(op.right_shift(node.bind(op.add(below, const(1, "int32"))), const(1, "int32")))


def int16_grids(node: TfliteOperands) -> tuple[Grid, Grid] | None:
    """The quantisation of input 0 and of the result, if both are int16 without a zero point; else None."""
    source, result = node.grid(0), node.result_grid()
    if source is None or result is None or (source.dtype, result.dtype) != ("int16", "int16"):
        return None
    return None if source.zero or result.zero else (source, result)


def _exact(function: Callable[[Any], Any]) -> Function:
    """A function of float32: computed with double precision and rounded once."""
    return lambda values: np.asarray(function(values.astype("float64"))).astype("float32")


def _logarithm(values: Array, result: Grid) -> Array:
    """The logarithm of x; for x <= 0 the least number that the result can hold."""
    least = np.float32(_LEAST) * np.float32(result.scale)
    return np.asarray(np.where(values > 0, _exact(np.log)(values), least))


def _inverse_root(values: Array, result: Grid) -> Array:
    """1 / sqrt(x); for x <= 0 the greatest number that the result can hold."""
    most = np.float32(_MOST) * np.float32(result.scale)
    return np.asarray(np.where(values > 0, np.float32(1) / np.sqrt(values), most))


def _normal_share(x: Array) -> Array:
    """x times the distribution function of the normal distribution, in float32."""
    erfc = _exact(np.vectorize(math.erfc, otypes=["float64"]))
    return np.asarray(np.float32(0.5) * x * erfc(x * np.float32(-math.sqrt(0.5))))


def _normal_share_by_tanh(x: Array) -> Array:
    """The approximation of `_normal_share` by tanh, as GELU with `approximate` computes it, in float32."""
    inner = x + np.float32(0.044715) * x * x * x
    tanh = _exact(np.tanh)(np.float32(math.sqrt(2 / math.pi)) * inner)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + tanh))


def _tabulated(function: Callable[[Array, Grid], Array]) -> Callable[[TfliteOperands], relax.Expr | None]:
    """A converter of a function, of numbers and the result's quantisation, on int16; None of other types."""

    def convert(node: TfliteOperands) -> relax.Expr | None:
        grids = int16_grids(node)
        if grids is None:
            return None
        table = of_levels(lambda values: function(values, grids[1]), *grids)

        def compute(x: Any, values: Any, steps: Any) -> Any:
            places = each(lambda v: tirx.Cast("int32", v) - i32(_LEAST), x, name="places")
            at_place = interpolation(places, values, steps)
            return te.compute(x.shape, lambda *at: tirx.Cast("int16", at_place(*at)), name="interpolated")

        return node.emit_te(compute, node.raw(0), *parts(table), name="interpolated")

    return convert


def gelu(node: TfliteOperands) -> relax.Expr | None:
    """GELU of int16; other types: `computing_ops`."""
    is_tanh = bool(node.options("GeluOptions").Approximate())
    share = _normal_share_by_tanh if is_tanh else _normal_share
    return _tabulated(lambda values, _: share(values))(node)


CONVERTERS: dict[str, Callable[[TfliteOperands], relax.Expr | None]] = {
    "EXP": _tabulated(lambda values, _: _exact(np.exp)(values)),
    "GELU": gelu,
    "LOG": _tabulated(_logarithm),
    "RSQRT": _tabulated(_inverse_root),
}
