"""Padding rules of elementwise operators: a region of the result depends on that region of the operands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kiln.frontend import branches
from kiln.specialize.padding import pointwise_values as on_values
from kiln.specialize.padding.align import Operands
from kiln.specialize.padding.context import Context, Rule, State
from kiln.specialize.padding.tensors import NotNeutralError, Padded, tensor_state
from kiln.specialize.padding.values import ValueRange, fitted, is_float, of_dtype


def _pointwise(name: str) -> Rule:
    """The rule of the elementwise operator `name`; x * x and x - max(x) get tighter bounds."""
    function, numpy_function = on_values.RULES[name]

    def rule(context: Context, call: Any) -> Padded:
        dtypes = [context.dtype(argument) for argument in call.args]
        result = str(call.ty.dtype)
        if name == "multiply" and call.args[0].same_as(call.args[1]):
            return mapped(context, [call.args[0]], lambda v: fitted(on_values.square(v), result))

        if name == "subtract" and _is_own_maximum(context, call):
            return mapped(context, list(call.args), _below_maximum)

        def value(*values: ValueRange) -> ValueRange:
            exact = on_values.evaluated(numpy_function, values, dtypes)
            return fitted(function(*values) if exact is None else exact, result)

        return mapped(context, list(call.args), value)

    return rule


def mapped(context: Context, arguments: list[Any], value: Any) -> Padded:
    """The state of an elementwise result: `value` applied to the operands' values, region by region."""
    states = [context.padded(argument) for argument in arguments]
    operands = Operands(states, context.sizes)
    return tensor_state(
        operands.axes,
        lambda region: value(*(s.at(operands.region(i, region)) for i, s in enumerate(states))),
    )


def _is_own_maximum(context: Context, call: Any) -> bool:
    """Whether a call is x - max(x), as in a softmax that is composed of elementwise operators."""
    other = context.definition(call.args[1])
    return context.name(other) == "max" and bool(other.args[0].same_as(call.args[0]))


def _below_maximum(value: ValueRange, most: ValueRange) -> ValueRange:
    """x - max(x): never above 0. The maximum is not a masked value, unless the whole row is masked."""
    difference = on_values.subtract(value, replace(most, down=False))
    return replace(difference, high=min(difference.high, 0), up=False)


def cast(context: Context, call: Any) -> Padded:
    """astype: exact for constants; values that the new type cannot represent become unknown."""
    before, after = context.dtype(call.args[0]), str(call.ty.dtype)

    def value(operand: ValueRange) -> ValueRange:
        if after == "bool":
            return on_values.logical_not(on_values.logical_not(operand))
        exact = on_values.evaluated(lambda a: a.astype(after), [operand], [before])
        if exact is not None:
            return exact
        if is_float(after):
            return operand
        if is_float(before):
            return fitted(on_values.rounded(operand), after) if operand.known else of_dtype(after)
        return fitted(operand, after)

    return mapped(context, [call.args[0]], value)


def choose(context: Context, call: Any) -> State:
    """A choice between two branches: a result is that of the first or of the second branch."""
    _, first, second = branches.parts(call)
    results: list[State] = [
        mapped(context, list(pair), partial(on_values.where, on_values.EITHER))
        for pair in zip(first, second, strict=True)
    ]
    return results if len(results) > 1 else results[0]


def _parameters(context: Context, call: Any) -> list[ValueRange]:
    """The values of all operands after the first one: scales, zero points, slopes.

    Raises NotNeutralError if one of them is padded.
    """
    states = [context.padded(argument) for argument in call.args[1:]]
    if any(state.keys for state in states):
        raise NotNeutralError("its parameters are padded")
    return [state.kept for state in states]


def quantize(context: Context, call: Any) -> Padded:
    """quantize: exact for a constant if scale and zero point are one known number each."""
    dtype = str(call.ty.dtype)
    scale, zero = _parameters(context, call)
    type_range = of_dtype(dtype)

    def value(operand: ValueRange) -> ValueRange:
        if (
            operand.is_constant
            and operand.finite
            and scale.is_constant
            and zero.is_constant
            and scale.low > 0
        ):
            near = float(np.round(np.float32(operand.low) / np.float32(scale.low))) + zero.low
            exact = int(min(max(near, type_range.low), type_range.high))
            return ValueRange(exact, exact)
        return type_range

    return mapped(context, [call.args[0]], value)


def dequantize(context: Context, call: Any) -> Padded:
    """dequantize: (q - zero point) * scale; 0 if q equals a zero point that is common to all channels.

    A constant is rounded as at run time, to float32: 255 * (1 / 255) is 1, so that 1 - mask is 0 or 1.
    """
    scale, zero = _parameters(context, call)

    def value(operand: ValueRange) -> ValueRange:
        difference = on_values.subtract(operand, zero)
        rounded = on_values.evaluated(np.multiply, [difference, scale], ["float32", "float32"])
        return on_values.multiply(difference, scale) if rounded is None else rounded

    return mapped(context, [call.args[0]], value)


def attribute_only(context: Context, call: Any) -> Padded:
    """Elementwise operators whose operands after the first are scalars, or one value per channel."""
    _parameters(context, call)
    return mapped(context, [call.args[0]], on_values.finite)


RULES: dict[str, Rule] = {
    **{name: _pointwise(name) for name in on_values.RULES},
    "astype": cast,
    "quantize": quantize,
    "dequantize": dequantize,
    **dict.fromkeys(("nn.leakyrelu", "nn.prelu", "nn.softplus", "nn.dropout"), attribute_only),
}
