"""Padding rules of reductions, scans, softmax and norms: the values at which a padded part is neutral."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kiln.specialize.padding.context import Context, Rule, State, axis_text, normal_axes
from kiln.specialize.padding.sizes import shape_of
from kiln.specialize.padding.tensors import (
    KEPT,
    Axis,
    NotNeutralError,
    Padded,
    Region,
    keys_of,
    subsets,
    tensor_state,
)
from kiln.specialize.padding.values import (
    ANYTHING,
    FINITE,
    INFINITY,
    ZERO,
    ValueRange,
    greatest,
    join,
    least,
    like,
    of_dtype,
    within,
)

# (values in the padded part, values in the kept part, dtype) → whether the padded part is neutral
Neutral = Callable[[ValueRange, ValueRange, str], bool]


def _is_neutral_for_sum(padding: ValueRange, kept: ValueRange, dtype: str) -> bool:
    return padding.equals(0)


def _is_neutral_for_maximum(padding: ValueRange, kept: ValueRange, dtype: str) -> bool:
    below = padding.known and kept.known and padding.high <= kept.low
    return below or (padding.is_masked and kept != ANYTHING) or padding.equals(least(dtype))


def _is_neutral_for_minimum(padding: ValueRange, kept: ValueRange, dtype: str) -> bool:
    above = padding.known and kept.known and padding.low >= kept.high
    return above or padding.equals(greatest(dtype))


def _is_neutral_for_product(padding: ValueRange, kept: ValueRange, dtype: str) -> bool:
    return padding.equals(1)


def _is_never_neutral(padding: ValueRange, kept: ValueRange, dtype: str) -> bool:
    return False


def _total(value: ValueRange) -> ValueRange:
    """The sum of any number of elements of `value`."""
    if value.equals(0):
        return ZERO
    low, high = (0 if value.low >= 0 else -INFINITY), (0 if value.high <= 0 else INFINITY)
    return replace(value, low=low, high=high)


def _finite(value: ValueRange) -> ValueRange:
    return like(FINITE, value) if value.finite else ANYTHING


def _normed(value: ValueRange) -> ValueRange:
    return FINITE if value.finite else ANYTHING


_LEAST = "the least value there would not change the result"
_GREATEST = "the greatest value there would not change the result"
_COUNT = "it divides by the padded size; a sum divided by the sum of a mask does not"

# Operator → (remedy for errors; whether a padded part is neutral; values of the reduction's result)
_REDUCTIONS: dict[str, tuple[str, Neutral, Callable[[ValueRange], ValueRange]]] = {
    "sum": ("zeros there would not change the result", _is_neutral_for_sum, _total),
    "prod": ("ones there would not change the result", _is_neutral_for_product, _finite),
    "max": (_LEAST, _is_neutral_for_maximum, lambda value: value),
    "min": (_GREATEST, _is_neutral_for_minimum, lambda value: value),
    "argmax": (_LEAST, _is_neutral_for_maximum, lambda value: FINITE),
    "argmin": (_GREATEST, _is_neutral_for_minimum, lambda value: FINITE),
    "mean": (_COUNT, _is_never_neutral, lambda value: value),
    "variance": (_COUNT, _is_never_neutral, _finite),
    "std": (_COUNT, _is_never_neutral, _finite),
}  # fmt: skip


def reduction(name: str) -> Rule:
    """The rule of reduction `name`: a padded axis may be reduced only if its padded part is neutral."""
    remedy, neutral, result = _REDUCTIONS[name]

    def rule(context: Context, call: Any) -> Padded:
        state = context.padded(call.args[0])
        attrs, dtype = call.attrs, context.dtype(call.args[0])
        axes = normal_axes(attrs.axis, len(state.axes))
        merged = len(axes) > 1 or len(state.axes[axes[0]]) > 1
        if name.startswith("arg") and merged and any(keys_of([state.axes[axis]]) for axis in axes):
            raise NotNeutralError("it counts along several axes, of which one is padded")
        axes_left = [axis for index, axis in enumerate(state.axes) if index not in axes]
        reduced = [key for index in axes for key in keys_of([state.axes[index]])]
        # The kept part may be empty; then its values do not outweigh those of the padded part.
        empty = any((context.sizes.least(context.sizes.total(state.axes[axis])) or 0) < 1 for axis in axes)
        if attrs.keepdims:
            axes_left = [() if index in axes else axis for index, axis in enumerate(state.axes)]

        def value(region: Region) -> ValueRange:
            states = [(beyond, state.at(region | beyond)) for beyond in subsets(reduced)]
            inside = states[0][1]
            outweighed = ANYTHING if empty else inside
            if all(neutral(padding, outweighed, dtype) for _, padding in states[1:]):
                return result(inside)
            if region == KEPT:
                region_seen = next(
                    beyond for beyond, padding in states[1:] if not neutral(padding, outweighed, dtype)
                )
                raise NotNeutralError(reason(state, axes, region_seen, remedy, "reduces"))
            joined = result(join(*(padding for _, padding in states)))
            return joined if joined.known else ANYTHING

        return tensor_state(axes_left, value)

    return rule


def reason(state: Padded, axes: list[int], region: Region, remedy: str, verb: str) -> str:
    """Text of an error: the axis whose padded part changes the result, its values, and the remedy."""
    axis = next((a for a in axes if set(keys_of([state.axes[a]])) & region), axes[0])
    values = state.at(region)
    size = axis_text(state.axes[axis])
    return f"it {verb} axis {axis}, {size}, whose padded part {values_text(values)}; {remedy}"


def values_text(value: ValueRange) -> str:
    """The abstract value of a padded part in words, as the predicate of a sentence."""
    if value.is_constant:
        return f"is {value.low:g}"
    if not value.finite:
        return "may hold anything, NaN too"
    if value.low == -INFINITY and value.high == INFINITY:
        return "may hold any number"
    return f"holds numbers from {value.low:g} to {value.high:g}"


def softmax(context: Context, call: Any) -> Padded:
    """softmax, log_softmax: the padded part must be masked, and softmax is 0 there in unmasked rows."""
    state = context.padded(call.args[0])
    axis = int(call.attrs.axis) % len(state.axes)
    along = keys_of([state.axes[axis]])
    logarithm = context.name(call) == "nn.log_softmax"
    unmasked = ValueRange(high=0) if logarithm else within(0, 1)

    def value(region: Region) -> ValueRange:
        rows, beyond = region - set(along), [subset for subset in subsets(along) if subset]
        inside = state.at(rows)
        states = [state.at(rows | subset) for subset in beyond]
        masked = all(value.is_masked for value in states)
        if not masked and rows == KEPT:
            remedy = f"{_LEAST}: a mask has to be added before"
            raise NotNeutralError(reason(state, [axis], beyond[0], remedy, "normalises"))
        if not inside.finite or not all(value.finite or value.equals(-INFINITY) for value in states):
            return ANYTHING
        if logarithm or inside.is_masked or not masked or not region & set(along):
            return (
                unmasked
                if not logarithm or not masked
                else ValueRange(high=0, finite=not region & set(along))
            )
        return ZERO

    return tensor_state(state.axes, value)


def scan(context: Context, call: Any) -> Padded:
    """cumsum, cumprod: each element depends on preceding elements alone, so padding at the end is neutral."""
    state = context.padded(call.args[0])
    if call.attrs.axis is None and len(state.axes) > 1:
        context.refuse_padded(state, range(len(state.axes)), "it adds up along all axes, among them")
        return context.new(call.ty, lambda region: _finite(state.kept))
    axis = int(call.attrs.axis or 0) % len(state.axes)
    if len(state.axes[axis]) > 1:
        context.refuse_padded(state, [axis], "it adds up along a merged")
    along = set(keys_of([state.axes[axis]]))

    def value(region: Region) -> ValueRange:
        states = [state.at(subset) for subset in subsets(region) if subset | along >= region]
        return _finite(join(*states))

    return tensor_state(state.axes, value)


def mixing(
    axes_of: Callable[[Any, int], list[int]],
    action: str,
    result: Callable[[ValueRange], ValueRange] = _finite,
) -> Rule:
    """The rule of operators that read whole axes for each element of the result: these must not be padded.

    axes_of: the axes, from a call and the operand's rank. action: start of the error message ("it sorts").
    """

    def rule(context: Context, call: Any) -> State:
        state = context.padded(call.args[0])
        axes = axes_of(call, len(state.axes))
        context.refuse_padded(state, axes, action)
        for other in call.args[1:]:
            extra = context.state(other)
            if isinstance(extra, list) or extra.keys:
                raise NotNeutralError(f"its operand of {context.dtype(other)} is padded")

        def value(region: Region) -> ValueRange:
            return result(state.at(region))

        def shaped(ty: Any) -> Padded:
            sizes = shape_of(ty)
            result_axes: list[Axis] = [
                context.sizes.axis(size) if axis in axes else axis_before
                for axis, (axis_before, size) in enumerate(zip(state.axes, sizes, strict=True))
            ]
            return tensor_state(result_axes, value)

        many = hasattr(call.ty, "fields")
        return [shaped(ty) for ty in call.ty.fields] if many else shaped(call.ty)

    return rule


def _axis(call: Any, rank: int) -> list[int]:
    return normal_axes(call.attrs.axis, rank)


def _axes(call: Any, rank: int) -> list[int]:
    return normal_axes(call.attrs.axes, rank)


def _group(call: Any, rank: int) -> list[int]:
    return sorted({*_axes(call, rank), int(call.attrs.channel_axis) % rank})


def norm(axes_of: Callable[[Any, int], list[int]]) -> Rule:
    """The rule of norms with an epsilon above 0: the result is finite if the operand is finite."""
    return mixing(axes_of, "it normalises by the mean and count of", _normed)


def batch_norm(context: Context, call: Any) -> State:
    """nn.batch_norm at inference: constants per channel; the axis of channels must not be padded."""
    state = context.padded(call.args[0])
    context.refuse_padded(state, [int(call.attrs.axis) % len(state.axes)], "it has constants for")
    first = tensor_state(state.axes, lambda region: _finite(state.at(region)))
    return [first, *(context.fixed(ty, of_dtype(str(ty.dtype))) for ty in call.ty.fields[1:])]


RULES: dict[str, Rule] = {
    **{name: reduction(name) for name in _REDUCTIONS},
    "nn.softmax": softmax,
    "nn.log_softmax": softmax,
    "cumsum": scan,
    "cumprod": scan,
    "sort": mixing(_axis, "it sorts"),
    "argsort": mixing(_axis, "it sorts"),
    "topk": mixing(_axis, "it ranks"),
    "nn.layer_norm": norm(_axes),
    "nn.rms_norm": norm(_axes),
    "nn.group_norm": norm(_group),
    "nn.instance_norm": norm(_axes),
    "nn.batch_norm": batch_norm,
}
