"""Padding of convolutions and pools: attributes auto_pad and output_shape as amounts that TVM 0.27 accepts.

Converters have the interface of kiln.frontend.onnx.ops; they change attributes and leave the node to TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from kiln.config.sizes import ceil_div
from kiln.frontend.onnx.node import Node, part
from kiln.frontend.onnx.pad import pad_by_copies
from kiln.frontend.symbols import Extent, Symbols

_SAME = ("SAME_UPPER", "SAME_LOWER")


def windows_rounded_up(size: int, reach: int, stride: int, before: int, after: int) -> int:
    """The number of windows along an axis with ceil_mode: the last may end after the axis, but begins on it.

    size, before, after: elements of the axis, and of the padding on its sides. reach: elements from the
    first to the last of a window.
    """
    count = ceil_div(before + size + after - reach, stride) + 1
    return count - 1 if (count - 1) * stride >= before + size else count


def same_pads(
    mode: str, size: Extent, width: int, stride: int, dilation: int, symbols: Symbols
) -> tuple[int, int]:
    """The elements before and after an axis of `size` that auto_pad `mode`, SAME_UPPER or SAME_LOWER, adds.

    After a symbolic axis it is the greatest amount: no window reaches what smaller sizes do not need. Raises
    ValueError if the amount before a symbolic axis differs between sizes.
    """
    # There are ceil(size / stride) windows; the last one begins at (size - 1) // stride * stride.
    beyond = symbols.simplify((size - 1) % stride)
    possible = [beyond] if isinstance(beyond, int) else range(stride)
    totals = [max((width - 1) * dilation - amount, 0) for amount in possible]
    before = {total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals}
    if len(before) > 1:
        raise ValueError(
            f"auto_pad {mode} along size {size}: the amount differs from size to size; give the dimension a "
            f"'multiple' of {stride} in 'dims', or write pads into the file"
        )
    return min(before), max(totals) - min(before)


def _windows(node: Node) -> list[tuple[Extent, int, int, int]]:
    """By spatial axis: its size, and the width, stride and dilation of the windows."""
    spatial, attributes = node.shape(0)[2:], node.attributes
    kernel = attributes.get("kernel_shape") or node.shape(1)[2:]
    strides, dilations = (attributes.get(key) or [1] * len(spatial) for key in ("strides", "dilations"))
    return list(zip(spatial, kernel, strides, dilations, strict=True))


def with_pads(node: Node, mode_of_frame: str | None = None) -> Any:
    """Replace auto_pad of a convolution or a pooling by explicit pads, and leave the node to TVM.

    TVM 0.27 computes the amounts for constant sizes only. mode_of_frame: as `framed`, which replaces the
    input where the amount before an axis differs between sizes; None: it must not. Raises ValueError as
    `same_pads`.
    """
    mode = node.text("auto_pad", "NOTSET")
    if mode not in _SAME:
        return None
    varying = [] if mode_of_frame is None else varying_axes(node)
    pads = [
        (0, 0) if number in varying else same_pads(mode, *axis, node.symbols)
        for number, axis in enumerate(_windows(node))
    ]
    if varying and mode_of_frame is not None:
        node.replaced[0] = framed(node, node.tensor(0), varying, mode_of_frame)
    del node.attributes["auto_pad"]
    node.attributes["pads"] = tuple(amount for side in zip(*pads, strict=True) for amount in side)
    return None


def varying_axes(node: Node) -> list[int]:
    """The spatial axes before which the amount of padding of auto_pad differs between sizes."""
    mode = node.text("auto_pad", "NOTSET")
    found = []
    for number, axis in enumerate(_windows(node) if mode in _SAME else []):
        try:
            same_pads(mode, *axis, node.symbols)
        except ValueError:
            found.append(number)
    return found


def framed(node: Node, tensor: Any, axes: Sequence[int], mode: str) -> Any:
    """`tensor` between the elements that auto_pad adds around the spatial `axes`, in amounts of the run.

    The greatest amounts are added, and what a size does not need is cut. mode: of ONNX's Pad; `constant` adds
    zeros, and `edge` repeats the elements at the edge.
    """
    windows, widths = _windows(node), [0] * (2 * len(tensor.ty.shape))
    upper = node.text("auto_pad", "NOTSET") == "SAME_UPPER"
    cuts = []
    for axis in axes:
        size, width, stride, dilation = windows[axis]
        reach = (width - 1) * dilation + 1
        before = reach // 2
        total = tirx.max(tirx.IntImm("int64", reach - 1) - tirx.floormod(size - 1, stride), 0)
        half = tirx.floordiv(total, 2)
        begin = before - (half if upper else total - half)
        length = (tirx.floordiv(size + stride - 1, stride) - 1) * stride + reach
        widths[2 * axis + 4 : 2 * axis + 6] = before, reach
        cuts.append((axis + 2, begin, begin + length))
    if mode == "constant":
        result = node.builder.emit(relax.op.nn.pad(tensor, widths))
    else:
        pairs = list(zip(widths[::2], widths[1::2], strict=True))
        result = pad_by_copies(node, tensor, pairs, mode)
    for cut in cuts:
        result = node.builder.emit(part(result, *cut))
    return result


def conv(node: Node) -> Any:
    """Conv: auto_pad is resolved here; TVM converts the node."""
    return with_pads(node, "constant")


def with_output_pads(node: Node) -> Any:
    """Replace `output_shape` of a transposed convolution, which TVM ignores, by pads, and leave it to TVM.

    A total below 0 adds zeros after the result.
    """
    output_shape = node.attributes.get("output_shape")
    if not output_shape:
        return _with_less_output_padding(node)
    spatial = node.shape(0)[2:]
    if len(output_shape) == len(spatial) + 2:
        output_shape = output_shape[2:]
    units, attributes = [1] * len(spatial), node.attributes
    kernel = attributes.get("kernel_shape") or node.shape(1)[2:]
    strides, dilations = (attributes.get(key) or units for key in ("strides", "dilations"))
    extra = list(attributes.get("output_padding") or [0] * len(spatial))
    upper = node.text("auto_pad", "NOTSET") == "SAME_UPPER"
    before, after = [], []
    for axis, size in enumerate(spatial):
        full_size = strides[axis] * (size - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = node.symbols.simplify(full_size - output_shape[axis])
        if not isinstance(total, int):
            raise ValueError(
                f"output_shape {output_shape[axis]} of size {size}: the pads differ from size to size"
            )
        extra[axis] += max(-total, 0)
        small, large = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        before.append(small if upper else large)
        after.append(large if upper else small)
    attributes.pop("auto_pad", None)
    attributes["pads"], attributes["output_padding"] = tuple(before + after), tuple(extra)
    return None


def _with_less_output_padding(node: Node) -> Any:
    """Let elements after a transposed convolution replace its pads there, and leave the node to TVM.

    TVM 0.27 allows output_padding below the stride. Raises ValueError where more than that is left.
    """
    attributes, rank = node.attributes, len(node.shape(0)) - 2
    extra = [int(amount) for amount in attributes.get("output_padding") or [0] * rank]
    strides = [int(stride) for stride in attributes.get("strides") or [1] * rank]
    is_small = all(amount < stride for amount, stride in zip(extra, strides, strict=True))
    mode = node.text("auto_pad", "NOTSET")
    if is_small or mode not in ("NOTSET", "VALID"):
        return None
    attributes.pop("auto_pad", None)
    given = attributes.get("pads") if mode == "NOTSET" else None
    pads = [int(amount) for amount in given or [0] * 2 * rank]
    for axis, stride in enumerate(strides):
        taken = min(extra[axis], pads[rank + axis])
        pads[rank + axis], extra[axis] = pads[rank + axis] - taken, extra[axis] - taken
        if extra[axis] >= stride:
            raise ValueError(
                f"output_padding {extra[axis] + taken} of an axis with stride {stride} and {taken} of pads "
                f"after it, allowed: at most {stride - 1 + taken}; Pad the result instead"
            )
    attributes["pads"], attributes["output_padding"] = tuple(pads), tuple(extra)
    return None


CONVERTERS: dict[str, Callable[[Node], Any]] = {"Conv": conv, "ConvTranspose": with_output_pads}
