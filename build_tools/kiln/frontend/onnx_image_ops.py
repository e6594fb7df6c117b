"""ONNX operators on images whose result depends on their input's size in more than its shape.

Converters are as in kiln.frontend.onnx_ops; sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import relax, tirx

from kiln.frontend.onnx_node import Node
from kiln.frontend.onnx_value import Ratio
from kiln.frontend.symbols import Extent

_RELAX_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
# Scales are float32: 2/3 comes as 0.6666667. No exporter means a fraction with a greater divisor.
_GREATEST_DIVISOR = 1024


def resize(node: Node) -> Any:
    """Resize of pictures (N, C, H, W) by scales or to sizes → relax.image.resize2d.

    TVM 0.27 takes constants only, forgets scales of the first two axes, and samples as if input and output
    sizes were in the ratio of the scales even where rounding the size has changed it.
    """
    coordinates = _text(node, "coordinate_transformation_mode", "half_pixel")
    shape = node.shape(0)
    if len(shape) != 4 or coordinates == "tf_crop_and_resize":
        return None
    if any(node.attributes.get(key) for key in ("antialias", "axes", "keep_aspect_ratio_policy")):
        if node.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch" or node.attributes.get(
            "antialias"
        ):
            raise ValueError("antialias and keep_aspect_ratio_policy have no counterpart in TVM")
        return None
    sizes = node.whole(3) if node.has(3) else _scaled(node, shape)
    if sizes is None:
        return None
    if not all(node.symbols.equal(a, b) for a, b in zip(sizes[:2], shape[:2], strict=True)):
        raise ValueError(f"sizes {sizes} of {shape}: only height and width can be resized")
    mode = _text(node, "mode", "nearest")
    return relax.op.image.resize2d(
        node.tensor(0),
        size=relax.ShapeExpr(sizes[2:]),
        roi=[0.0] * 4,
        layout="NCHW",
        method=_RELAX_METHODS[mode],
        coordinate_transformation_mode=coordinates,
        rounding_method=_text(node, "nearest_mode", "round_prefer_floor"),
        cubic_alpha=node.attributes.get("cubic_coeff_a", -0.75),
        cubic_exclude=node.attributes.get("exclude_outside", 0),
        extrapolation_value=node.attributes.get("extrapolation_value", 0.0),
    )


def _scaled(node: Node, shape: Sequence[Extent]) -> list[Extent] | None:
    """The sizes that scales give. Raises ValueError where a size must be rounded."""
    index = 2 if len(node.inputs) > 2 else 1
    name = node.inputs[index] if node.has(index) else ""
    if name not in node.values:
        return None
    sizes = []
    for scale, size in zip(node.values[name].extents(), shape, strict=True):
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


def with_pads(node: Node) -> Any:
    """Replace auto_pad of a convolution or a pooling by the amounts, and leave the node to TVM.

    TVM 0.27 computes the amounts for numbers only; along a symbolic axis they must be the same for all sizes.
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
        # ceil(size / stride) results, the last of which begins at the size rounded down to the stride.
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
    "Upsample": resize,
}
