"""Converters of ONNX operators on images whose values, not only shapes, depend on the size of the input.

Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import relax, tirx

from kiln.frontend.onnx.node import Node, as_tensor, prims, shape_expr
from kiln.frontend.onnx.value import Ratio, from_items
from kiln.frontend.symbols import Extent

_RELAX_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
# Scales are float32, so 2/3 is stored as 0.6666667. Exporters do not use fractions with greater divisors.
_GREATEST_DIVISOR = 1024


def resize(node: Node) -> Any:
    """Resize of images (N, C, H, W) and rows (N, C, W), by scales or to sizes → relax.image.resize2d.

    TVM 0.27 accepts constants only, ignores the scales of the first two axes, and samples as if the ratio of
    output and input size were the scale, even if rounding the size has changed the ratio.
    """
    coordinates = _text(node, "coordinate_transformation_mode", "half_pixel")
    shape = node.shape(0)
    if len(shape) not in (3, 4) or coordinates == "tf_crop_and_resize" or node.attributes.get("axes"):
        return None
    if node.attributes.get("antialias") or _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ValueError("antialias and keep_aspect_ratio_policy have no counterpart in TVM")
    sizes = node.known(3) if node.has(3) else _scaled(node, shape)
    if not all(node.symbols.equal(a, b) for a, b in zip(sizes[:2], shape[:2], strict=True)):
        raise ValueError(f"sizes {sizes} of {shape}: only height and width can be resized")
    data = node.tensor(0)
    rounding = _text(node, "nearest_mode", "round_prefer_floor")
    if (_text(node, "mode", "nearest"), coordinates, rounding) == ("nearest", "asymmetric", "floor"):
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
        method=_RELAX_METHODS[_text(node, "mode", "nearest")],
        coordinate_transformation_mode=coordinates,
        rounding_method=rounding,
        cubic_alpha=node.attributes.get("cubic_coeff_a", -0.75),
        cubic_exclude=node.attributes.get("exclude_outside", 0),
        extrapolation_value=node.attributes.get("extrapolation_value", 0.0),
    )
    return relax.op.squeeze(resized, [2]) if rows else resized


def _nearest(data: Any, pairs: Sequence[tuple[Extent, Extent]]) -> Any:
    """Nearest-neighbour resize from dynamic to fixed sizes, which TVM 0.27 fails to convert.

    Element i of a resized axis is element i * old // new of the input. `pairs`: (old, new) size per axis.
    """
    for axis, (old, new) in enumerate(pairs):
        if axis >= 2:
            places = relax.op.arange(*prims([0, new, 1]), "int64")
            scaled = relax.op.multiply(places, as_tensor(from_items([old])))
            data = relax.op.take(data, relax.op.floor_divide(scaled, as_tensor(from_items([new]))), axis)
    return data


def _scaled(node: Node, shape: Sequence[Extent]) -> list[Extent]:
    """The sizes that result from scales. Raises ValueError for unknown scales and for a fractional size."""
    scales = node.attributes.get("scales")  # attribute of Upsample in early opsets, later an input
    if scales is None:
        name = node.inputs[2 if len(node.inputs) > 2 else 1]  # Resize has an input for the region of interest
        if name not in node.values:
            raise ValueError(f"its input '{name}' is not known before the model runs")
        scales = node.values[name].extents()
    sizes = []
    for scale, size in zip(scales, shape, strict=True):
        if isinstance(scale, Ratio):
            top, bottom = scale.top, scale.bottom
        else:
            exact = Fraction(scale).limit_denominator(_GREATEST_DIVISOR)
            top, bottom = exact.numerator, exact.denominator
        whole = size * top
        left = whole % bottom if isinstance(whole, int) else tirx.floormod(whole, bottom)
        if not node.symbols.equal(left, 0):
            raise ValueError(f"scale {scale} of size {size} gives no whole number for every size")
        sizes.append(node.symbols.simplify(whole // bottom))
    return sizes


def roi_align(node: Node) -> Any:
    """RoiAlign; TVM 0.27 moves regions by half a pixel before it scales them."""
    emit, op, attributes = node.builder.emit, relax.op, node.attributes
    scale = float(attributes.get("spatial_scale", 1.0))
    coordinates, regions = _text(node, "coordinate_transformation_mode", "half_pixel"), node.tensor(1)
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
        mode=_text(node, "mode", "avg"),
    )


def with_pads(node: Node) -> Any:
    """Replace auto_pad of a convolution or a pooling by explicit pads, and leave the node to TVM.

    TVM 0.27 computes the amounts for constant sizes only. Raises ValueError if an amount along a symbolic
    axis differs between sizes.
    """
    mode = _text(node, "auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    spatial = node.shape(0)[2:]
    kernel = node.attributes.get("kernel_shape") or node.shape(1)[2:]
    strides = node.attributes.get("strides") or [1] * len(spatial)
    dilations = node.attributes.get("dilations") or [1] * len(spatial)
    before, after = [], []
    for size, width, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        # There are ceil(size / stride) windows; the last one begins at (size - 1) // stride * stride.
        beyond = node.symbols.simplify((size - 1) % stride)
        if not isinstance(beyond, int):
            raise ValueError(f"auto_pad {mode} along size {size}: the amount differs from size to size")
        total = max((width - 1) * dilation - beyond, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    del node.attributes["auto_pad"]
    node.attributes["pads"] = tuple(before + after)
    return None


def _text(node: Node, key: str, default: str) -> str:
    value = node.attributes.get(key, default)
    return value.decode() if isinstance(value, bytes) else str(value)


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "AveragePool": with_pads,
    "Conv": with_pads,
    "MaxPool": with_pads,
    "Resize": resize,
    "RoiAlign": roi_align,
    "Upsample": resize,
}
