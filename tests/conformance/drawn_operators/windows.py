"""Operators on images, signals and volumes: convolutions, pools, resizing, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Maker, Node


def window(d: Draw, rank: int, dilated: bool = True) -> dict[str, Any]:
    """Attributes of a window over `rank` axes: kernel, strides, dilations, and one form of padding."""
    attributes: dict[str, Any] = {"kernel_shape": [d.number(1, 3) for _ in range(rank)]}
    attributes |= d.some(strides=[d.number(1, 3) for _ in range(rank)])
    if dilated:
        attributes |= d.some(dilations=[d.pick((1, 1, 2, 3)) for _ in range(rank)])
    form = d.pick(("pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none"))
    if form == "pads":
        attributes["pads"] = [d.number(0, 2) for _ in range(2 * rank)]
    elif form != "none":
        attributes["auto_pad"] = form
        if form.startswith("SAME"):
            attributes.pop("dilations", None)
    return attributes


def check_reach(attributes: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Raise ValueError where a window is larger than an axis with its padding: ONNX has no result for it."""
    rank = len(sizes)
    pads = attributes.get("pads", [0] * 2 * rank)
    dilations = attributes.get("dilations", [1] * rank)
    for axis, (size, width) in enumerate(zip(sizes, attributes["kernel_shape"], strict=True)):
        pads_same = attributes.get("auto_pad", "").startswith("SAME")
        if not pads_same and size + pads[axis] + pads[axis + rank] < (width - 1) * dilations[axis] + 1:
            raise ValueError("a window without a place")


def picture(d: Draw, channels: int, least: int = 5, most: int = 9, most_rank: int = 3) -> tuple[int, ...]:
    rank = d.pick([1, 2, 2, 3][: most_rank + 1])
    return (d.size(1, 3), channels, *(d.size(least, most) for _ in range(rank)))


def conv(d: Draw) -> Node:
    groups = d.pick((1, 1, 2, 3))
    shape = picture(d, groups * d.number(1, 4))
    attributes = window(d, len(shape) - 2)
    kernel = attributes["kernel_shape"]
    if d.chance(0.3):
        attributes.pop("kernel_shape")
    outputs = groups * d.number(1, 4)
    dtype = d.pick(("float32", "float32", "float32", "float64"))
    weight = d.either(d.values((outputs, shape[1] // groups, *kernel), dtype), data=0.3)
    bias = d.either(d.values((outputs,), dtype), data=0.3) if d.chance() else None
    x = d.data(d.values(shape, dtype))
    return d.node(x, weight, bias, group=groups if groups > 1 else None, **attributes)


def conv_transpose(d: Draw) -> Node:
    groups = d.pick((1, 1, 2, 3))
    shape = picture(d, groups * d.number(1, 4), 2, 6)
    rank = len(shape) - 2
    attributes = window(d, rank)
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides", [1] * rank)
    if d.chance(0.3):
        attributes["output_padding"] = [d.number(0, max(0, stride - 1)) for stride in strides]
    if d.chance(0.2):
        attributes.pop("pads", None)
        attributes["output_shape"] = [size * s for size, s in zip(shape[2:], strides, strict=True)]
    outputs = d.number(1, 4)
    weight = d.either(d.values((shape[1], outputs, *kernel)), data=0.3)
    bias = d.either(d.values((outputs * groups,)), data=0.3) if d.chance() else None
    return d.node(d.data(d.values(shape)), weight, bias, group=groups if groups > 1 else None, **attributes)


def pool(d: Draw) -> Node:
    shape = picture(d, d.number(1, 4))
    name, opset = d.operator, d.opset
    attributes = window(
        d, len(shape) - 2, opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}.get(name, 99)
    )
    check_reach(attributes, shape[2:])
    if opset >= {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[name]:
        attributes |= d.some(ceil_mode=d.number(0, 1))
    if name == "AveragePool":
        attributes |= d.some(count_include_pad=d.number(0, 1))
    if name == "LpPool":
        attributes |= d.some(p=d.number(1, 3))
    if name == "MaxPool" and opset >= 8 and d.chance(0.4):
        attributes |= d.some(storage_order=d.number(0, 1))
        return d.node(d.data(d.values(shape)), outputs=2, **attributes)
    dtype = (
        d.pick(("float32", "float64", "uint8", "int8")) if name == "MaxPool" and opset >= 12 else "float32"
    )
    return d.node(d.data(d.values(shape, dtype)), **attributes)


def global_pool(d: Draw) -> Node:
    x = d.data(d.values(picture(d, d.number(1, 4), 1)))
    return d.node(x, **(d.some(p=d.number(1, 3)) if d.operator == "GlobalLpPool" else {}))


def max_unpool(d: Draw) -> Node:
    batch, channels, h, w = d.size(1, 2), d.number(1, 2), d.size(1, 3), d.size(1, 3)
    shape = (batch, channels, h, w)
    places = np.arange(h)[:, None] * 2 * (2 * w) + np.arange(w)[None] * 2
    indices = (
        np.broadcast_to(places, shape)
        + np.arange(batch * channels).reshape(batch, channels, 1, 1) * 4 * h * w
    )
    return d.node(
        d.data(d.values(shape)), d.data(indices.astype("int64")), kernel_shape=[2, 2], strides=[2, 2]
    )


def _roi(d: Draw, rank: int) -> list[float]:
    return [d.real(0, 0.3) for _ in range(rank)] + [d.real(0.6, 1) for _ in range(rank)]


def resize(d: Draw) -> Node:
    rank = d.pick((1, 2, 3, 4, 4, 4, 5))
    lead = max(0, rank - d.pick((1, 2, 2, 3)))
    shape = (*(d.size(1, 3) for _ in range(lead)), *(d.size(2, 6) for _ in range(rank - lead)))
    modes = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "tf_crop_and_resize"]
    if d.opset >= 19:
        modes.append("half_pixel_symmetric")
    attributes: dict[str, Any] = d.some(
        mode=d.pick(("nearest", "linear", "cubic")),
        coordinate_transformation_mode=d.pick(modes),
        nearest_mode=d.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        cubic_coeff_a=d.pick((-0.5, -0.75)),
        exclude_outside=d.number(0, 1),
        extrapolation_value=d.real(-2, 2),
    )
    if attributes.get("mode", "nearest") == "nearest":
        attributes.pop("exclude_outside", None)
    if d.opset >= 18:
        attributes |= d.some(antialias=d.pick((0, 0, 1)))
        if attributes.get("mode", "nearest") == "nearest" or "tf_crop" in str(attributes):
            attributes.pop("antialias", None)
    axes = list(range(lead, rank))
    scales = [1.0] * lead + [d.pick((0.5, 2.0, 3.0, 1.5, 0.7, 1.0)) for _ in axes]
    sizes = [d.number(1, 9) for _ in axes]
    roi = _roi(d, rank)
    use_axes = d.opset >= 18 and d.chance()
    if use_axes:
        attributes["axes"] = [axis - (rank if d.chance(0.3) else 0) for axis in axes]
        scales, roi = scales[lead:], _roi(d, len(axes))
        if d.chance() and not lead:
            attributes |= {"keep_aspect_ratio_policy": d.pick(("not_larger", "not_smaller", "stretch"))}
    if d.opset < 11:
        mode = {"mode": d.pick(("nearest", "linear"))}
        return d.node(d.data(d.values(shape)), d.constant(scales, "float32"), **mode)
    x = d.data(d.values(shape, d.pick(("float32", "float32", "uint8", "int8"))))
    region = d.constant(roi, "float32") if "tf_crop" in str(attributes) else None
    if region is None and d.opset < 13:  # may not be left out
        region = d.constant([], "float32")
    # ONNX Runtime aligns corners differently from ONNX if a scale does not give a whole size.
    corners = attributes.get("coordinate_transformation_mode") == "align_corners"
    regional = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if regional and (tuple(sizes) == shape[lead:] or all(scale == 1 for scale in scales)):
        raise ValueError("a region of the same size: ONNX Runtime copies the data")
    if "keep_aspect_ratio_policy" in attributes or corners or d.chance(0.5):
        wanted = sizes if use_axes else [*shape[:lead], *sizes]
        return d.node(
            x,
            region,
            d.constant([], "float32") if d.opset < 13 else None,
            d.size_input(wanted, "int64"),
            **attributes,
        )
    return d.node(x, region, d.size_input(scales, "float32"), **attributes)


def upsample(d: Draw) -> Node:
    d.opset = d.pick((7, 8, 9))
    shape = (d.size(1, 3), d.size(1, 3), d.size(1, 5), d.size(1, 5))
    scales = [1.0, 1.0, float(d.number(1, 3)), float(d.number(1, 3))]
    mode = d.some(mode=d.pick(("nearest", "linear")))
    if d.opset < 9:
        return d.node(d.data(d.values(shape)), scales=scales, **mode)
    return d.node(d.data(d.values(shape)), d.constant(scales, "float32"), **mode)


def grid_sample(d: Draw) -> Node:
    rank = 3 if d.opset >= 20 and d.chance(0.4) else 2
    batch = d.size(1, 3)
    shape = (batch, d.size(1, 3), *(d.size(2, 5) for _ in range(rank)))
    grid = d.values((batch, *(d.size(1, 4) for _ in range(rank)), rank), "float32", 0.8)
    modes = (
        ("linear", "nearest") + (("cubic",) if rank == 2 else ())
        if d.opset >= 20
        else ("bilinear", "nearest", "bicubic")
    )
    attributes = d.some(
        mode=d.pick(modes),
        padding_mode=d.pick(("zeros", "border", "reflection")),
        align_corners=d.number(0, 1),
    )
    return d.node(d.data(d.values(shape)), d.either(grid, data=0.8), **attributes)


def roi_align(d: Draw) -> Node:
    shape, count = (d.size(1, 3), d.size(1, 3), d.size(4, 9), d.size(4, 9)), d.size(1, 4)
    corner = np.abs(d.values((count, 2), "float32", 1.5))
    boxes = np.concatenate([corner, corner + np.abs(d.values((count, 2), "float32", 2.0)) + 0.5], 1)
    attributes = d.some(
        output_height=d.number(1, 4),
        output_width=d.number(1, 4),
        sampling_ratio=d.number(0, 3),
        spatial_scale=d.real(0.3, 1.2),
        mode="avg",  # ONNX Runtime's maximum differs from ONNX's
    )
    if d.opset >= 16:
        attributes |= d.some(coordinate_transformation_mode=d.pick(("half_pixel", "output_half_pixel")))
    indices = d.indices((count,), 0, shape[0] - 1)
    return d.node(d.data(d.values(shape)), d.data(boxes), d.either(indices), **attributes)


def affine_grid(d: Draw) -> Node:
    rank, batch = d.number(2, 3), d.size(1, 3)
    corners = d.number(0, 1)
    # For an axis of one element, ONNX uses the first corner, and ONNX Runtime the last.
    size = [batch, 2, *(d.number(1 + corners, 5) for _ in range(rank))]
    theta = d.data(d.values((batch, rank, rank + 1)))
    return d.node(theta, d.either(size, "int64", 0.4), align_corners=corners)


def col2im(d: Draw) -> Node:
    rank = 2  # ONNX Runtime differs from ONNX where images have no two axes, or where pads differ by side
    image, block = [d.number(4, 7) for _ in range(rank)], [d.number(1, 3) for _ in range(rank)]
    pads = [d.number(0, 1) for _ in range(rank)] * 2
    strides, dilations = [d.number(1, 2) for _ in range(rank)], [d.number(1, 2) for _ in range(rank)]
    counts = [
        (image[at] + pads[at] + pads[at + rank] - dilations[at] * (block[at] - 1) - 1) // strides[at] + 1
        for at in range(rank)
    ]
    shape = (d.size(1, 3), d.number(1, 3) * int(np.prod(block)), int(np.prod(counts)))
    return d.node(
        d.data(d.values(shape)),
        d.size_input(image),
        d.size_input(block),
        pads=pads,
        strides=strides,
        dilations=dilations,
    )


def deform_conv(d: Draw) -> Node:
    groups, offsets = d.pick((1, 2)), d.pick((1, 2))
    channels, outputs = 2 * d.number(1, 2), groups * d.number(1, 3)
    batch, h, w = d.size(1, 2), d.size(5, 7), d.size(5, 7)
    kernel = [d.number(1, 3), d.number(1, 3)]
    strides, dilations = [d.number(1, 2), d.number(1, 2)], [d.number(1, 2), d.number(1, 2)]
    pads = [d.number(0, 2) for _ in range(4)]
    out = [
        (size + pads[at] + pads[at + 2] - dilations[at] * (kernel[at] - 1) - 1) // strides[at] + 1
        for at, size in enumerate((h, w))
    ]
    area = kernel[0] * kernel[1]
    return d.node(
        d.data(d.values((batch, channels, h, w))),
        d.either(d.values((outputs, channels // groups, *kernel)), data=0.3),
        d.data(d.values((batch, 2 * offsets * area, *out), "float32", 1.0)),
        d.either(d.values((outputs,))) if d.chance() else None,
        d.data(d.values((batch, offsets * area, *out))) if d.chance() else None,
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=groups,
        offset_group=offsets,
        kernel_shape=kernel,
    )


MAKERS: dict[str, Maker] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool,
    "AveragePool": pool,
    "LpPool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "GlobalLpPool": global_pool,
    "MaxUnpool": max_unpool,
    "Resize": resize,
    "Upsample": upsample,
    "GridSample": grid_sample,
    "RoiAlign": roi_align,
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "DeformConv": deform_conv,
}
