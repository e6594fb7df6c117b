"""Ranges whose limits are known only when the model runs."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from kiln.frontend.counted.sizes import counted_size
from kiln.frontend.symbols import Symbols, int64

_MOST = 2.0**30  # above every bound; 32-bit processors convert no longer integers to floats and back


def arange(builder: Any, symbols: Symbols, tensor: str, start: Any, limit: Any, step: Any) -> Any:
    """start, start + step, …, below `limit` (above it for a negative step): tensors of one element.

    A step of 0 ends the run with KILN_TOO_MANY, as do integer limits that are more than 2^31 - 1 and more
    than one step apart. `tensor`: the tensor of the file that is counted. Raises ValueError where the model's
    YAML gives no bound for it.
    """
    most = symbols.most_counted(tensor, None)
    dtype = str(start.ty.dtype)

    def number(first: Any, last: Any, step: Any) -> Any:
        def element(_index: Any) -> Any:
            return _count(first(int64(0)), last(int64(0)), step(int64(0)), dtype)

        return te.compute([int64(1)], element, name="steps")

    count = builder.emit_te(number, start, limit, step, primfunc_name_hint="range_count")
    size = counted_size(builder, symbols, tensor, count, most)

    def values(first: Any, step: Any) -> Any:
        def element(index: Any) -> Any:
            number = tirx.Cast("int32", index) if dtype.startswith("float") else index
            return first(int64(0)) + tirx.Cast(dtype, number) * step(int64(0))

        return te.compute([size], element, name="range")

    return builder.emit_te(values, start, step, primfunc_name_hint="range")


def _count(first: Any, last: Any, step: Any, dtype: str) -> Any:
    """The number of steps; -1 for a step of 0."""
    zero = tirx.const(0, dtype)
    if dtype.startswith("float"):
        divisor = tirx.Select(step == zero, zero + 1, step)
        wide = [tirx.Cast("float64", one) for one in (last - first, divisor)]
        steps = tirx.min(
            tirx.max(wide[0] / wide[1], tirx.const(0.0, "float64")), tirx.const(_MOST, "float64")
        )
        whole = tirx.Cast("int32", steps)
        count = tirx.Cast("int64", whole + tirx.Cast("int32", tirx.Cast("float64", whole) < steps))
    else:
        distance, width = (tirx.Cast("int64", one) for one in (last, step))
        distance = distance - tirx.Cast("int64", first)
        negative = width < int64(0)
        distance = tirx.Select(negative, -distance, distance)
        width = tirx.Select(negative, -width, width)
        # 32-bit processors divide no longer integers; more steps than they count are above every bound.
        longest = int64(2**31 - 1)
        steps, by32 = (
            tirx.Cast("int32", tirx.min(tirx.max(one, int64(1)), longest)) for one in (distance, width)
        )
        one32 = tirx.IntImm("int32", 1)
        count = tirx.Cast("int64", tirx.truncdiv(steps - one32, by32) + one32)
        count = tirx.Select(tirx.all(distance > longest, width < distance), int64(int(_MOST)), count)
        count = tirx.Select(distance > int64(0), count, int64(0))
    return tirx.Select(step == zero, int64(-1), count)
