"""MaxPool with a second result, the positions of the greatest elements, which TVM 0.27 does not compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from kiln.extents import Extent, shape_of
from kiln.frontend.onnx.node import Node
from kiln.frontend.onnx.pools import frame_of, max_pool_values, round_up, wrong_axes
from kiln.frontend.onnx.window_pads import amounts_of_the_run, with_pads
from kiln.frontend.symbols import int64, int64_of

op = relax.op
_POOLS = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}


def max_pool(node: Node) -> Any:
    """MaxPool of 1 to 3 axes; without the second result it is left to TVM."""
    if len(node.outputs) < 2 or not node.outputs[1]:
        return max_pool_values(node)
    data, spatial = node.tensor(0), node.shape(0)[2:]
    amounts = amounts_of_the_run(node)
    with_pads(node, frame_of(node))
    round_up(node)
    attributes = node.attributes
    rank = len(spatial)
    if rank not in _POOLS:
        raise wrong_axes(rank + 2)
    mode = node.text("auto_pad", "NOTSET")
    kernel = [int(size) for size in attributes["kernel_shape"]]
    strides, dilations = (
        [int(size) for size in attributes.get(key) or [1] * rank] for key in ("strides", "dilations")
    )
    pads = [0] * 2 * rank if mode == "VALID" else [int(n) for n in attributes.get("pads") or [0] * 2 * rank]
    ceil = bool(attributes.get("ceil_mode", 0))
    best = node.builder.emit(_POOLS[rank](node.tensor(0), kernel, strides, pads, dilations, ceil))
    before = [amounts.get(axis, pads[axis]) for axis in range(rank)]
    window = _PoolWindow(kernel, strides, dilations, before, spatial)
    columns = int(attributes.get("storage_order", 0)) == 1
    return relax.Tuple([best, _positions(node.builder, data, best, window, columns)])


class _PoolWindow:
    """A window of a pool, with `before` elements before each axis of the input.

    Its taps, the elements that it reads, are numbered in row-major order.
    """

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        before: Sequence[Extent],
        sizes: Sequence[Extent],
    ) -> None:
        self.kernel, self.sizes = kernel, sizes
        self._strides, self._dilations, self._before = strides, dilations, before

    def at(self, axis: int, index: Any, tap: Any) -> Any:
        """The index along `axis` that `tap` of window `index` reads of the input; it may be outside."""
        return index * self._strides[axis] + tap * self._dilations[axis] - self._before[axis]

    def taps_of(self, number: Any) -> list[Any]:
        """The tap along each axis, for the tap with a number."""
        taps: list[Any] = []
        for size in reversed(self.kernel):
            taps.append(tirx.floormod(number, size))
            number = tirx.floordiv(number, size)
        return taps[::-1]

    def inside(self, axis: int, index: Any) -> Any:
        """`index`, moved to the nearest index of the input."""
        return tirx.max(tirx.min(index, int64_of(self.sizes[axis]) - int64(1)), int64(0))


def _positions(builder: relax.BlockBuilder, data: Any, best: Any, window: _PoolWindow, columns: bool) -> Any:
    """The flat positions in `data` of the elements `best`, in int64; of equal elements, of the first.

    `columns`: positions count in column-major order (the first spatial axis is adjacent), else in row-major
    order.
    """
    rank, count = len(window.kernel), int(np.prod(window.kernel))
    shape, channels = shape_of(best), shape_of(data)[1]

    def compute(x: Any, y: Any) -> Any:
        taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(window.kernel)]

        def first(*indices: Any) -> Any:
            read, fits, number = [], [], tirx.IntImm("int32", 0)
            for axis, tap in enumerate(taps):
                source = window.at(axis, indices[2 + axis], tap)
                read.append(window.inside(axis, source))
                fits += [source >= int64(0), source < int64_of(window.sizes[axis])]
                number = number * window.kernel[axis] + tirx.Cast("int32", tap)
            # A NaN equals no element, so its position is that of the last tap.
            matching = tirx.Select(tirx.all(*fits, x(*indices[:2], *read) == y(*indices)), number, count - 1)
            return te.min(matching, axis=taps)

        numbers = te.compute([int64_of(size) for size in shape], first, name="first")

        def position(*indices: Any) -> Any:
            taps_here = window.taps_of(tirx.Cast("int64", numbers(*indices)))
            sources = [window.inside(a, window.at(a, indices[2 + a], tap)) for a, tap in enumerate(taps_here)]
            flat: Any = indices[0] * int64_of(channels) + indices[1]
            spatial: Any = int64(0)
            for axis in reversed(range(rank)) if columns else range(rank):
                spatial = spatial * int64_of(window.sizes[axis]) + sources[axis]
            for size in window.sizes:
                flat = flat * int64_of(size)
            return flat + spatial

        return te.compute([int64_of(size) for size in shape], position, name="position")

    return builder.emit_te(compute, data, best, primfunc_name_hint="max_pool_positions")


CONVERTERS: dict[str, Callable[[Node], Any]] = {"MaxPool": max_pool}
