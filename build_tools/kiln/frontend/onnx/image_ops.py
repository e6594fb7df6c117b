"""Converters of ONNX operators on images whose values, not only shapes, depend on the size of the input.

Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from kiln.extents import Extent
from kiln.frontend.onnx.integer_resize import resize_integers, rounded
from kiln.frontend.onnx.node import Node, as_tensor, prims, shape_expr
from kiln.frontend.onnx.resample import SIMPLE, Rule, resample, rule_with_rounding
from kiln.frontend.onnx.run_resize import RunResize
from kiln.frontend.onnx.value import Ratio, from_items

_RELAX_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
# Scales are float32, so 2/3 is stored as 0.6666667. Exporters do not use fractions with greater divisors.
_GREATEST_DIVISOR = 1024
# Images of fewer channels are resized along one axis after the other.
_FEW_CHANNELS = 8


def resize(node: Node) -> Any:
    """Resize by scales or to sizes: of images (N, C, H, W) and rows (N, C, W) by relax.image.resize2d.

    TVM 0.27 accepts only constants, ignores the scales of the first two axes, and samples as if the ratio of
    output and input size were the scale, even if rounding the size has changed the ratio. Whatever it lacks
    is resized axis by axis (kiln.frontend.onnx.resample).
    """
    mode = _mode(node)
    if mode != "nearest" and not str(node.tensor(0).ty.dtype).startswith("float"):
        return resize_integers(node, mode, _resize_floats)
    return _resize_floats(node)


def _mode(node: Node) -> str:
    return node.text("mode", "nearest").replace("bilinear", "linear")


def _resize_floats(node: Node, rounded_to: str = "") -> Any:
    """Resize of floats, or in mode nearest of any type; `rounded_to`: as of Rule."""
    # Before operator set 11, when its inputs were the data and the scales, positions were plain quotients.
    old = node.op == "Upsample" or len(node.inputs) == 2
    coordinates = node.text("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    mode = _mode(node)
    rounding = node.text("nearest_mode", _old_rounding(node, mode) if old else "round_prefer_floor")
    shape, dtype = node.shape(0), str(node.tensor(0).ty.dtype)
    rule = _rule(node, mode, coordinates, rounding, rounded_to)
    if not _is_known(node, coordinates):
        return _resize_in_run(node, rule)
    # resize2d computes in float32.
    if rounding == SIMPLE or dtype == "float64" or not _fits_resize2d(node, shape, coordinates):
        return _resize_axes(node, rule)
    sizes = node.known_elements(3) if node.has(3) else _sizes_from_scales(node, shape)
    if sizes is None:
        return _resize_axes(node, rule)
    if not _is_exact(node, mode, coordinates, sizes[2:]) or _has_few_channels(mode, shape, sizes):
        return _resize_axes(node, rule)
    data = node.tensor(0)
    if (mode, coordinates, rounding) == ("nearest", "asymmetric", "floor"):
        pairs = list(zip(shape, sizes, strict=True))
        if any(isinstance(new, int) and not isinstance(old, int) for old, new in pairs):
            return _nearest(data, pairs)
    rows = len(shape) == 3
    if rows:
        data = relax.op.expand_dims(data, 2)
    resized = relax.op.image.resize2d(
        data,
        size=shape_expr([1, *sizes[2:]] if rows else sizes[2:]),
        roi=[0.0] * 4,
        layout="NCHW",
        method=_RELAX_METHODS[mode],
        coordinate_transformation_mode=coordinates,
        rounding_method=rounding,
        cubic_alpha=node.attributes.get("cubic_coeff_a", -0.75),
        cubic_exclude=node.attributes.get("exclude_outside", 0),
        extrapolation_value=node.attributes.get("extrapolation_value", 0.0),
    )
    return relax.op.squeeze(resized, [2]) if rows else resized


def _is_exact(node: Node, mode: str, coordinates: str, new: Sequence[Extent]) -> bool:
    """Whether relax.image.resize2d has ONNX's positions on the axes after the channels, of the sizes `new`.

    resize2d multiplies by a rounded ratio, which matters to the nearest element. With align_corners it
    divides by a new size less 1, which is 0 for a size of 1: also for the axis that a tensor of three axes
    lacks.
    """
    old = node.shape(0)[2:]
    if coordinates == "align_corners" and (
        len(old) < 2 or not all(_is_above_one(node, size) for size in new)
    ):
        return False
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if isinstance(a, int) and isinstance(b, int)]
    return mode != "nearest" or all(b and (a % b == 0 or b % a == 0) for a, b in pairs)


def _is_above_one(node: Node, size: Extent) -> bool:
    """Whether a size is at least 2 in every run."""
    return size > 1 if isinstance(size, int) else node.symbols.holds(size > 1)


def _has_few_channels(mode: str, shape: Sequence[Extent], sizes: Sequence[Extent]) -> bool:
    """Whether channels are too few for vectors, so that tables of positions along each axis are faster."""
    fixed = all(isinstance(size, int) for size in [*shape[1:], *sizes[2:]])
    return fixed and mode != "nearest" and shape[1] < _FEW_CHANNELS


def _old_rounding(node: Node, mode: str) -> str:
    """The rounding of mode nearest before operator set 11."""
    scales = _scales(node)
    longer = scales is not None and not any(isinstance(scale, Ratio) or scale < 1 for scale in scales)
    return "floor" if node.op == "Upsample" or longer or mode != "nearest" else SIMPLE


def _fits_resize2d(node: Node, shape: Sequence[Extent], coordinates: str) -> bool:
    """Whether relax.image.resize2d can compute the node."""
    if len(shape) not in (3, 4) or coordinates in ("tf_crop_and_resize", "half_pixel_symmetric"):
        return False
    if node.attributes.get("axes") or node.attributes.get("antialias"):
        return False
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    fixed = all(isinstance(size, int) for size in shape)
    if node.has(3):
        new_sizes = node.known_elements(3)
        return all(node.symbols.equal(a, b) for a, b in zip(new_sizes[:2], shape[:2], strict=True))
    scales = _scales(node) or []
    if len(scales) != len(shape):
        raise ValueError(f"it has {len(scales)} scales, allowed: {len(shape)}, one for each axis")
    integral = all(
        isinstance(scale, Ratio) or float(_fraction(scale) * size).is_integer()
        for scale, size in zip(scales, shape, strict=True)
        if isinstance(size, int)
    )
    return not fixed or (integral and all(scale == 1 for scale in scales[:2]))


def _is_known(node: Node, coordinates: str) -> bool:
    """Whether sizes or scales, and the region if there is one, are known before the model runs."""
    if coordinates == "tf_crop_and_resize" and node.constant(1) is None:
        return False
    return (node.elements(3) if node.has(3) else _scales(node)) is not None


def _rule(node: Node, mode: str, coordinates: str, rounding: str, rounded_to: str) -> Rule:
    """The rule of a Resize axis by axis."""
    attributes = node.attributes
    return Rule(
        mode,
        coordinates,
        rounding,
        bool(attributes.get("antialias", 0)),
        float(attributes.get("cubic_coeff_a", -0.75)),
        bool(attributes.get("exclude_outside", 0)) and mode != "nearest",
        float(attributes.get("extrapolation_value", 0.0)),
        rounded_to,
    )


def _axes(node: Node) -> list[int]:
    rank = len(node.shape(0))
    return [int(axis) % rank for axis in node.attributes.get("axes") or range(rank)]


def _resize_axes(node: Node, rule: Rule) -> Any:
    """Resize axis by axis, with tables that are computed at build time, or by the run for dynamic sizes.

    An axis of dynamic size that stays as it is needs no table.
    """
    shape, axes = node.shape(0), _axes(node)
    old = [shape[axis] for axis in axes]
    changed = [number for number, unchanged in enumerate(_stay_unchanged(node, rule, old)) if not unchanged]
    sizes = [old[number] for number in changed]
    if node.has(3):
        sizes += [node.known_elements(3)[number] for number in changed]
    if not all(isinstance(size, int) for size in sizes):
        return _resize_in_run(node, rule)
    new, scales = _new_sizes_and_scales(node, old, changed)
    if any(isinstance(size, int) and size == 0 for size in new):
        result_shape = list(shape)
        for axis, size in zip(axes, new, strict=True):
            result_shape[axis] = size
        return relax.op.zeros(shape_expr(result_shape), str(node.tensor(0).ty.dtype))
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if rule.coordinates == "tf_crop_and_resize":
        roi = node.constant(1)
        assert roi is not None
        region = [float(end) for end in roi.reshape(-1)]
    data = node.tensor(0)
    for number in reversed(changed) if rule.rounded_to else changed:
        axis, ends = axes[number], (region[number], region[len(axes) + number])
        if old[number] != new[number] or scales[number] != 1 or ends != (0.0, 1.0):
            pair = int(old[number]), int(new[number])
            data = resample(
                node.builder.emit,
                data,
                axis,
                pair,
                scales[number],
                rule_with_rounding(rule, scales[number]),
                ends,
            )
            if rule.rounded_to:
                data = rounded(node.builder.emit, data, rule.rounded_to)
    return data


def _stay_unchanged(node: Node, rule: Rule, old: Sequence[Extent]) -> list[bool]:
    """For each resized axis, of the sizes `old`, whether it has a dynamic size and stays as it is.

    Raises ValueError where there are not as many sizes or scales as axes.
    """
    amounts, noun = (node.known_elements(3), "sizes") if node.has(3) else (_scales(node) or [], "scales")
    if len(amounts) != len(old):
        raise ValueError(f"it has {len(amounts)} {noun}, allowed: {len(old)}, one for each axis")
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if rule.coordinates == "tf_crop_and_resize" or (node.has(3) and policy != "stretch"):
        return [False] * len(old)  # a part of the axis may become as long as the whole
    pairs = list(zip(amounts, old, strict=True))
    if node.has(3):
        same = [node.symbols.equal(*pair) for pair in pairs]
    else:
        same = [not isinstance(scale, Ratio) and scale == 1 for scale in amounts]
    return [unchanged and not isinstance(size, int) for unchanged, size in zip(same, old, strict=True)]


def _resize_in_run(node: Node, rule: Rule) -> Any:
    """Resize axis by axis, with tables that the run computes."""
    axes, scales, region = _axes(node), None, None
    if not node.has(3):
        attribute = node.attributes.get("scales")
        scales = (
            node.tensor(_scales_input(node))
            if attribute is None
            else relax.const(np.array(attribute, "float32"))
        )
    if rule.coordinates == "tf_crop_and_resize":
        if not node.has(1) or node.symbols.product(node.shape(1)) != 2 * len(axes):
            raise ValueError(f"its input 'roi' must have {2 * len(axes)} elements, two for each of its axes")
        region = node.builder.emit(relax.op.astype(node.tensor(1), "float64"))
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    return RunResize(node, rule, axes, scales, _scales(node), policy).result(region)


def _new_sizes_and_scales(
    node: Node, old: Sequence[Extent], changed: Sequence[int]
) -> tuple[list[Extent], list[float]]:
    """The new sizes of the resized axes, and their scales from the sizes `old`; 1 for axes not `changed`."""
    if not node.has(3):
        scales = [float(scale) for scale in _scales(node) or [] if not isinstance(scale, Ratio)]
        if len(scales) != len(old):
            raise ValueError(f"it has {len(scales)} fixed scales, allowed: {len(old)}, one for each axis")
        return [
            math.floor(np.float32(scale) * np.float32(size)) if isinstance(size, int) else size
            for scale, size in zip(scales, old, strict=True)
        ], scales
    new = node.known_elements(3)
    ratios = [1.0] * len(old)
    for number in changed:
        ratios[number] = float(new[number]) / float(old[number])
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return new, ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(ratio * int(size) + 0.5) for size in old], [ratio] * len(old)


def _nearest(data: Any, pairs: Sequence[tuple[Extent, Extent]]) -> Any:
    """Nearest-neighbour resize from dynamic to fixed sizes, which TVM 0.27 fails to convert.

    Element i of a resized axis is element i * old // new of the input. `pairs`: (old, new) size per axis.
    """
    for axis, (old, new) in enumerate(pairs):
        if axis >= 2:
            indices = relax.op.arange(*prims([0, new, 1]), "int64")
            scaled = relax.op.multiply(indices, as_tensor(from_items([old])))
            data = relax.op.take(data, relax.op.floor_divide(scaled, as_tensor(from_items([new]))), axis)
    return data


def _scales_input(node: Node) -> int:
    """The number of the input with the scales: operator set 11 put the region of interest before it."""
    return 2 if len(node.inputs) > 2 else 1


def _scales(node: Node) -> list[Any] | None:
    """The scales, numbers or Ratios; None: only the run knows them, or the node has sizes."""
    scales = node.attributes.get("scales")  # attribute of Upsample in early opsets, later an input
    if scales is not None:
        return list(scales)
    name = node.inputs[_scales_input(node)]
    return node.values[name].extents() if name in node.values and not node.has(3) else None


def _fraction(scale: float) -> Fraction:
    return Fraction(scale).limit_denominator(_GREATEST_DIVISOR)


def _sizes_from_scales(node: Node, shape: Sequence[Extent]) -> list[Extent] | None:
    """The sizes that result from scales; None for a scale that gives a fractional size."""
    sizes = []
    for scale, size in zip(_scales(node) or [], shape, strict=True):
        if isinstance(scale, Ratio):
            top, bottom = scale.top, scale.bottom
        else:
            exact = _fraction(scale)
            top, bottom = exact.numerator, exact.denominator
        product = size * top
        remainder = product % bottom if isinstance(product, int) else tirx.floormod(product, bottom)
        if not node.symbols.equal(remainder, 0):
            return None
        sizes.append(node.symbols.simplify(product // bottom))
    return sizes


def roi_align(node: Node) -> Any:
    """RoiAlign; TVM 0.27 moves regions by half a pixel before it scales them."""
    emit, op, attributes = node.builder.emit, relax.op, node.attributes
    scale = float(attributes.get("spatial_scale", 1.0))
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"  # the attribute's first operator set
    coordinates, regions = node.text("coordinate_transformation_mode", default), node.tensor(1)
    dtype = str(regions.ty.dtype)
    if coordinates == "half_pixel":
        regions = emit(op.subtract(regions, relax.const(0.5 / scale, dtype)))
    images = emit(op.astype(op.expand_dims(node.tensor(2), 1), dtype))
    return op.vision.roi_align(
        node.tensor(0),
        emit(op.concat([images, regions], 1)),
        pooled_size=tuple(int(attributes.get(key, 1)) for key in ("output_height", "output_width")),
        spatial_scale=scale,
        sample_ratio=int(attributes.get("sampling_ratio", 0)),
        aligned=coordinates == "half_pixel",
        layout="NCHW",
        mode=node.text("mode", "avg"),
    )


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "Resize": resize,
    "RoiAlign": roi_align,
    "Upsample": resize,
}
