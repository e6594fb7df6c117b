"""Ranges whose limits are known only when the model runs."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.symbols import Symbols, int64

_MOST = 2.0**40  # above every bound


def arange(builder: Any, symbols: Symbols, tensor: str, start: Any, limit: Any, step: Any) -> Any:
    """start, start + step, …, below `limit` (above it for a negative step): tensors of one element.

    A step of 0 ends the run with KILN_TOO_MANY. `tensor`: the tensor of the file that is counted. Raises
    ValueError where the model's YAML gives no bound for it.
    """
    most = symbols.most_counted(tensor, None)
    dtype = str(start.ty.dtype)

    def number(first: Any, last: Any, by: Any) -> Any:
        def element(_index: Any) -> Any:
            return _count(first(int64(0)), last(int64(0)), by(int64(0)), dtype)

        return te.compute([int64(1)], element, name="steps")

    count = builder.emit_te(number, start, limit, step, primfunc_name_hint="range_count")
    size = counted_size(builder, symbols, tensor, count, most)

    def values(first: Any, by: Any) -> Any:
        def element(index: Any) -> Any:
            return first(int64(0)) + tirx.Cast(dtype, index) * by(int64(0))

        return te.compute([size], element, name="range")

    return builder.emit_te(values, start, step, primfunc_name_hint="range")


def _count(first: Any, last: Any, by: Any, dtype: str) -> Any:
    """How many steps there are; -1 for a step of 0."""
    zero = tirx.const(0, dtype)
    if dtype.startswith("float"):
        wide = [tirx.Cast("float64", one) for one in (last - first, tirx.Select(by == zero, zero + 1, by))]
        steps = tirx.min(
            tirx.max(wide[0] / wide[1], tirx.const(0.0, "float64")), tirx.const(_MOST, "float64")
        )
        whole = tirx.Cast("int64", steps)
        count = whole + tirx.Cast("int64", tirx.Cast("float64", whole) < steps)
    else:
        apart, width = (tirx.Cast("int64", one) for one in (last, by))
        apart = apart - tirx.Cast("int64", first)
        negative = width < int64(0)
        apart = tirx.Select(negative, -apart, apart)
        width = tirx.Select(negative, -width, width)
        width = tirx.max(width, int64(1))
        count = tirx.truncdiv(tirx.max(apart, int64(0)) + width - int64(1), width)
    return tirx.Select(by == zero, int64(-1), count)
