"""Rules for operators that TVM's simplifier changes where an operand is NaN or infinite.

The simplifier takes the opposite comparison for the negation of one: not (a < b) becomes b <= a, which is
false for NaN, as a < b is. It takes 0 for a product with the constant 0, for the constant 0 divided by a
number, and for the difference of a number and itself, and true for its comparison with itself. The
expressions of these rules are none that it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.ir import Op

from kiln.graph.bindings import constant


def _inverted(truth: Any) -> Any:
    return tirx.Cast("bool", tirx.bitwise_xor(tirx.Cast("int32", truth), tirx.IntImm("int32", 1)))


def logical_not(builder: Any, call: Any) -> Any:
    """relax.logical_not: the last bit of a truth value, inverted."""
    return _of_one(builder, call, call.args[0], _inverted)


def equal_to_itself(builder: Any, call: Any) -> Any:
    """relax.equal, less_equal and greater_equal: a float is equal to itself if it is not NaN."""
    return _of_one(builder, call, _same(call), lambda x: _inverted(tirx.isnan(x)))


def other_than_itself(builder: Any, call: Any) -> Any:
    """relax.not_equal: a float differs from itself if it is NaN."""
    return _of_one(builder, call, _same(call), tirx.isnan)


def subtract(builder: Any, call: Any) -> Any:
    """relax.subtract: the difference of a float and itself is 0, and NaN for infinities and NaN."""
    return _of_one(builder, call, _same(call), _zero_if_finite)


def multiply(builder: Any, call: Any) -> Any:
    """relax.multiply: a product with the constant 0 is 0, and NaN for infinities and NaN."""
    operand = next((call.args[1 - place] for place in (0, 1) if _is_zero(call.args[place])), None)
    return _of_one(builder, call, operand, _zero_if_finite)


def divide(builder: Any, call: Any) -> Any:
    """relax.divide: the constant 0 divided by a number is 0, and NaN for 0 and NaN."""
    operand = call.args[1] if _is_zero(call.args[0]) else None
    return _of_one(builder, call, operand, lambda x: _zero_if(tirx.abs(x) > _float(x, 0.0), x))


def _float(like: Any, value: float) -> Any:
    return tirx.FloatImm(str(like.ty.dtype), value)


def _zero_if(condition: Any, like: Any) -> Any:
    return tirx.Select(condition, _float(like, 0.0), _float(like, math.nan))


def _zero_if_finite(x: Any) -> Any:
    return _zero_if(tirx.abs(x) < _float(x, math.inf), x)


def _same(call: Any) -> Any:
    """The operand of a call that has one tensor of floats as both; None for another call."""
    first, second = call.args
    is_float = str(first.ty.dtype).startswith("float")
    return first if is_float and first.same_as(second) else None


def _is_zero(expr: Any) -> bool:
    """Whether an operand is one constant float, 0: TVM writes it into the expression."""
    value = constant(expr)
    return value is not None and value.size == 1 and value.dtype.kind == "f" and not value.any()


def _of_one(builder: Any, call: Any, operand: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of the elements of `operand`, in the shape of the result; TVM's own rule without one."""
    if operand is None or constant(operand) is not None:
        return Op.get(call.op.name).get_attr("FLegalize")(builder, call)
    shape = list(call.ty.shape)

    def computed(x: Any) -> Any:
        rank = len(x.shape)
        sizes = x.shape if rank == len(shape) else [1] * (len(shape) - rank) + list(x.shape)
        return te.compute(sizes, lambda *indices: function(x(*indices[len(indices) - rank :])))

    return builder.call_te(computed, operand, primfunc_name_hint=call.op.name.removeprefix("relax."))


RULES = {
    "relax.logical_not": logical_not,
    "relax.equal": equal_to_itself,
    "relax.less_equal": equal_to_itself,
    "relax.greater_equal": equal_to_itself,
    "relax.not_equal": other_than_itself,
    "relax.subtract": subtract,
    "relax.multiply": multiply,
    "relax.divide": divide,
}
