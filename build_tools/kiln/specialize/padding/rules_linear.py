"""Padding rules of matmul and convolution: a padded axis that is summed over must be 0 in one operand."""

from __future__ import annotations

from typing import Any

from kiln.specialize.padding.align import Operands
from kiln.specialize.padding.context import Context, Rule, shown
from kiln.specialize.padding.pointwise_values import multiply
from kiln.specialize.padding.rules_reductions import said
from kiln.specialize.padding.sizes import shape_of
from kiln.specialize.padding.tensors import (
    KEPT,
    Atom,
    Axis,
    NotNeutralError,
    Padded,
    Region,
    keys_of,
    made,
    subsets,
)
from kiln.specialize.padding.values import ANYTHING, FINITE, ZERO, like


def matmul(context: Context, call: Any) -> Padded:
    """matmul, with NumPy's broadcasting of all axes but the last two.

    Raises NotNeutralError unless every product of padded elements of the summed axis is 0.
    """
    a, b = (context.padded(argument) for argument in call.args)
    left, right = (Padded(((), *a.axes), a.values) if len(a.axes) == 1 else a), b
    if len(b.axes) == 1:
        right = Padded((*b.axes, ()), b.values)
    inner = Operands(
        [Padded((left.axes[-1],), left.values), Padded((right.axes[-2],), right.values)], context.sizes
    )
    outer = Operands(
        [Padded(left.axes[:-2], left.values), Padded(right.axes[:-2], right.values)], context.sizes
    )
    rows, columns = context.sizes.like(left.axes[-2]), context.sizes.like(right.axes[-1])
    own = [
        dict(zip(keys_of([rows]), keys_of([left.axes[-2]]), strict=True)),
        dict(zip(keys_of([columns]), keys_of([right.axes[-1]]), strict=True)),
    ]
    summed = keys_of(inner.axes)

    def place(index: int, region: Region) -> Region:
        mine = frozenset(own[index][key] for key in region if key in own[index])
        return mine | outer.region(index, region) | inner.region(index, region)

    def value(region: Region) -> Any:
        products = [
            multiply(left.at(place(0, region | beyond)), right.at(place(1, region | beyond)))
            for beyond in subsets(summed)
        ]
        if region == KEPT:
            for beyond, product in zip(subsets(summed)[1:], products[1:], strict=True):
                if not product.equals(0):
                    one, two = left.at(place(0, beyond)), right.at(place(1, beyond))
                    raise NotNeutralError(
                        f"it sums over axis {len(left.axes) - 1} of its first operand, "
                        f"{shown(left.axes[-1])}, whose padded part {said(one)}, while that of the second "
                        f"{said(two)}; zeros in one and finite numbers in the other would not be seen"
                    )
        if all(product.equals(0) for product in products):
            return ZERO
        return like(FINITE, *products) if all(product.finite for product in products) else ANYTHING

    axes: list[Axis] = [*outer.axes, rows, columns]
    if len(a.axes) == 1:
        axes.pop(-2)
    if len(b.axes) == 1:
        axes.pop()
    return made(axes, value)


def conv(context: Context, call: Any) -> Padded:
    """nn.conv: windows of the kept part may overlap the padded part only if the padded part holds zeros."""
    state, weight = (context.padded(argument) for argument in call.args[:2])
    if weight.keys:
        raise NotNeutralError("its weights are padded")
    attrs = call.attrs
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    transposed = "transpose" in context.name(call)
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "NC" and letter.isalpha()]
    shape, weights = shape_of(call.ty), shape_of(call.args[1].ty)
    context.refuse_padded(state, [layout.index("C")], "it sums over")
    needed: set[int] = set()
    axes: list[Axis] = [()] * len(layout)
    for axis, own in enumerate(state.axes):
        if axis not in spatial:
            axes[axis] = own if layout[axis] == "N" else context.sizes.axis(shape[axis])
            continue
        keys = keys_of([own])
        if not keys:
            axes[axis] = context.sizes.axis(shape[axis])
            continue
        if len(own) > 1:
            raise NotNeutralError(f"it slides over axis {axis}, which a reshape has merged")
        place = spatial.index(axis)
        width = (int(weights[kernel.index(layout[axis])]) - 1) * int(attrs.dilation[place]) + 1
        behind = int(attrs.padding[len(spatial) + place])
        if transposed:
            reach = (width - 1 - behind + int(attrs.output_padding[place])) // int(attrs.strides[place])
        else:
            reach = behind
        if reach > 0:
            needed |= set(keys)
        axes[axis] = (Atom(context.sizes.simplify(shape[axis]), keys[0]),)
    return windows(
        state, axes, spatial, needed, "zeros there would not be seen", lambda value: value.equals(0)
    )


def windows(
    state: Padded, axes: list[Axis], spatial: list[int], needed: set[int], needs: str, unseen: Any
) -> Padded:
    """The result of an operator with sliding windows.

    axes: of the result. spatial: axes along which windows slide. needed: keys of the padded atoms whose
    padded part is read by windows of the kept part. unseen: whether values in the padded part do not change a
    window's result; NotNeutralError with the remedy `needs` is raised where they do.
    """
    slid = set(keys_of(state.axes[axis] for axis in spatial))
    for region in subsets(needed):
        if region and not unseen(state.at(region)):
            axis = next(a for a in spatial if set(keys_of([state.axes[a]])) & region)
            raise NotNeutralError(
                f"its windows reach into the padded part of axis {axis}, {shown(state.axes[axis])}, "
                f"which {said(state.at(region))}; {needs}"
            )

    def value(region: Region) -> Any:
        # A window of an element in the padded part of the result may also read elements of the kept part.
        parts = [state.at(part) for part in subsets(region | needed) if part | slid >= region]
        return like(FINITE, *parts) if all(part.finite for part in parts) else ANYTHING

    return made(axes, value)


RULES: dict[str, Rule] = {
    "matmul": matmul,
    **{f"nn.conv{n}d{kind}": conv for n in (1, 2, 3) for kind in ("", "_transpose")},
}
