"""Taps that read padding, and where skipping them pays."""

from __future__ import annotations

import itertools

import pytest
from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Tile
from kiln.kernels.cpu.skipped_taps import WindowAxis, pays, segments
from tvm import sym, tirx

TILE = Tile(14, 2, 16)


def _axis(size: int, taps: int, stride: int, dilation: int, pads: tuple[int, int]) -> WindowAxis:
    out = (size + sum(pads) - (taps - 1) * dilation - 1) // stride + 1
    return WindowAxis(size, taps, out, stride, dilation, pads[0])


AXES = [
    _axis(size, taps, stride, dilation, pads)
    for size, taps, stride, dilation, pads in itertools.product(
        (1, 4, 9), (1, 3, 4), (1, 2, 3), (1, 2, 7), ((0, 0), (3, 1), (21, 22))
    )
    if size + sum(pads) > (taps - 1) * dilation
]


def test_taps_inside_of_the_image() -> None:
    simplify = sym.Analyzer().simplify
    for axis in AXES:
        for at in range(axis.out):
            start = at * axis.stride - axis.pad
            inside = [tap for tap in range(axis.taps) if 0 <= start + tap * axis.dilation < axis.size]
            first, count = (int(simplify(value)) for value in axis.alive_at(tirx.IntImm("int64", at)))
            assert list(axis.alive(at)) == list(range(first, first + count)) == inside, (axis, at)


@pytest.mark.parametrize("rows", [1, 4, 14])
def test_segments_cover_a_line(rows: int) -> None:
    for axis in AXES:
        pixels, tiles = [], 0
        for segment in segments(axis, rows):
            assert segment.tile == tiles and 0 < segment.rows <= rows
            tiles += ceil_div(segment.pixels, segment.rows)
            inside = range(segment.first, segment.first + segment.pixels)
            assert all(axis.alive(pixel) == segment.taps for pixel in inside)
            pixels += list(inside)
        assert pixels == list(range(axis.out))


@pytest.mark.parametrize(
    ("size", "dilation", "expected"),
    [
        (17, 12, True),
        (33, 12, True),
        (65, 12, True),
        (129, 12, False),
        (65, 24, True),
        (65, 36, True),
        (257, 36, False),
    ],
)
def test_pyramids_as_of_deeplab(size: int, dilation: int, expected: bool) -> None:
    axis = _axis(size, 3, 1, dilation, (dilation, dilation))
    assert pays(axis, axis, TILE) == expected


def test_usual_padding_does_not_pay() -> None:
    for size, taps in itertools.product((4, 7, 8, 14, 56), (3, 5)):
        axis = _axis(size, taps, 1, 1, (taps // 2, taps // 2))
        assert not pays(axis, axis, TILE)
