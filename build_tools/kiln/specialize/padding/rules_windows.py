"""Padding rules of pooling and resampling."""

from __future__ import annotations

from typing import Any

from kiln.specialize.padding.context import Context, Rule
from kiln.specialize.padding.rules_linear import windows
from kiln.specialize.padding.rules_reductions import mixing
from kiln.specialize.padding.sizes import shape_of
from kiln.specialize.padding.tensors import Atom, Axis, NotNeutralError, Padded, keys_of
from kiln.specialize.padding.values import ValueRange, least


def pool(context: Context, call: Any) -> Padded:
    """max_pool, avg_pool: windows of the kept part must not be changed by the padded part.

    The last windows extend `padding` elements beyond the kept part, and with ceil_mode stride - 1 more.
    """
    state, attrs = context.padded(call.args[0]), call.attrs
    layout, dtype = str(attrs.layout), context.dtype(call.args[0])
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "NC" and letter.isalpha()]
    shape, axes = shape_of(call.ty), list[Axis](state.axes)
    needed: set[int] = set()
    for position, axis in enumerate(spatial):
        keys = keys_of([state.axes[axis]])
        if not keys:
            axes[axis] = context.sizes.axis(shape[axis])
            continue
        if len(state.axes[axis]) > 1:
            raise NotNeutralError(f"it slides over axis {axis}, which a reshape has merged")
        reach = int(attrs.padding[len(spatial) + position])
        reach += int(attrs.strides[position]) - 1 if attrs.ceil_mode else 0
        if reach > 0:
            needed |= set(keys)
        axes[axis] = (Atom(context.sizes.simplify(shape[axis]), keys[0]),)
    if "max" in context.name(call):

        def is_neutral(value: ValueRange) -> bool:
            return value.is_masked or value.equals(least(dtype))

        return windows(
            state, axes, spatial, needed, "the least value there would not change the result", is_neutral
        )
    counted = bool(attrs.count_include_pad) and not attrs.ceil_mode
    remedy = "zeros there would not change the result" if counted else "it divides by the number of elements"
    return windows(state, axes, spatial, needed, remedy, lambda value: counted and value.equals(0))


def _spatial(call: Any, rank: int) -> list[int]:
    layout = str(call.attrs.layout)
    return [axis for axis, letter in enumerate(layout) if letter not in "NC"]


RULES: dict[str, Rule] = {
    **{f"nn.{kind}_pool{n}d": pool for n in (1, 2, 3) for kind in ("max", "avg")},
    **{f"nn.adaptive_avg_pool{n}d": mixing(_spatial, "it averages over") for n in (1, 2, 3)},
    "image.resize2d": mixing(_spatial, "it resamples"),
    "image.resize3d": mixing(_spatial, "it resamples"),
}  # fmt: skip
