"""Integer divisions that end no program, whatever the divisor is.

x86 raises an exception for a division by 0, and for the least signed integer divided by -1; other
processors have results, and LLVM defines none. With a divisor from a tensor, `a / 0` and `a % 0` are 0 here,
as in NumPy, and `least / -1` is `least`, as in two's complement. Divisors of index arithmetic are sizes,
which are positive, and stay as they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map, structural_walk


def divide_totally(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, in which the results of `/` and `%` of integers by elements of tensors are defined."""
    loaded: set[Any] = set()  # variables whose values depend on elements
    structural_walk(func, ((tirx.Bind, partial(_bind, loaded=loaded)),))

    def on_quotient(division: Any) -> Any:
        if not _is_of_data(division.b, loaded):
            return division
        dtype = str(division.b.ty.dtype)
        return _total(division, dtype, _negated(division.a, dtype) if dtype.startswith("int") else None)

    def on_remainder(division: Any) -> Any:
        if not _is_of_data(division.b, loaded):
            return division
        dtype = str(division.b.ty.dtype)
        return _total(division, dtype, tirx.const(0, dtype) if dtype.startswith("int") else None)

    return structural_map(func, ((tirx.Div, on_quotient), (tirx.Mod, on_remainder)))


def _bind(binding: Any, loaded: set[Any]) -> None:
    if _loads(binding.value, loaded):
        loaded.add(binding.var)


def _is_of_data(divisor: Any, loaded: set[Any]) -> bool:
    """Whether an integer divisor depends on an element of a tensor."""
    return str(divisor.ty.dtype).startswith(("int", "uint")) and _loads(divisor, loaded)


def _loads(value: Any, loaded: set[Any]) -> bool:
    nodes: list[Any] = []
    structural_walk(value, ((TensorLoad, nodes.append), (tirx.Var, nodes.append)))
    return any(isinstance(node, TensorLoad) or node in loaded for node in nodes)


def _total(division: Any, dtype: str, by_minus_one: Any) -> Any:
    """`division` with a divisor that cannot fail; `by_minus_one`: its result for -1, if signed."""
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    is_zero = tirx.EQ(division.b, zero)
    if by_minus_one is None:
        return tirx.Select(is_zero, zero, type(division)(division.a, tirx.Select(is_zero, one, division.b)))
    is_minus = tirx.EQ(division.b, tirx.const(-1, dtype))
    safe = tirx.Select(tirx.Or(is_zero, is_minus), one, division.b)
    quotient = tirx.Select(is_minus, by_minus_one, type(division)(division.a, safe))
    return tirx.Select(is_zero, zero, quotient)


def _negated(value: Any, dtype: str) -> Any:
    """-value, and the least integer for itself: LLVM takes subtractions of 32 bits not to overflow."""
    least = tirx.min_value(dtype.partition("x")[0])
    if "x" in dtype:
        least = tirx.Broadcast(least, int(dtype.partition("x")[2]))
    return tirx.Select(tirx.EQ(value, least), least, tirx.Sub(tirx.const(0, dtype), value))
