"""Sizes of a convolution on NHWC as an implicit matmul: its rows are output pixels, its columns channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tvm.ir import Expr

from kiln.extents import Extent, extent
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.skipped_taps import WindowAxis, axes_of
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import Machine, bind, divide, int64, modulo, unravel
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import NO_RANGES, is_dynamic
from kiln.tir.tuning_records import HEURISTICS, TuningRecord, key_of


class Pixel(NamedTuple):
    """An output pixel: its image, line and column. A row of the matmul whose place in an image is known."""

    image: Expr
    line: Expr
    column: Expr


# A row of the matmul: its number, or the output pixel that it is.
Row: TypeAlias = Expr | Pixel


class Convolution:
    """Sizes of one convolution (or dense layer), from its op info and its buffers."""

    axes: tuple[WindowAxis, WindowAxis] | None

    def __init__(self, op: OpInfo, fused: Fused, anchor: Nest) -> None:
        self.ranges = fused.ranges
        x, weights = fused.params[:2]
        x_shape, k_shape = [extent(size) for size in x.shape], [int(size) for size in weights.shape]
        attrs = op["attrs"]
        _, self.top, self.left, _ = fused.origins.get(x, (0, 0, 0, 0))
        if op["name"] == "matmul":
            rows = self.ranges.product(x_shape[:-1])
            x_shape, k_shape = [1, 1, rows, x_shape[-1]], [1, 1, *k_shape]
            attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
        self.is_layer = op["name"] == "matmul"
        out = [1, x_shape[2]] if self.is_layer else anchor.extents[1:3]
        self._set(x_shape, k_shape, out, attrs)
        if any(attrs.get("padding", ())):
            # The first nest pads. Its sizes tell those of the image, also of one that is a part of x.
            pads = attrs["padding"]
            padded = [int(size) for size in fused.nests[0].extents[1:3]]
            image = [padded[axis] - pads[axis] - pads[axis + 2] for axis in (0, 1)]
            self.axes = axes_of(image, k_shape, out, attrs)

    @classmethod
    def of_sizes(
        cls, x: list[int], weights: list[int], out: list[int], attrs: Mapping[str, Any]
    ) -> Convolution:
        """A convolution of x (NHWC, padded) with weights (HWIO) whose result has shape `out` (NHWC).

        `attrs`: strides, dilation and groups.
        """
        conv = cls.__new__(cls)
        conv.ranges = NO_RANGES
        conv.top = conv.left = 0
        conv.is_layer = False
        conv._set(x, weights, out[1:3], attrs)
        return conv

    @classmethod
    def dense(cls, x: list[int], weights: list[int]) -> Convolution:
        """A dense layer: matmul of x (…, K) and weights (K, N)."""
        rows = int(np.prod(x[:-1], dtype=np.int64))
        attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
        conv = cls.of_sizes([1, 1, rows, x[-1]], [1, 1, *weights], [1, 1, rows], attrs)
        conv.is_layer = True
        return conv

    def _set(
        self, x_shape: Sequence[Extent], k_shape: list[int], out: Sequence[Extent], attrs: Mapping[str, Any]
    ) -> None:
        """Set all sizes from shapes x (NHWC) and k (HWIO); `out`: height and width of an output image."""
        self.batch, self.height, self.width = x_shape[:3]
        # Elements between adjacent pixels; lower/views/in_place_padding.py may add a gap after the channels.
        self.pitch = int(x_shape[3])
        self.kernel_h, self.kernel_w, self.depth, self.out_channels = k_shape
        self.stride_h, self.stride_w = attrs["strides"]
        self.dilation_h, self.dilation_w = attrs["dilation"]
        self.groups = int(attrs["groups"])
        self.channels = self.depth * self.groups
        self.out_h: Extent
        self.out_w: Extent
        self.out_h, self.out_w = out
        # Of an image without padding, of which each line reads some of the kernel's rows; None: it has none.
        self.axes = None
        self.rows: Extent = self.ranges.product([self.batch, self.out_h, self.out_w])
        self.columns = self.out_channels // self.groups

    def loops(self) -> list[Loop]:
        """The reduction over kernel rows, columns and input channels."""
        return [
            Loop(self.kernel_h, self.dilation_h * self.width * self.pitch),
            Loop(self.kernel_w, self.dilation_w * self.pitch),
            Loop(self.depth, 1),
        ]

    def loops_of(self, line: Expr, columns: range) -> list[Loop]:
        """`loops` over the kernel rows that output line `line` reads inside its image, and over `columns`.

        Lines are counted over all images. All of the loops where the image has its padding.
        """
        if self.axes is None:
            return self.loops()
        over_rows, over_columns, over_channels = self.loops()
        single_image = self.ranges.same(self.batch, 1)
        first, count = self.axes[0].alive_at(line if single_image else modulo(line, self.out_h))
        inside = (bind(first), bind(count))
        return [
            replace(over_rows, part=inside),
            replace(over_columns, part=(columns.start, len(columns))),
            over_channels,
        ]

    def pixel(self, row: Row) -> Pixel:
        """The output pixel that is row `row` of the matmul."""
        if isinstance(row, Pixel):
            return row
        image = self.ranges.product([self.out_h, self.out_w])
        single_image = self.ranges.same(self.batch, 1)
        position = row if single_image else modulo(row, image)
        return Pixel(
            int64(0) if single_image else divide(row, image),
            divide(position, self.out_w),
            modulo(position, self.out_w),
        )

    def pixels(self, line: Expr, column: Expr, count: int) -> list[Pixel]:
        """`count` pixels from `column` on of the output line number `line` of all images."""
        single_image = self.ranges.same(self.batch, 1)
        image = int64(0) if single_image else bind(divide(line, self.out_h))
        line = line if single_image else bind(modulo(line, self.out_h))
        return [Pixel(image, line, bind(column + int64(i))) for i in range(count)]

    def base(self, row: Row, group: Expr) -> Expr:
        """Offset in x of the first element of `group` that output row `row` reads."""
        n, h, w = self.pixel(row)
        above, before = (axis.pad for axis in self.axes) if self.axes else (0, 0)
        line = n * int64(self.height) + h * int64(self.stride_h) + int64(self.top - above)
        line = line * int64(self.width)
        column = w * int64(self.stride_w) + int64(self.left - before)
        return (line + column) * int64(self.pitch) + group * int64(self.depth)

    def bases(self, rows: Sequence[Row], group: Expr, tile_rows: int) -> list[Expr]:
        """`base` of each of `rows`, which a loop over tiles of `tile_rows` rows visits together.

        Rows of one line of the image are at constant distances from the first: addresses of one register.
        Else each row has an address of its own, which takes more registers than most processors have.
        """
        first = bind(self.base(rows[0], group))
        if not isinstance(rows[0], Pixel) and not self.in_line(tile_rows):
            return [first, *(bind(self.base(row, group)) for row in rows[1:])]
        return [first + int64(i * self.stride_w * self.pitch) for i in range(len(rows))]

    def in_line(self, tile_rows: int) -> bool:
        """Whether the rows of each tile of `tile_rows` rows are at equal distances in x."""
        divides = isinstance(self.out_w, int) and self.out_w % tile_rows == 0
        return self.is_dense or self.is_line or divides

    def result_indices(self, row: Row, column: Expr, shape: Sequence[Extent]) -> list[Expr]:
        """Indices into a result of `shape` of the element in `row` and `column` of the matmul."""
        if len(shape) == 4 and not self.is_layer:
            return [*self.pixel(row), column]
        if isinstance(row, Pixel):
            row = (row.image * int64(self.out_h) + row.line) * int64(self.out_w) + row.column
        return [*unravel(row, [extent(size) for size in shape[:-1]]), column]

    def choice(self, machine: Machine) -> TuningRecord:
        """The tuning record for this shape; HEURISTICS where the shape was not measured."""
        if is_dynamic(self.rows):
            return HEURISTICS
        x = (self.batch, self.height, self.width, self.channels)
        weights = (self.kernel_h, self.kernel_w, self.depth, self.out_channels)
        stride, dilation = (self.stride_h, self.stride_w), (self.dilation_h, self.dilation_w)
        key = key_of(x, weights, stride, dilation, self.groups)
        return machine.choices.get(key, HEURISTICS)

    @property
    def lines(self) -> Extent:
        """Number of output lines of all images."""
        return self.ranges.product([self.batch, self.out_h])

    @property
    def terms(self) -> int:
        """Number of products in the sum of an output element."""
        return self.kernel_h * self.kernel_w * self.depth

    @property
    def is_dense(self) -> bool:
        """Whether output rows are the pixels of x, in order."""
        same = self.ranges.same
        all_pixels = same(self.height, self.out_h) and same(self.width, self.out_w)
        return all_pixels and self.kernel_h == self.kernel_w == self.stride_h == self.stride_w == 1

    @property
    def is_line(self) -> bool:
        """Whether all output rows are pixels of one line of an image, as in a convolution of a sequence."""
        return self.ranges.same(self.batch, 1) and self.ranges.same(self.out_h, 1)

    @property
    def macs(self) -> int:
        """Multiply-adds of one run, at the greatest sizes."""
        return self.ranges.greatest(self.rows) * self.out_channels * self.terms
