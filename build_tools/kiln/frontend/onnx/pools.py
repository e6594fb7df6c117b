"""LpPool, LRN, and pools that round the number of windows up along dynamic sizes.

Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx.node import Node, prims, shape_expr
from kiln.frontend.onnx.window_pads import framed, varying_axes, windows_rounded_up, with_pads

op = relax.op
_MEANS = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


@dataclass(frozen=True)
class _PoolAxis:
    """A window along one axis of `size` elements: its reach with dilation, and the zeros around the axis."""

    size: Extent
    reach: int
    stride: int
    before: int
    after: int
    is_dense: bool  # without dilation


# Elements around an axis in amounts of the run. Those at the edge do not change a maximum.
_FRAMES = {"AveragePool": "constant", "LpPool": "constant", "MaxPool": "edge"}


def frame_of(node: Node) -> str:
    """The elements that auto_pad adds around an axis in amounts of the run: the mode of `framed`.

    Windows with gaps may have none of the elements that the one at the edge repeats.
    """
    dilated = any(int(number) > 1 for number in node.attributes.get("dilations") or [])
    return "lowest" if node.op == "MaxPool" and dilated else _FRAMES[node.op]


def wrong_axes(count: int) -> ValueError:
    """The error of a pool whose input has `count` axes."""
    way = "pool three of them, and the others after a Reshape"
    return ValueError(f"its input has {count} axes, allowed: 3 to 5, of which 1 to 3 are pooled; {way}")


def _axes(node: Node) -> list[_PoolAxis]:
    """The windows of a pool, whose auto_pad is resolved. Raises ValueError for too many axes."""
    with_pads(node, frame_of(node))
    attributes, spatial = node.attributes, node.shape(0)[2:]
    rank = len(spatial)
    if rank not in _MEANS:
        raise wrong_axes(rank + 2)
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(key) or [1] * rank for key in ("strides", "dilations"))
    valid = node.text("auto_pad", "NOTSET") == "VALID"
    pads = [0] * 2 * rank if valid else list(attributes.get("pads") or [0] * 2 * rank)
    return [
        _PoolAxis(
            spatial[axis],
            (int(kernel[axis]) - 1) * int(dilations[axis]) + 1,
            int(strides[axis]),
            int(pads[axis]),
            int(pads[rank + axis]),
            int(kernel[axis]) == 1 or int(dilations[axis]) == 1,
        )
        for axis in range(rank)
    ]


def _missing_elements(axis: _PoolAxis) -> int:
    """The number of elements to add after an axis for a last window that begins on it but ends beyond it.

    With them the number of windows, rounded down, is the one that ONNX rounds up: windows that would begin
    after all elements are left out. Negative where elements at the end are in no window.
    """
    if not isinstance(axis.size, int):
        return min(axis.after + axis.stride - 1, axis.reach - 1) - axis.after
    padded = axis.before + axis.size + axis.after
    count = windows_rounded_up(axis.size, axis.reach, axis.stride, axis.before, axis.after)
    return max((count - 1) * axis.stride + axis.reach - padded, 0)


def round_up(node: Node) -> None:
    """Replace ceil_mode along dynamic sizes by padding after the axis, which no pool counts.

    TVM 0.27 makes the number of windows an expression of conditions.
    """
    attributes = node.attributes
    if not attributes.get("ceil_mode", 0) or all(isinstance(size, int) for size in node.shape(0)[2:]):
        return
    axes = _axes(node)
    before, after = [axis.before for axis in axes], [axis.after + _missing_elements(axis) for axis in axes]
    attributes["pads"] = tuple(before + after)
    attributes["ceil_mode"] = 0
    attributes.pop("auto_pad", None)


def clip(node: Node) -> bool:
    """Cut windows to the tensor along the axes where the only window has all elements.

    Exporters write such windows for a mean of an image of any size: 1,280 by 1,280 elements, most of them
    outside. The sums of the elements stay the same, the loops become short. Along a dynamic size the window
    stays. Returns whether every window has all elements along all axes. Elements outside must not count.
    """
    axes, attributes = _axes(node), node.attributes
    whole_axes = [_is_one_window(node, axis, bool(attributes.get("ceil_mode", 0))) for axis in axes]
    kernel = list(attributes["kernel_shape"])
    strides, before, after = ([getattr(axis, key) for axis in axes] for key in ("stride", "before", "after"))
    for number, axis in enumerate(axes):
        if whole_axes[number] and isinstance(axis.size, int):
            kernel[number], strides[number], before[number], after[number] = axis.size, 1, 0, 0
    attributes.update(kernel_shape=kernel, strides=strides, pads=(*before, *after))
    attributes.pop("auto_pad", None)
    return all(whole_axes)


def _is_one_window(node: Node, axis: _PoolAxis, ceil: bool) -> bool:
    """Whether the axis has one window, without dilation, which has all elements in every run."""
    most = axis.size if isinstance(axis.size, int) else node.symbols.greatest([axis.size])
    if most is None or not axis.is_dense or axis.reach - axis.before < most:
        return False
    room = axis.before + most + axis.after - axis.reach
    return -axis.stride < room <= 0 if ceil else 0 <= room < axis.stride and isinstance(axis.size, int)


def average_pool(node: Node) -> Any:
    """AveragePool: pads, windows and dynamic sizes are resolved here; TVM converts the node."""
    attributes, varying = node.attributes, varying_axes(node)
    if varying and not attributes.get("count_include_pad", 0):
        return _of_elements(node, varying)
    if attributes.get("count_include_pad", 0) and not any(axis.before or axis.after for axis in _axes(node)):
        attributes["count_include_pad"] = 0  # PyTorch writes it, and what ceil_mode adds never counts
    if not attributes.get("count_include_pad", 0) and clip(node) and _has_dynamic_sizes(node):
        return op.mean(node.tensor(0), list(range(2, len(node.shape(0)))), keepdims=True)
    if attributes.get("count_include_pad", 0) and attributes.get("ceil_mode", 0) and _has_dynamic_sizes(node):
        return _of_padding(node)
    round_up(node)
    return None


def _of_elements(node: Node, varying: list[int]) -> Any:
    """The means of windows, where zeros that auto_pad adds in amounts of the run do not count."""
    ones = node.builder.emit(_ones(node, node.shape(0)[2:]))
    of_ones = framed(node, ones, varying, "constant")
    axes = _axes(node)
    widths = [0] * 4 + [amount for axis in axes for amount in (axis.before, axis.after)]
    return _means_by_counts(node, axes, *(_padded(node, data, widths) for data in (node.tensor(0), of_ones)))


def _of_padding(node: Node) -> Any:
    """The means of windows that count the padding; the last windows end after the padding."""
    axes, widths, beyond, sizes = _axes(node), [0] * 4, [0] * 4, []
    for axis in axes:
        after = axis.after + _missing_elements(axis)
        counted = min(axis.after, after)
        widths += [axis.before, after]
        beyond += [0, after - counted]
        sizes.append(node.symbols.simplify(axis.before + axis.size + counted))
    ones = _padded(node, node.builder.emit(_ones(node, sizes)), beyond)
    return _means_by_counts(node, axes, _padded(node, node.tensor(0), widths), ones)


def _ones(node: Node, sizes: list[Extent]) -> Any:
    return op.ones(shape_expr([1, 1, *sizes]), str(node.tensor(0).ty.dtype))


def _padded(node: Node, data: Any, widths: list[int]) -> Any:
    return node.builder.emit(op.nn.pad(data, widths)) if any(widths) else data


def _means_by_counts(node: Node, axes: list[_PoolAxis], data: Any, ones: Any) -> Any:
    """The means of the windows of `data` divided by those of `ones`, 0 where no element counts."""
    rank, kernel = len(axes), [int(number) for number in node.attributes["kernel_shape"]]
    dilations = [int(number) for number in node.attributes.get("dilations") or [1] * rank]
    strides = [axis.stride for axis in axes]
    means = [
        node.builder.emit(_MEANS[rank](tensor, kernel, strides, [0] * 2 * rank, dilations))
        for tensor in (data, ones)
    ]
    return op.divide(*means)


def max_pool_values(node: Node) -> Any:
    """MaxPool without positions: pads, windows and dynamic sizes are resolved here; TVM converts the node."""
    if clip(node) and _has_dynamic_sizes(node):
        return op.max(node.tensor(0), list(range(2, len(node.shape(0)))), keepdims=True)
    round_up(node)
    return None


def _has_dynamic_sizes(node: Node) -> bool:
    return not all(isinstance(size, int) for size in node.shape(0)[2:])


def lp_pool(node: Node) -> Any:
    """LpPool: the p-th root of the sum of |x|**p over a window; elements around the tensor are 0.

    TVM 0.27 computes the mean of the elements that a window has, times the size of the whole window.
    """
    clip(node)
    emit, axes, x = node.builder.emit, _axes(node), node.tensor(0)
    p = int(node.attributes.get("p", 2))
    ceil = bool(node.attributes.get("ceil_mode", 0))
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = x if wide == dtype else emit(op.astype(x, wide))
    widths = [0] * 4
    for axis in axes:
        widths += [axis.before, axis.after + (_missing_elements(axis) if ceil else 0)]
    if any(widths):
        x = emit(op.nn.pad(x, widths, pad_mode="constant", pad_value=0.0))
    size = emit(op.abs(x))
    powers = size if p == 1 else emit(op.multiply(x, x) if p == 2 else op.power(size, _number(p, wide)))
    kernel, rank = [int(number) for number in node.attributes["kernel_shape"]], len(axes)
    dilations = [int(number) for number in node.attributes.get("dilations") or [1] * rank]
    strides = [axis.stride for axis in axes]
    mean = emit(_MEANS[rank](powers, kernel, strides, [0] * 2 * rank, dilations))
    total = emit(op.multiply(mean, _number(float(np.prod(kernel)), wide)))
    if p != 1:
        total = emit(op.sqrt(total) if p == 2 else op.power(total, _number(1 / p, wide)))
    return total if wide == dtype else op.astype(total, dtype)


def local_response_normalization(node: Node) -> Any:
    """LRN that TVM 0.27 lacks: of float64, of an even size, and of other than 3 and 4 axes.

    An element is divided by (bias + alpha / size * the sum of squares of the channels around it)^beta.
    """
    x, shape, size = node.tensor(0), node.shape(0), int(node.attributes["size"])
    dtype, rank, emit = str(x.ty.dtype), len(shape), node.builder.emit
    if dtype == "float32" and rank in (3, 4) and size % 2:
        return None
    alpha, beta, bias = (
        float(node.attributes.get(key, usual))
        for key, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1))
    )
    around = [0, 0, (size - 1) // 2, size // 2] + [0] * 2 * (rank - 2)
    squares = emit(op.nn.pad(emit(op.multiply(x, x)), around))
    total: Any = None
    for first in range(size):
        ends = [node.symbols.simplify(shape[1] + first)]
        taken = emit(op.strided_slice(squares, [1], prims([first]), prims(ends), assume_inbound=True))
        total = taken if total is None else emit(op.add(total, taken))
    scaled = emit(op.add(op.multiply(total, _number(alpha / size, dtype)), _number(bias, dtype)))
    return op.divide(x, emit(op.power(scaled, _number(beta, dtype))))


def _number(value: float, dtype: str) -> Any:
    return relax.const(value, dtype)


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "LRN": local_response_normalization,
}
