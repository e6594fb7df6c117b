"""Padding rules of matmul and convolution: a padded axis that is summed over must be 0 in one operand."""

from __future__ import annotations

from typing import Any

from kiln.specialize.padding.align import Operands
from kiln.specialize.padding.context import Context, Rule, axis_text
from kiln.specialize.padding.pointwise_values import multiply
from kiln.specialize.padding.rules_reductions import values_text
from kiln.specialize.padding.sizes import shape_of
from kiln.specialize.padding.tensors import (
    KEPT,
    Atom,
    Axis,
    NotNeutralError,
    Padded,
    Region,
    keys_of,
    subsets,
    tensor_state,
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
    outer_keys = [
        dict(zip(keys_of([rows]), keys_of([left.axes[-2]]), strict=True)),
        dict(zip(keys_of([columns]), keys_of([right.axes[-1]]), strict=True)),
    ]
    summed = keys_of(inner.axes)

    def operand_region(index: int, region: Region) -> Region:
        own_keys = frozenset(outer_keys[index][key] for key in region if key in outer_keys[index])
        return own_keys | outer.region(index, region) | inner.region(index, region)

    def value(region: Region) -> Any:
        products = [
            multiply(left.at(operand_region(0, part)), right.at(operand_region(1, part)))
            for part in (region | beyond for beyond in subsets(summed))
        ]
        if region == KEPT:
            for beyond, product in zip(subsets(summed)[1:], products[1:], strict=True):
                if not product.equals(0):
                    left_values = left.at(operand_region(0, beyond))
                    right_values = right.at(operand_region(1, beyond))
                    raise NotNeutralError(
                        f"it sums over axis {len(left.axes) - 1} of its first operand, "
                        f"{axis_text(left.axes[-1])}, whose padded part {values_text(left_values)}, while "
                        f"that of the second {values_text(right_values)}; zeros in one and finite numbers in "
                        "the other would not change the result"
                    )
        if all(product.equals(0) for product in products):
            return ZERO
        return like(FINITE, *products) if all(product.finite for product in products) else ANYTHING

    axes: list[Axis] = [*outer.axes, rows, columns]
    if len(a.axes) == 1:
        axes.pop(-2)
    if len(b.axes) == 1:
        axes.pop()
    return tensor_state(axes, value)


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
    for axis, operand_axis in enumerate(state.axes):
        if axis not in spatial:
            axes[axis] = operand_axis if layout[axis] == "N" else context.sizes.axis(shape[axis])
            continue
        keys = keys_of([operand_axis])
        if not keys:
            axes[axis] = context.sizes.axis(shape[axis])
            continue
        if len(operand_axis) > 1:
            raise NotNeutralError(f"it slides over axis {axis}, which a reshape has merged")
        position = spatial.index(axis)
        width = (int(weights[kernel.index(layout[axis])]) - 1) * int(attrs.dilation[position]) + 1
        padding_after = int(attrs.padding[len(spatial) + position])
        if transposed:
            extra = int(attrs.output_padding[position]) - padding_after
            reach = (width - 1 + extra) // int(attrs.strides[position])
        else:
            reach = padding_after
        if reach > 0:
            needed |= set(keys)
        axes[axis] = (Atom(context.sizes.simplify(shape[axis]), keys[0]),)
    return windows(
        state, axes, spatial, needed, "zeros there would not change the result", lambda value: value.equals(0)
    )


def windows(
    state: Padded, axes: list[Axis], spatial: list[int], needed: set[int], remedy: str, is_neutral: Any
) -> Padded:
    """The result of an operator with sliding windows.

    axes: of the result. spatial: axes along which windows slide. needed: keys of the padded atoms whose
    padded part is read by windows of the kept part. is_neutral: whether values in the padded part do not
    change a window's result. Raises NotNeutralError, which ends with `remedy`, where they do.
    """
    spatial_keys = set(keys_of(state.axes[axis] for axis in spatial))
    for region in subsets(needed):
        if region and not is_neutral(state.at(region)):
            axis = next(a for a in spatial if set(keys_of([state.axes[a]])) & region)
            raise NotNeutralError(
                f"its windows reach into the padded part of axis {axis}, {axis_text(state.axes[axis])}, "
                f"which {values_text(state.at(region))}; {remedy}"
            )

    def value(region: Region) -> Any:
        # A window of an element in the padded part of the result may also read elements of the kept part.
        parts = [state.at(part) for part in subsets(region | needed) if part | spatial_keys >= region]
        return like(FINITE, *parts) if all(part.finite for part in parts) else ANYTHING

    return tensor_state(axes, value)


RULES: dict[str, Rule] = {
    "matmul": matmul,
    **{f"nn.conv{n}d{kind}": conv for n in (1, 2, 3) for kind in ("", "_transpose")},
}
