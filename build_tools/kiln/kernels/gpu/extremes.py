"""Legalisation rules for GPUs of argmax and argmin, and of reductions of integers of 8 bits.

Threads exchange numbers of 32 bits by shuffles. TVM 0.27 exchanges those of 8 bits in shared memory, without
barriers between the threads of a warp; so 8 bits are reduced as 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx, topi
from tvm.ir import Op

_WIDE = {"int8": "int32", "uint8": "int32", "bool": "int32"}


def position_of(extreme: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Legalisation rule for relax.argmax or relax.argmin; of equal elements, the first counts.

    TVM's reduction begins with position -1 and the worst number of the type, which no element beats if all
    are equal to it: the result is then position 0.
    """

    def compute(x: Any, axis: Any, keeps: bool) -> Any:
        found = extreme(_widened(x), axis, keeps)
        first = tirx.const(0, str(found.dtype))
        return te.compute(found.shape, lambda *i: tirx.max(found(*i), first), name="position")

    def rule(builder: Any, call: Any) -> Any:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return builder.call_te(
            compute, call.args[0], axis, bool(call.attrs.keepdims), primfunc_name_hint=name
        )

    return rule


def reduction_of(reduce: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Legalisation rule for relax.max, min, prod or sum: 8 bits are reduced in 32, others by TVM's rule."""

    def compute(x: Any, axes: Any, keeps: bool) -> Any:
        return topi.cast(reduce(_widened(x), axes, keeps), str(x.dtype))

    def rule(builder: Any, call: Any) -> Any:
        if str(call.args[0].ty.dtype) not in _WIDE:
            return Op.get(f"relax.{name}").get_attr("FLegalize")(builder, call)
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        return builder.call_te(
            compute, call.args[0], axes, bool(call.attrs.keepdims), primfunc_name_hint=name
        )

    return rule


def _widened(x: Any) -> Any:
    return topi.cast(x, _WIDE.get(str(x.dtype), str(x.dtype)))


# Legalisation rules by operator name, which replace the rules for CPUs.
RULES = {
    "relax.argmax": position_of(topi.argmax, "argmax"),
    "relax.argmin": position_of(topi.argmin, "argmin"),
    "relax.max": reduction_of(topi.max, "max"),
    "relax.min": reduction_of(topi.min, "min"),
    "relax.prod": reduction_of(topi.prod, "prod"),
    "relax.sum": reduction_of(topi.sum, "sum"),
}
