"""Padding rules of operators that move elements: the padded part of an axis must remain its last part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.specialize.padding.align import Operands, regrouped
from kiln.specialize.padding.context import Context, Rule, State, normal_axes
from kiln.specialize.padding.sizes import shape_of
from kiln.specialize.padding.tensors import (
    Atom,
    Axis,
    NotNeutralError,
    Padded,
    Region,
    keys_of,
    tensor_state,
    without_axis,
)
from kiln.specialize.padding.values import ZERO, ValueRange, join


def reshape(context: Context, call: Any) -> Padded:
    """reshape, flatten, squeeze: axes are merged and split along their factors (atoms)."""
    state = context.padded(call.args[0])
    atoms = [atom for axis in state.axes for atom in axis]
    axes = regrouped(atoms, shape_of(call.ty), context.sizes)
    return Padded(tuple(axes), state.values)


def expand_dims(context: Context, call: Any) -> Padded:
    """expand_dims: adds axes of size 1."""
    state = context.padded(call.args[0])
    axes, rank = list(state.axes), len(call.ty.shape)
    for axis in normal_axes(call.attrs.axis, rank):
        axes.insert(axis, ())
    return Padded(tuple(axes), state.values)


def permute_dims(context: Context, call: Any) -> Padded:
    """permute_dims: reorders the axes; without `axes`, reverses their order."""
    state = context.padded(call.args[0])
    order = call.attrs.axes
    chosen = range(len(state.axes))[::-1] if order is None else [int(a) % len(state.axes) for a in order]
    return Padded(tuple(state.axes[axis] for axis in chosen), state.values)


def broadcast_to(context: Context, call: Any) -> Padded:
    """broadcast_to: copies along new axes are equal everywhere, including the padded part of these axes."""
    state = context.padded(call.args[0])
    shape = shape_of(call.ty)
    axes_of_data: list[Axis] = [()] * (len(shape) - len(state.axes)) + list(state.axes)
    axes = [axis or context.sizes.axis(size) for axis, size in zip(axes_of_data, shape, strict=True)]
    return tensor_state(axes, state.at)


def full(context: Context, call: Any) -> Padded:
    """full: every element, also in the padded part, has the same value."""
    value = context.padded(call.args[1]).kept
    return context.new(call.ty, lambda region: value)


def filled(number: int) -> Rule:
    """The rule of zeros and ones: every element, including the padded part, is `number`."""
    return lambda context, call: context.new(call.ty, lambda region: ValueRange(number, number))


def concat(context: Context, call: Any) -> Padded:
    """concat: along a padded axis, operands after a padded one may only hold the value of its padded part."""
    fields = context.state(call.args[0])
    assert isinstance(fields, list)
    states = [state for state in fields if isinstance(state, Padded)]
    rank = len(states[0].axes)
    axis = int(call.attrs.axis or 0) % rank
    keys = {key for state in states for key in keys_of([state.axes[axis]])}
    if not keys:
        return _joined(context, states, axis, context.sizes.axis(shape_of(call.ty)[axis]), None)
    if any(len(state.axes[axis]) > 1 for state in states if keys_of([state.axes[axis]])):
        raise NotNeutralError(f"it joins axis {axis}, whose factors a reshape has merged")
    first = next(index for index, state in enumerate(states) if keys_of([state.axes[axis]]))
    tail = _tail(states[first], axis)
    for state in states[first + 1 :]:
        joined = join(tail, *state.values.values())
        if not joined.is_constant:
            raise NotNeutralError(f"it puts further elements after the padded ones of axis {axis}")
    return _joined(context, states, axis, context.sizes.axis(shape_of(call.ty)[axis]), tail)


def _tail(state: Padded, axis: int) -> ValueRange:
    """The values in the padded part of `axis`, in the kept and padded parts of all other axes."""
    keys = set(keys_of([state.axes[axis]]))
    return join(*(value for region, value in state.values.items() if region & keys))


def _joined(
    context: Context, states: Sequence[Padded], axis: int, joined_axis: Axis, tail: ValueRange | None
) -> Padded:
    """The concatenation of tensors along `axis`, which becomes `joined_axis`.

    tail: the values in the padded part of that axis.
    """
    rest = [without_axis(state, axis) for state in states]
    operands = Operands(rest, context.sizes)
    axes = [*operands.axes[:axis], joined_axis, *operands.axes[axis + 1 :]]
    last = set(keys_of([joined_axis]))

    def value(region: Region) -> ValueRange:
        if region & last and tail is not None:
            return tail
        return join(*(state.at(operands.region(i, region)) for i, state in enumerate(rest)))

    return tensor_state(axes, value)


def split(context: Context, call: Any) -> State:
    """split: the axis that is split must not be padded."""
    state = context.padded(call.args[0])
    axis = int(call.attrs.axis) % len(state.axes)
    context.refuse_padded(state, [axis], "it splits the padded")
    return [
        tensor_state(
            (*state.axes[:axis], context.sizes.axis(shape_of(ty)[axis]), *state.axes[axis + 1 :]), state.at
        )
        for ty in call.ty.fields
    ]


def stack(context: Context, call: Any) -> Padded:
    """stack: concatenation along a new axis."""
    fields = context.state(call.args[0])
    assert isinstance(fields, list)
    rank = len(call.ty.shape)
    axis = int(call.attrs.axis or 0) % rank
    states = [Padded((*s.axes[:axis], (), *s.axes[axis:]), s.values) for s in fields]
    return _joined(context, states, axis, context.sizes.axis(shape_of(call.ty)[axis]), None)


def flip(context: Context, call: Any) -> Padded:
    """flip: refused along a padded axis, whose padded part would come first."""
    state = context.padded(call.args[0])
    context.refuse_padded(state, normal_axes(call.attrs.axis, len(state.axes)), "it reverses the padded")
    return state


def tile(context: Context, call: Any) -> Padded:
    """tile: the repeat count becomes an outer factor of the axis."""
    state = context.padded(call.args[0])
    repeats = [int(count) for count in call.attrs.repeats]
    axes_of_data: list[Axis] = [()] * (len(repeats) - len(state.axes)) + list(state.axes)
    repeats = [1] * (len(axes_of_data) - len(repeats)) + repeats
    axes = [
        ((Atom(count), *axis) if count != 1 else axis)
        for count, axis in zip(repeats, axes_of_data, strict=True)
    ]
    return Padded(tuple(axes), state.values)


def repeat(context: Context, call: Any) -> Padded:
    """repeat: the repeat count becomes an inner factor of the axis."""
    state = context.padded(call.args[0])
    if call.attrs.axis is None:
        raise NotNeutralError("it repeats the elements of all axes")
    axis, count = int(call.attrs.axis) % len(state.axes), int(call.attrs.repeats)
    repeated = (*state.axes[axis], *([Atom(count)] if count != 1 else []))
    return Padded((*state.axes[:axis], repeated, *state.axes[axis + 1 :]), state.values)


def pad(context: Context, call: Any) -> Padded:
    """nn.pad: elements added after a padded part must equal the elements of the padded part."""
    state, attrs = context.padded(call.args[0]), call.attrs
    widths = [int(width) for width in attrs.pad_width]
    shape, filling = shape_of(call.ty), ValueRange(float(attrs.pad_value), float(attrs.pad_value))
    axes, longer = list(state.axes), False
    for axis in range(len(axes)):
        before, after = widths[2 * axis], widths[2 * axis + 1]
        if not (before or after):
            continue
        longer = True
        keys = keys_of([axes[axis]])
        if not keys:
            if str(attrs.pad_mode) == "constant" or before >= 0 <= after:
                axes[axis] = context.sizes.axis(shape[axis])
            continue
        if str(attrs.pad_mode) != "constant" or min(before, after) < 0 or len(axes[axis]) > 1:
            raise NotNeutralError(f"it pads axis {axis}, which is padded, in mode {attrs.pad_mode}")
        if after and not join(_tail(state, axis), filling).is_constant:
            raise NotNeutralError(f"it puts further elements after the padded ones of axis {axis}")
        axes[axis] = (Atom(context.sizes.simplify(shape[axis]), keys[0]),)
    if not longer:
        return state
    kept_keys = set(keys_of(axes))
    return tensor_state(axes, lambda region: join(state.at(region & kept_keys), filling))


def triangle(context: Context, call: Any) -> Padded:
    """tril, triu: positions are counted from the first element, which padding does not move."""
    state = context.padded(call.args[0])
    if any(len(axis) > 1 and keys_of([axis]) for axis in state.axes[-2:]):
        raise NotNeutralError("it counts along an axis whose factors a reshape has merged")
    return Padded(state.axes, {region: join(value, ZERO) for region, value in state.values.items()})


RULES: dict[str, Rule] = {
    "reshape": reshape,
    "flatten": reshape,
    "expand_dims": expand_dims,
    "squeeze": reshape,
    "permute_dims": permute_dims,
    "broadcast_to": broadcast_to,
    "full": full,
    "zeros": filled(0),
    "ones": filled(1),
    "concat": concat,
    "stack": stack,
    "split": split,
    "flip": flip,
    "tile": tile,
    "repeat": repeat,
    "nn.pad": pad,
    "tril": triangle,
    "triu": triangle,
}
