"""Divisions of indices by multiplication, on cores that have neither division nor products of 64 bits.

Such cores (Armv6-M) divide by calling a function of about 130 instructions, by a constant too: LLVM needs the
upper word of a product. An index is bounded by the loops around it, so that a product of 32 bits suffices:
a / d = (a m) >> n with m = ceil(2^n / d), for 0 <= a <= limit where limit (m d - 2^n) < 2^n.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.config.sizes import ceil_div
from kiln.tir.vector_expr import i32

_BITS = 31  # of a product that is not negative

Interval = tuple[int, int]  # least and greatest value


def divide_by_multiplying(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` in which bounded int32 indices are divided by constants with products; results are equal."""
    intervals: dict[Any, Interval] = {}

    def on_loop(loop: Any) -> None:
        begin, extent = _interval(loop.min, intervals), _interval(loop.extent, intervals)
        if begin is not None and extent is not None:
            _hold(intervals, loop.loop_var, (begin[0], begin[1] + max(extent[1], 1) - 1))

    def on_bind(bind: Any) -> None:
        value = _interval(bind.value, intervals)
        if value is not None:
            _hold(intervals, bind.var, value)

    def on_quotient(found: Any) -> Any:
        quotient = _quotient(found, intervals)
        return found if quotient is None else quotient

    def on_remainder(found: Any) -> Any:
        quotient = _quotient(found, intervals)
        return found if quotient is None else found.a - quotient * found.b

    structural_walk(func, ((tirx.For, on_loop),))  # before the values inside, which a walk meets first
    structural_walk(func, ((tirx.Bind, on_bind),))
    return structural_map(func, ((tirx.Div, on_quotient), (tirx.Mod, on_remainder)))


def _hold(intervals: dict[Any, Interval], var: Any, interval: Interval) -> None:
    before = intervals.get(var, interval)
    intervals[var] = min(before[0], interval[0]), max(before[1], interval[1])


def _quotient(division: Any, intervals: dict[Any, Interval]) -> Any:
    """a / d as a shifted product, for the `division` or remainder of a by d; None if too large."""
    if (
        str(division.ty.dtype) != "int32"
        or not isinstance(division.b, tirx.IntImm)
        or int(division.b.value) < 1
    ):
        return None
    reach, divisor = _interval(division.a, intervals), int(division.b.value)
    if reach is None or reach[0] < 0:
        return None
    for shift in range(_BITS):
        factor = ceil_div(1 << shift, divisor)
        if reach[1] * factor >= 1 << _BITS:
            return None
        if reach[1] * (factor * divisor - (1 << shift)) < 1 << shift:
            return tirx.shift_right(division.a * i32(factor), i32(shift))
    return None


def _interval(expr: Any, intervals: dict[Any, Interval]) -> Interval | None:
    """The least and the greatest value of an integer expression; None where they are not known."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value), int(expr.value)
    if isinstance(expr, tirx.Var):
        return intervals.get(expr)
    if isinstance(expr, tirx.Cast):
        return _interval(expr.value, intervals) if str(expr.ty.dtype) in ("int32", "int64") else None
    if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Mod | tirx.Min | tirx.Max):
        return None
    left, right = _interval(expr.a, intervals), _interval(expr.b, intervals)
    if left is None or right is None:
        return None
    return _combined(expr, left, right)


def _combined(expr: Any, left: Interval, right: Interval) -> Interval | None:
    if isinstance(expr, tirx.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(expr, tirx.Sub):
        return left[0] - right[1], left[1] - right[0]
    if isinstance(expr, tirx.Mul):
        products = [one * other for one in left for other in right]
        return min(products), max(products)
    if isinstance(expr, tirx.Min | tirx.Max):
        pick = min if isinstance(expr, tirx.Min) else max
        return pick(left[0], right[0]), pick(left[1], right[1])
    if left[0] < 0 or right[0] < 1:
        return None
    if isinstance(expr, tirx.Mod):
        return 0, min(left[1], right[1] - 1)
    return left[0] // right[1], left[1] // right[0]
