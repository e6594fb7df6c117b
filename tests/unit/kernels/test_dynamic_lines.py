"""Register tiles of convolutions whose images have lines of dynamic length."""

from __future__ import annotations

import dataclasses

import pytest
from kiln.kernels.cpu.conv2d_schedule import in_lines
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.tir.symbols import SymbolRanges
from tvm import tirx

from .test_rules import _machine

AVX2, NEON = _machine("x86_64"), _machine("aarch64")
WIDE = dataclasses.replace(AVX2, isa="avx512", vector_bits=512, registers=32)


def _dynamic(outputs: int, lengths: tuple[int, int], inputs: int = 64) -> Convolution:
    """A convolution of `inputs` to `outputs` channels, with lines of a length between two `lengths`."""
    attrs = {"strides": [2, 2], "dilation": [1, 1], "groups": 1}
    conv = Convolution.of_sizes([1, 99, 99, inputs], [7, 7, inputs, outputs], [1, 47, 47, outputs], attrs)
    conv.out_w = tirx.Var("width", "int64")
    conv.ranges = SymbolRanges({conv.out_w: lengths})
    return conv


@pytest.mark.parametrize(("outputs", "vectors"), [(48, 3), (64, 4), (96, 4), (200, 4)])
def test_tiles_of_short_lines_of_dynamic_length(outputs: int, vectors: int) -> None:
    """Few rows, of which each has an address; panels as for fixed lengths, which share the packed weights."""
    for machine in (WIDE, AVX2, NEON):
        plain = choose_tile(machine, 47 * 47, outputs)
        tile, apart = in_lines(_dynamic(outputs, (2, 5)), plain, machine)
        assert not apart and tile.columns == plain.columns
        assert tile.rows <= 8
        if machine is WIDE:
            assert tile.width == vectors * tile.lanes
            assert tile.rows * vectors <= 28, "sums in registers"
        else:
            assert tile == plain


@pytest.mark.parametrize("outputs", [16, 32])
def test_narrow_tiles_lie_in_short_lines_too(outputs: int) -> None:
    """With 7 addresses they would take as long as tiles of four vectors."""
    assert in_lines(_dynamic(outputs, (2, 5)), choose_tile(WIDE, 47 * 47, outputs), WIDE)[1]


def test_few_channels_lie_in_short_lines_too() -> None:
    """Each address serves few steps of the innermost loop."""
    plain = choose_tile(AVX2, 47 * 47, 64)
    assert [in_lines(_dynamic(64, (8, 16), inputs), plain, AVX2)[1] for inputs in (3, 64)] == [True, False]


@pytest.mark.parametrize("outputs", [16, 32, 48, 64, 96, 200])
def test_long_lines_of_dynamic_length_have_tiles_of_their_own(outputs: int) -> None:
    for machine, most in ((WIDE, 28), (AVX2, 12)):
        plain = choose_tile(machine, 47 * 47, outputs)
        tile, apart = in_lines(_dynamic(outputs, (40, 160)), plain, machine)
        assert apart and tile.columns == plain.columns
        assert tile.rows == most // tile.vectors
        assert in_lines(_dynamic(outputs, (30, 30)), plain, machine)[1] == apart, "a single length"
    plain = choose_tile(NEON, 47 * 47, outputs)
    assert in_lines(_dynamic(outputs, (40, 160), inputs=3), plain, NEON)[1]
    assert not in_lines(_dynamic(outputs, (13, 13)), plain, NEON)[1]
