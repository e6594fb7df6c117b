"""Padding of convolutions and pools: attributes auto_pad and output_shape as amounts that TVM 0.27 accepts.

Converters have the interface of kiln.frontend.onnx.ops; they change attributes and leave the node to TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from kiln.config.sizes import ceil_div
from kiln.extents import Extent
from kiln.frontend.onnx.node import Node, part
from kiln.frontend.onnx.pad import pad_by_copies
from kiln.frontend.onnx.refusals import other_sizes
from kiln.frontend.symbols import Symbols

_SAME = ("SAME_UPPER", "SAME_LOWER")

# Of a spatial axis: its size, and the width, stride and dilation of the windows along it.
Window = tuple[Extent, int, int, int]


def windows_rounded_up(size: int, reach: int, stride: int, before: int, after: int) -> int:
    """The number of windows along an axis with ceil_mode: the last may end after the axis, but begins on it.

    size, before, after: elements of the axis, and of the padding on its sides. reach: elements from the
    first to the last of a window.
    """
    count = ceil_div(before + size + after - reach, stride) + 1
    return count - 1 if (count - 1) * stride >= before + size else count


def same_pads(mode: str, window: Window, symbols: Symbols, crops: bool = False) -> tuple[int, int] | None:
    """The elements before and after an axis that auto_pad `mode`, SAME_UPPER or SAME_LOWER, adds.

    After a symbolic axis it is the greatest amount: no window reaches what smaller sizes do not need. None if
    the amount before a symbolic axis differs between sizes, or is below 0: see `amount_before`.
    """
    size, width, stride, dilation = window
    # There are ceil(size / stride) windows; the last one begins at (size - 1) // stride * stride.
    beyond = symbols.simplify((size - 1) % stride)
    possible = [beyond] if isinstance(beyond, int) else range(stride)
    least = -stride if crops else 0
    totals = [max((width - 1) * dilation - amount, least) for amount in possible]
    before = {int(total / 2) if mode == "SAME_UPPER" else int((total + 1) / 2) for total in totals}
    if len(before) > 1 or min(before) < 0:
        return None
    return min(before), max(0, max(totals) - min(before))


def _windows(node: Node) -> list[Window]:
    """The windows along each spatial axis."""
    spatial, attributes = node.shape(0)[2:], node.attributes
    kernel = attributes.get("kernel_shape") or node.shape(1)[2:]
    strides, dilations = (attributes.get(key) or [1] * len(spatial) for key in ("strides", "dilations"))
    return list(zip(spatial, kernel, strides, dilations, strict=True))


def with_pads(node: Node, mode_of_frame: str) -> Any:
    """Replace auto_pad of a convolution or a pooling by explicit pads, and leave the node to TVM.

    TVM 0.27 computes the amounts for constant sizes only. mode_of_frame: as `framed`, which replaces the
    input where the amount before an axis differs between sizes.
    """
    mode = node.text("auto_pad", "NOTSET")
    if mode not in _SAME:
        return None
    pads, varying = pads_and_varying_axes(mode, _windows(node), node.symbols, _crops(node))
    if varying:
        node.replaced[0] = framed(node, node.tensor(0), varying, mode_of_frame)
    del node.attributes["auto_pad"]
    node.attributes.pop("ceil_mode", None)  # there are ceil(size / stride) windows in any case
    node.attributes["pads"] = tuple(pads)
    return None


def _crops(node: Node) -> bool:
    """Whether auto_pad may leave out elements, where windows are further apart than they are long.

    The formula of ONNX's pools gives negative amounts then, which ONNX Runtime and ONNX's own implementation
    of MaxPool use. Both let convolutions begin at the first element.
    """
    return not node.op.startswith("Conv")


def varying_axes(node: Node) -> list[int]:
    """The spatial axes before which auto_pad adds amounts that differ between sizes, or are below 0."""
    mode = node.text("auto_pad", "NOTSET")
    if mode not in _SAME:
        return []
    return pads_and_varying_axes(mode, _windows(node), node.symbols, _crops(node))[1]


def pads_and_varying_axes(
    mode: str, windows: Sequence[Window], symbols: Symbols, crops: bool = False
) -> tuple[list[int], list[int]]:
    """The amounts that auto_pad `mode` adds before each axis, then after each, and the axes without any.

    Those, numbers of `windows`, are where `same_pads` has none. crops: amounts may be below 0.
    """
    amounts = [same_pads(mode, window, symbols, crops) for window in windows]
    varying = [number for number, amount in enumerate(amounts) if amount is None]
    sides = zip(*((0, 0) if amount is None else amount for amount in amounts), strict=True)
    return [amount for side in sides for amount in side], varying


def amount_before(mode: str, window: Window, crops: bool = False) -> Extent:
    """The elements before an axis that auto_pad `mode` adds, as an expression of the axis's size.

    crops: it may be below 0, as many elements at the beginning are then in no window.
    """
    size, width, stride, dilation = window
    total = tirx.IntImm("int64", (width - 1) * dilation) - tirx.floormod(size - 1, stride)
    total = total if crops else tirx.max(total, 0)
    return tirx.truncdiv(total if mode == "SAME_UPPER" else total + 1, 2)


def amounts_of_the_run(node: Node) -> dict[int, Extent]:
    """By spatial axis of `varying_axes`: the elements that auto_pad adds before it."""
    mode, windows = node.text("auto_pad", "NOTSET"), _windows(node)
    return {axis: amount_before(mode, windows[axis], _crops(node)) for axis in varying_axes(node)}


@dataclass(frozen=True)
class VaryingFrame:
    """The amounts of the run that auto_pad adds around some spatial axes of a tensor.

    The greatest amounts are added, and what a size does not need is cut. `widths`: the greatest amounts
    before and after each axis of the tensor. `cuts`: by axis of the tensor, the first element and the one
    after the last that are kept.
    """

    widths: list[int]
    cuts: list[tuple[int, Extent, Extent]]

    @classmethod
    def of(
        cls, mode: str, windows: Sequence[Window], axes: Sequence[int], crops: bool = False
    ) -> VaryingFrame:
        """The frame of `axes`, numbers of `windows`; crops: as of `amount_before`."""
        widths, cuts = [0] * (2 * len(windows) + 4), []
        for axis in axes:
            size, width, stride, dilation = windows[axis]
            reach = (width - 1) * dilation + 1
            before = reach // 2
            begin = before - amount_before(mode, windows[axis], crops)
            length = (tirx.floordiv(size + stride - 1, stride) - 1) * stride + reach
            widths[2 * axis + 4 : 2 * axis + 6] = before, reach
            cuts.append((axis + 2, begin, begin + length))
        return cls(widths, cuts)

    def cut(self, tensor: Any, emit: Callable[[Any], Any]) -> Any:
        """`tensor`, padded by `widths`, without the padding that its size in this run does not need."""
        for cut in self.cuts:
            tensor = emit(part(tensor, *cut))
        return tensor


def framed(node: Node, tensor: Any, axes: Sequence[int], mode: str) -> Any:
    """`tensor` between the elements that auto_pad adds around the spatial `axes`, in amounts of the run.

    mode: of ONNX's Pad; `constant` adds zeros, and `edge` repeats the elements at the edge; or `lowest`,
    which adds the least finite number of the type.
    """
    frame = VaryingFrame.of(node.text("auto_pad", "NOTSET"), _windows(node), axes, _crops(node))
    if mode == "edge":
        pairs = list(zip(frame.widths[::2], frame.widths[1::2], strict=True))
        result = pad_by_copies(node, tensor, pairs, mode)
    else:
        value = 0.0 if mode == "constant" else _lowest(str(tensor.ty.dtype))
        result = node.builder.emit(relax.op.nn.pad(tensor, frame.widths, pad_value=value))
    return frame.cut(result, node.builder.emit)


def _lowest(dtype: str) -> float:
    return float(tirx.min_value(dtype).value)


def conv(node: Node) -> Any:
    """Conv: auto_pad is resolved here; TVM converts the node."""
    return with_pads(node, "constant")


def with_output_pads(node: Node) -> Any:
    """Replace `output_shape` of a transposed convolution, which TVM ignores, by pads, and leave it to TVM.

    A total below 0 adds zeros after the result. A kernel's size may be dynamic. Raises ValueError for pads
    that depend on dynamic sizes.
    """
    output_shape = node.attributes.get("output_shape")
    node.attributes.setdefault("kernel_shape", tuple(node.shape(1)[2:]))
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
                f"output_shape {output_shape[axis]} of size {size} and kernels of size {kernel[axis]}: "
                f"the pads differ from size to size; {other_sizes({})}"
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
    lengths = node.attributes["kernel_shape"]
    if mode in _SAME and not all(isinstance(length, int) for length in lengths):
        sizes = ", ".join(str(length) for length in lengths)
        raise ValueError(f"auto_pad {mode} with kernels of size [{sizes}]: {other_sizes({})}")
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
