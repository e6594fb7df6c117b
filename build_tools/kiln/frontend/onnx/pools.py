"""LpPool, and pools that round the number of windows up along open sizes.

Converters have the interface of kiln.frontend.onnx.ops. Sizes are ints or TIR expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from kiln.config.sizes import ceil_div
from kiln.frontend.onnx.node import Node
from kiln.frontend.onnx.window_pads import with_pads
from kiln.frontend.symbols import Extent

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


def _axes(node: Node) -> list[_PoolAxis]:
    """The windows of a pool, whose auto_pad is resolved. Raises ValueError as `with_pads`."""
    with_pads(node)
    attributes, spatial = node.attributes, node.shape(0)[2:]
    rank = len(spatial)
    if rank not in _MEANS:
        raise ValueError(f"its input has {rank + 2} axes, allowed: 3 to 5")
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(key) or [1] * rank for key in ("strides", "dilations"))
    valid = node.text("auto_pad", "NOTSET") == "VALID"
    pads = [0] * 2 * rank if valid else list(attributes.get("pads") or [0] * 2 * rank)
    return [
        _PoolAxis(
            spatial[at],
            (int(kernel[at]) - 1) * int(dilations[at]) + 1,
            int(strides[at]),
            int(pads[at]),
            int(pads[rank + at]),
        )
        for at in range(rank)
    ]


def _beyond(axis: _PoolAxis) -> int:
    """How many elements to add behind an axis for a last window that begins on it but ends beyond it.

    With them the number of windows, rounded down, is the one that ONNX rounds up: windows that would begin
    behind all elements are left out. Negative where elements behind are in no window.
    """
    if not isinstance(axis.size, int):
        return min(axis.after + axis.stride - 1, axis.reach - 1) - axis.after
    whole = axis.before + axis.size + axis.after
    count = ceil_div(whole - axis.reach, axis.stride) + 1
    if (count - 1) * axis.stride >= axis.before + axis.size:
        count -= 1
    return max((count - 1) * axis.stride + axis.reach - whole, 0)


def round_up(node: Node) -> None:
    """Replace ceil_mode along open sizes by further elements behind them, which no pool counts.

    TVM 0.27 makes the number of windows an expression of conditions. Raises ValueError for means that count
    the elements behind.
    """
    attributes = node.attributes
    if not attributes.get("ceil_mode", 0) or all(isinstance(size, int) for size in node.shape(0)[2:]):
        return
    if attributes.get("count_include_pad", 0):
        raise ValueError(
            "ceil_mode and count_include_pad along an open size; set one of them to 0, or fix the size"
        )
    axes = _axes(node)
    before, after = [axis.before for axis in axes], [axis.after + _beyond(axis) for axis in axes]
    attributes["pads"] = tuple(before + after)
    attributes["ceil_mode"] = 0
    attributes.pop("auto_pad", None)


def average_pool(node: Node) -> Any:
    """AveragePool: pads and open sizes are resolved here, and TVM converts the rest."""
    with_pads(node)
    round_up(node)


def lp_pool(node: Node) -> Any:
    """LpPool: the p-th root of the sum of |x|**p over a window; elements around the tensor are 0.

    TVM 0.27 takes the mean of the elements that a window has, times the size of the whole window.
    """
    emit, axes, x = node.builder.emit, _axes(node), node.tensor(0)
    p = int(node.attributes.get("p", 2))
    ceil = bool(node.attributes.get("ceil_mode", 0))
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = x if wide == dtype else emit(op.astype(x, wide))
    widths = [0] * 4
    for axis in axes:
        widths += [axis.before, axis.after + (_beyond(axis) if ceil else 0)]
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


def _number(value: float, dtype: str) -> Any:
    return relax.const(value, dtype)


CONVERTERS: dict[str, Callable[[Node], Any]] = {"AveragePool": average_pool, "LpPool": lp_pool}
