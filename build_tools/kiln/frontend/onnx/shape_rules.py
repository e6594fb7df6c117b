"""Evaluation rules of ONNX operators on values that contain symbolic sizes.

Values that are entirely constant are evaluated by ONNX's reference implementation instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import helper
from tvm import tirx

from kiln.frontend.onnx.value import NotKnownError, Ratio, Value
from kiln.frontend.symbols import Symbols

# Floats such as 0.1 are inexact, with a huge divisor; products of a size and such a float are not evaluated.
_GREATEST_DIVISOR = 1 << 20

# (inputs, attributes, symbols) → value of the result; at least one element of an input is symbolic.
Rule = Callable[[list[Any], Mapping[str, Any], Symbols], Value]


def _map(function: Callable[..., Any], dtype: str, *values: Value) -> Value:
    """Apply `function` elementwise, with NumPy's broadcasting, which ONNX adopts."""
    shape = np.broadcast_shapes(*[value.items.shape for value in values])
    flat = [np.broadcast_to(value.items, shape).reshape(-1) for value in values]
    items = np.empty(shape, object)
    items.reshape(-1)[:] = [function(*row) for row in zip(*flat, strict=True)]
    return Value(items, dtype)


def as_ratio(element: Any) -> Ratio:
    """An element as a Ratio. Raises NotKnownError for floats such as 0.1, which have a huge divisor."""
    if isinstance(element, Ratio):
        return element
    if isinstance(element, float):
        exact = Fraction(element)
        if exact.denominator > _GREATEST_DIVISOR:
            raise NotKnownError
        return Ratio(exact.numerator, exact.denominator)
    return Ratio(element, 1)


def _divide_floats(a: Ratio, b: Ratio) -> Ratio:
    if not isinstance(b.top, int) or b.top <= 0:
        raise NotKnownError
    return Ratio(a.top * b.bottom, a.bottom * b.top)


_FLOAT_RULES: dict[str, Callable[[Ratio, Ratio], Ratio]] = {
    "Add": lambda a, b: Ratio(a.top * b.bottom + b.top * a.bottom, a.bottom * b.bottom),
    "Sub": lambda a, b: Ratio(a.top * b.bottom - b.top * a.bottom, a.bottom * b.bottom),
    "Mul": lambda a, b: Ratio(a.top * b.top, a.bottom * b.bottom),
    "Div": _divide_floats,
}


def _arithmetic(name: str, of_integers: Callable[[Any, Any, Symbols], Any]) -> Rule:
    """The rule of an arithmetic operator: `of_integers` for integers, exact ratios for floats."""

    def rule(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
        dtype = inputs[0].dtype
        if dtype.startswith("float"):
            if name not in _FLOAT_RULES:
                raise NotKnownError
            return _map(lambda a, b: _FLOAT_RULES[name](as_ratio(a), as_ratio(b)), dtype, *inputs)
        return _map(lambda a, b: of_integers(a, b, symbols), dtype, *inputs)

    return rule


def _divide(a: Any, b: Any, symbols: Symbols) -> Any:
    """Integer division. ONNX rounds towards zero, which equals floor division for non-negative operands.

    Raises NotKnownError for a dividend that may have either sign and a remainder, and for a divisor that may
    not be positive.
    """
    if symbols.holds(a <= 0):
        return tirx.floordiv(_expr(a * -1), _positive(b, symbols)) * -1
    if not symbols.holds(a >= 0) and symbols.holds(tirx.EQ(tirx.floormod(_expr(a), _expr(b)), _expr(0))):
        return tirx.floordiv(_expr(a), _positive(b, symbols))
    return tirx.floordiv(_not_negative(a, symbols), _positive(b, symbols))


def _modulo(inputs: list[Any], attributes: Mapping[str, Any], symbols: Symbols) -> Value:
    """The rule of Mod on integers: with `fmod` the sign is that of the dividend, else that of the divisor."""
    if inputs[0].dtype.startswith("float"):
        raise NotKnownError
    signed = bool(attributes.get("fmod", 0))

    def function(a: Any, b: Any) -> Any:
        if signed:
            return tirx.floormod(_expr(_not_negative(a, symbols)), _positive(b, symbols))
        return tirx.floormod(_expr(a), b if isinstance(b, int) and b else _positive(b, symbols))

    return _map(function, inputs[0].dtype, *inputs)


def _not_negative(element: Any, symbols: Symbols) -> Any:
    """Returns `element`. Raises NotKnownError unless it is provably 0 or more."""
    if not symbols.holds(element >= 0):
        raise NotKnownError
    return element


def _positive(element: Any, symbols: Symbols) -> Any:
    """Returns `element`. Raises NotKnownError unless it is provably above 0."""
    if not symbols.holds(element > 0):
        raise NotKnownError
    return element


def _comparison(condition: Callable[[Any, Any], Any]) -> Rule:
    """The rule of a comparison; NotKnownError unless its result is the same for all sizes."""

    def rule(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
        def decide(a: Any, b: Any) -> bool:
            if isinstance(a, (float, Ratio)) or isinstance(b, (float, Ratio)):
                raise NotKnownError
            claim = condition(a, b)
            if symbols.holds(claim):
                return True
            if isinstance(claim, bool) or symbols.holds(tirx.Not(claim)):
                return False
            raise NotKnownError

        return _map(decide, "bool", *inputs)

    return rule


def _equal(a: Any, b: Any) -> Any:
    return a == b if isinstance(a, int) and isinstance(b, int) else tirx.EQ(_expr(a), _expr(b))


def _expr(element: Any) -> Any:
    return tirx.IntImm("int64", element) if isinstance(element, int) else element


def _rounding(up: bool) -> Rule:
    """The rule of Ceil (`up`) and Floor."""

    def function(element: Any) -> Any:
        ratio = as_ratio(element)
        top = ratio.top + (ratio.bottom - 1 if up else 0)
        return Ratio(top // ratio.bottom if isinstance(top, int) else tirx.floordiv(top, ratio.bottom), 1)

    return lambda inputs, _, symbols: _map(function, inputs[0].dtype, inputs[0])


def _cast(inputs: list[Any], attributes: Mapping[str, Any], symbols: Symbols) -> Value:
    dtype = str(helper.tensor_dtype_to_np_dtype(attributes["to"]))

    def convert(element: Any) -> Any:
        if dtype.startswith("float"):
            return as_ratio(element)
        if dtype == "bool":
            raise NotKnownError
        if not isinstance(element, (float, Ratio)):
            return element
        ratio = as_ratio(element)
        if isinstance(ratio.top, int):
            return int(element) if isinstance(element, float) else int(Fraction(ratio.top, ratio.bottom))
        return tirx.floordiv(_not_negative(ratio.top, symbols), ratio.bottom)

    return _map(convert, dtype, inputs[0])


def _where(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
    def pick(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool):
            return a if condition else b
        raise NotKnownError

    return _map(pick, inputs[1].dtype, *inputs)


def _one_hot(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    """OneHot whose positions and number of classes are constants; its two values may be sizes."""
    indices, depth, values = inputs
    if not indices.is_constant or not depth.is_constant:
        raise NotKnownError
    count, (off, on) = int(depth.numpy().item()), values.extents()
    chosen = np.where(indices.numpy() < 0, indices.numpy() + count, indices.numpy())[..., None]
    items = np.frompyfunc(lambda hit: on if hit else off, 1, 1)(chosen == np.arange(count))
    return Value(np.moveaxis(items, -1, int(attributes.get("axis", -1))), values.dtype)


def _extreme(function: Callable[[Any, Any], Any], of_numbers: Callable[..., Any]) -> Rule:
    """The rule of Max or Min on integers: `of_numbers` for constants, `function` for expressions."""

    def pair(a: Any, b: Any) -> Any:
        if isinstance(a, (float, Ratio)) or isinstance(b, (float, Ratio)):
            raise NotKnownError
        return of_numbers(a, b) if isinstance(a, int) and isinstance(b, int) else function(_expr(a), _expr(b))

    def rule(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
        result: Value = inputs[0]
        for value in inputs[1:]:
            result = _map(pair, result.dtype, result, value)
        return result

    return rule


def _integers(value: Value | None, attribute: Any = None) -> list[int] | None:
    """The integers of an input, or of the attribute that older opsets have in its place; None for neither.

    Raises NotKnownError for an input with symbolic elements.
    """
    if value is None:
        return None if attribute is None else [int(element) for element in attribute]
    if not value.is_constant:
        raise NotKnownError
    return [int(element) for element in value.items.reshape(-1)]


def _second_input(inputs: list[Any], attributes: Mapping[str, Any], name: str) -> list[int] | None:
    return _integers(inputs[1] if len(inputs) > 1 else None, attributes.get(name))


def _gather(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    if not inputs[1].is_constant:
        raise NotKnownError
    indices = inputs[1].items.astype(np.int64)
    gathered = np.empty(indices.shape, object)
    gathered[...] = np.take(inputs[0].items, indices, axis=int(attributes.get("axis", 0)))
    return Value(gathered, inputs[0].dtype)


def _slice(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    def numbers_of(index: int, name: str) -> list[int] | None:
        return _integers(inputs[index] if index < len(inputs) else None, attributes.get(name))

    starts, ends = numbers_of(1, "starts") or [], numbers_of(2, "ends") or []
    axes = numbers_of(3, "axes") or list(range(len(starts)))
    steps = numbers_of(4, "steps") or [1] * len(starts)
    items = inputs[0].items
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = items.shape[axis]
        begin = max(start + size, 0) if start < 0 else start
        stop: int | None = end + size if end < 0 else end
        if step < 0 and stop is not None and stop < 0:
            stop = None
        index = [slice(None)] * items.ndim
        index[axis] = slice(begin, stop if stop is None else max(stop, 0), step)
        items = items[tuple(index)]
    return Value(items, inputs[0].dtype)


def _reshape(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    shape = _integers(inputs[1]) or []
    if not attributes.get("allowzero", 0):
        shape = [inputs[0].items.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return Value(inputs[0].items.reshape(shape), inputs[0].dtype)


def _transpose(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    return Value(np.transpose(inputs[0].items, attributes.get("perm")), inputs[0].dtype)


def _tile(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
    return Value(np.tile(inputs[0].items, _integers(inputs[1]) or ()), inputs[0].dtype)


def _squeeze(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    axes = _second_input(inputs, attributes, "axes")
    return Value(np.squeeze(inputs[0].items, None if axes is None else tuple(axes)), inputs[0].dtype)


def _unsqueeze(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    axes = _second_input(inputs, attributes, "axes") or []
    return Value(np.expand_dims(inputs[0].items, tuple(axes)), inputs[0].dtype)


def _concat(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
    joined = np.concatenate([value.items for value in inputs], axis=int(attributes["axis"]))
    return Value(joined, inputs[0].dtype)


def _expand(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
    shape = np.broadcast_shapes(inputs[0].items.shape, tuple(_integers(inputs[1]) or ()))
    return Value(np.broadcast_to(inputs[0].items, shape).copy(), inputs[0].dtype)


def _reduction(function: Callable[[Any, Any], Any]) -> Rule:
    """The rule of a reduction of integers by the binary operation `function`."""

    def rule(inputs: list[Any], attributes: Mapping[str, Any], _: Symbols) -> Value:
        if inputs[0].dtype.startswith("float") or inputs[0].items.size == 0:
            raise NotKnownError
        axes = _second_input(inputs, attributes, "axes")
        over = tuple(range(inputs[0].items.ndim)) if not axes else tuple(axes)
        reduced = inputs[0].items
        for axis in sorted((axis % inputs[0].items.ndim for axis in over), reverse=True):
            slices = [np.take(reduced, [i], axis=axis) for i in range(reduced.shape[axis])]
            reduced = slices[0]
            for next_slice in slices[1:]:
                reduced = _map(function, "int64", Value(reduced, "int64"), Value(next_slice, "int64")).items
            if not attributes.get("keepdims", 1):
                reduced = np.squeeze(reduced, axis)
        items = np.empty(np.shape(reduced), object)
        items[...] = reduced
        return Value(items, inputs[0].dtype)

    return rule


def _identity(inputs: list[Any], _: Mapping[str, Any], symbols: Symbols) -> Value:
    return Value(inputs[0].items, inputs[0].dtype)


RULES: dict[str, Rule] = {
    "Add": _arithmetic("Add", lambda a, b, _: a + b),
    "Cast": _cast,
    "Ceil": _rounding(up=True),
    "Concat": _concat,
    "Div": _arithmetic("Div", _divide),
    "Equal": _comparison(_equal),
    "Expand": _expand,
    "Floor": _rounding(up=False),
    "Gather": _gather,
    "Greater": _comparison(operator.gt),
    "GreaterOrEqual": _comparison(operator.ge),
    "Identity": _identity,
    "Less": _comparison(operator.lt),
    "LessOrEqual": _comparison(operator.le),
    "Max": _extreme(tirx.max, max),
    "Min": _extreme(tirx.min, min),
    "Mod": _modulo,
    "Mul": _arithmetic("Mul", lambda a, b, _: a * b),
    "Neg": lambda x, *rest: RULES["Mul"]([x[0], Value(np.array(-1, object), x[0].dtype)], *rest),
    "ReduceMax": _reduction(lambda a, b: tirx.max(_expr(a), _expr(b))),
    "ReduceMin": _reduction(lambda a, b: tirx.min(_expr(a), _expr(b))),
    "ReduceProd": _reduction(operator.mul),
    "ReduceSum": _reduction(operator.add),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _arithmetic("Sub", lambda a, b, _: a - b),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
