"""Rules for operators that TVM's simplifier changes where an operand is NaN, infinite or the least integer.

The simplifier takes the opposite comparison for the negation of one: not (a < b) becomes b <= a, which is
false for NaN, as a < b is. It takes 0 for a product with the constant 0, for the constant 0 divided by a
number, and for the difference of a number and itself, and true for its comparison with itself. The
expressions of these rules are none that it knows.

It takes false for `x == least` and `x <= least`, where `least` is the least integer of a signed type: the
comparison is that of ~x with the greatest one, in the other direction.

The greater and the lesser of two numbers are NaN where one of them is. TVM compiles them to a comparison that
is false for NaN and then chooses the second operand, as the instructions of x86 do: the one that may be NaN
is the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Op

from kiln.graph.bindings import constant


def _inverted(truth: Any) -> Any:
    return tirx.Cast("bool", tirx.bitwise_xor(tirx.Cast("int32", truth), tirx.IntImm("int32", 1)))


_MIRRORED: dict[str, Callable[[Any, Any], Any]] = {
    "equal": tirx.EQ,
    "not_equal": tirx.NE,
    "less": lambda a, b: a > b,
    "less_equal": lambda a, b: a >= b,
    "greater": lambda a, b: a < b,
    "greater_equal": lambda a, b: a <= b,
}


def logical_not(builder: Any, call: Any) -> Any:
    """relax.logical_not: the last bit of a truth value, inverted."""
    return _of_one(builder, call, call.args[0], _inverted)


def equal_to_itself(builder: Any, call: Any) -> Any:
    """relax.equal, less_equal and greater_equal: a float is equal to itself if it is not NaN."""
    if _same(call) is None:
        return compared(builder, call)
    return _of_one(builder, call, _same(call), lambda x: _inverted(tirx.isnan(x)))


def other_than_itself(builder: Any, call: Any) -> Any:
    """relax.not_equal: a float differs from itself if it is NaN."""
    if _same(call) is None:
        return compared(builder, call)
    return _of_one(builder, call, _same(call), tirx.isnan)


def compared(builder: Any, call: Any) -> Any:
    """A comparison: with the least integer of a signed type, that of the inverted bits with the greatest."""
    compare = _MIRRORED[_hint(call)]
    for place in (0, 1):
        value = constant(call.args[place])
        if value is None or value.size != 1 or value.dtype.kind != "i":
            continue
        info = np.iinfo(value.dtype)
        if value.item() != info.min:
            continue

        def mirrored(x: Any, first: bool = place == 0, greatest: int = info.max) -> Any:
            bits, most = tirx.bitwise_not(x), tirx.IntImm(str(x.ty.dtype), greatest)
            return compare(most, bits) if first else compare(bits, most)

        return _of_one(builder, call, call.args[1 - place], mirrored)
    return _default(builder, call)


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


def relu(builder: Any, call: Any) -> Any:
    """relax.nn.relu: the greater of 0 and a number."""
    operand = call.args[0] if _is_float(call) else None
    return _of_one(builder, call, operand, lambda x: te.max(_float(x, 0.0), x))


def clip(builder: Any, call: Any) -> Any:
    """relax.clip: a number between two limits."""
    low, high = (float(limit.value) for limit in call.args[1:])

    def clipped(x: Any) -> Any:
        return te.max(_float(x, low), te.min(_float(x, high), x))

    return _of_one(builder, call, call.args[0] if _is_float(call) else None, clipped)


def sign(builder: Any, call: Any) -> Any:
    """relax.sign: -1, 1, and the number itself where it is 0 or NaN."""

    def signed(x: Any) -> Any:
        below = tirx.Select(x < _float(x, 0.0), _float(x, -1.0), x)
        return tirx.Select(x > _float(x, 0.0), _float(x, 1.0), below)

    return _of_one(builder, call, call.args[0] if _is_float(call) else None, signed)


def extreme(choose: Any) -> Any:
    """The rule for relax.maximum (te.max) or relax.minimum (te.min) of two operands."""

    def rule(builder: Any, call: Any) -> Any:
        if not _is_float(call):
            return _default(builder, call)
        for limit, operand in zip((_number(one) for one in call.args), call.args[::-1], strict=True):
            if limit is not None:
                return _of_one(builder, call, operand, partial(_limited, choose, limit))
        return _of_two(builder, call, lambda a, b: tirx.Select(tirx.isnan(a), a, choose(a, b)))

    return rule


def _limited(choose: Any, limit: float, x: Any) -> Any:
    return choose(_float(x, limit), x)


def _is_float(call: Any) -> bool:
    return str(call.ty.dtype).startswith("float")


def _number(expr: Any) -> float | None:
    """The value of an operand that is one constant number, but not NaN: TVM writes it into the expression."""
    value = constant(expr)
    number = float(value.item()) if value is not None and value.size == 1 else math.nan
    return None if math.isnan(number) else number


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
        return _default(builder, call)
    shape = list(call.ty.shape)

    def computed(x: Any) -> Any:
        rank = len(x.shape)
        sizes = x.shape if rank == len(shape) else [1] * (len(shape) - rank) + list(x.shape)
        return te.compute(sizes, lambda *indices: function(x(*indices[len(indices) - rank :])))

    return builder.call_te(computed, operand, primfunc_name_hint=_hint(call))


def _of_two(builder: Any, call: Any, function: Callable[[Any, Any], Any]) -> Any:
    """`function` of the elements of both operands, broadcast."""

    def computed(a: Any, b: Any) -> Any:
        shape = list(call.ty.shape)
        a, b = (topi.broadcast_to(x, shape) for x in (a, b))
        return te.compute(shape, lambda *indices: function(a(*indices), b(*indices)))

    return builder.call_te(computed, *call.args, primfunc_name_hint=_hint(call))


def _hint(call: Any) -> str:
    return str(call.op.name.rpartition(".")[2])


def _default(builder: Any, call: Any) -> Any:
    return Op.get(call.op.name).get_attr("FLegalize")(builder, call)


RULES = {
    "relax.logical_not": logical_not,
    "relax.equal": equal_to_itself,
    "relax.less_equal": equal_to_itself,
    "relax.greater_equal": equal_to_itself,
    "relax.not_equal": other_than_itself,
    "relax.less": compared,
    "relax.greater": compared,
    "relax.subtract": subtract,
    "relax.multiply": multiply,
    "relax.divide": divide,
    "relax.nn.relu": relu,
    "relax.clip": clip,
    "relax.sign": sign,
    "relax.maximum": extreme(te.max),
    "relax.minimum": extreme(te.min),
}
