"""Convolutions that skip the taps of their kernels that read padding, in place of multiplying by zeros.

Where padding is wide compared with the image, as in DeepLab's pyramid with dilations of 12, 24 and 36, most
products are by zeros, and an image with its padding is several times as large as the image. Each line of the
result has a range of kernel rows that lie inside of the image; it is computed in segments of pixels that have
the same range of kernel columns. So no padded image is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.config.sizes import ceil_div
from kiln.extents import Extent
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.tir.builder import int64

# The share of the time of a convolution of a padded image below which segments pay.
_GAIN = 0.8
# Fewest sums of a tile that hide the latency of a multiply-add: a tile of fewer takes as long.
_FEWEST_SUMS = 8


@dataclass(frozen=True)
class WindowAxis:
    """One axis of a convolution: the sizes of the image, of the kernel and of the result, and the steps.

    `pad`: elements of padding before the image.
    """

    size: int
    taps: int
    out: int
    stride: int
    dilation: int
    pad: int

    def alive(self, position: int) -> range:
        """The taps that read an element of the image, for the result at `position`."""
        start = self.pad - position * self.stride
        low = max(0, ceil_div(start, self.dilation))
        return range(low, max(low, min(self.taps, ceil_div(self.size + start, self.dilation))))

    def alive_at(self, position: Expr) -> tuple[Expr, Expr]:
        """`alive` at a position that the run computes: the first tap, and the number of taps."""
        start = int64(self.pad) - position * int64(self.stride)
        step, last = int64(self.dilation), int64(self.dilation - 1)
        low = tirx.max(int64(0), tirx.floordiv(start + last, step))
        high = tirx.min(int64(self.taps), tirx.floordiv(start + int64(self.size) + last, step))
        return low, tirx.max(int64(0), high - low)


def axes_of(
    image: Sequence[int], kernel: Sequence[int], out: Sequence[Extent], attrs: Mapping[str, Any]
) -> tuple[WindowAxis, WindowAxis]:
    """The axes of the lines and columns of a convolution (NHWC, HWIO).

    `image`, `kernel` and `out`, the result, begin with height and width. `attrs`: padding, strides and
    dilation. All sizes are static.
    """
    lines, columns = (
        WindowAxis(
            image[axis], int(kernel[axis]), int(out[axis]), int(attrs["strides"][axis]),
            int(attrs["dilation"][axis]), int(attrs["padding"][axis]),
        )
        for axis in (0, 1)
    )  # fmt: skip
    return lines, columns


@dataclass(frozen=True)
class LineSegment:
    """`pixels` adjacent pixels of a line, from `first` on, of which all read the kernel columns `taps`.

    They are computed in tiles of `rows` pixels, of which the first is tile `tile` of the line.
    """

    first: int
    pixels: Extent
    taps: range
    rows: int
    tile: int


def segments(axis: WindowAxis, rows: int) -> list[LineSegment]:
    """The segments of a line of `axis`, with tiles of about equal height, at most `rows`."""
    found: list[LineSegment] = []
    first = tile = 0
    for position in range(1, axis.out + 1):
        taps = axis.alive(first)
        if position == axis.out or axis.alive(position) != taps:
            pixels = position - first
            tiles = ceil_div(pixels, rows)
            found.append(LineSegment(first, pixels, taps, ceil_div(pixels, tiles), tile))
            first, tile = position, tile + tiles
    return found


def _sums(pixels: int, tile: Tile) -> int:
    return max(_FEWEST_SUMS, pixels * tile.vectors * tile.adjacent)


def _heights(segment: LineSegment) -> Iterator[int]:
    pixels = int(segment.pixels)
    for first in range(0, pixels, segment.rows):
        yield min(segment.rows, pixels - first)


def pays(lines: WindowAxis, columns: WindowAxis, tile: Tile) -> bool:
    """Whether a convolution is faster in segments than on a padded image, in tiles of at most `tile`.

    Measured on Zen 4 in DeepLab's pyramid, images of 33x33 pixels with 960 channels: 0.66 of the time with a
    dilation of 12, 0.28 with 24; this function expects 0.57 and 0.27.
    """
    of_line = sum(
        len(segment.taps) * sum(_sums(height, tile) for height in _heights(segment))
        for segment in segments(columns, tile.rows)
    )
    in_segments = of_line * sum(len(lines.alive(line)) for line in range(lines.out))
    whole_tiles, rest = divmod(lines.out * columns.out, tile.rows)
    padded = whole_tiles * _sums(tile.rows, tile) + (_sums(rest, tile) if rest else 0)
    return in_segments < _GAIN * padded * lines.taps * columns.taps
