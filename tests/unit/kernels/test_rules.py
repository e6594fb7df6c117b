"""Rules that decide how a kernel is computed: Winograd or not, parts, tasks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from kiln.config import load_target
from kiln.kernels.cpu.conv2d_schedule import by_pairs, in_lines, part_of
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.depthwise import shares_inputs, strip_length, tile_size
from kiln.kernels.cpu.depthwise_chunks import chunk_vectors
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.kernels.cpu.packed_operand import Panels
from kiln.kernels.cpu.winograd_cost import Form, form_of, tiles_of
from kiln.lower.llvm_target import tvm_target
from kiln.lower.pipeline import machine_of
from kiln.lower.views.in_place_padding import pixel_gap_of
from kiln.tir.builder import SHARED, Machine, Packing
from kiln.tir.symbols import NO_RANGES, SymbolRanges
from tvm import tirx

TARGETS = ("x86_64", "x86_64_v2", "aarch64", "aarch64_a53", "armv7")


def _square(size: int, channels: int, outputs: int) -> Any:
    """A 3x3 convolution with as many outputs as pixels; RULES for all choices."""
    return SimpleNamespace(
        ranges=NO_RANGES,
        batch=1, out_h=size, out_w=size, channels=channels, out_channels=outputs, rows=size * size,
        macs=size * size * 9 * channels * outputs,
        choice=lambda _: SimpleNamespace(winograd=None, block=None),
    )  # fmt: skip


def _machine(name: str, winograd: str = "auto", threads: str = "pthread") -> Machine:
    return machine_of(load_target(name), threads, winograd)


def _form(size: int, channels: int, outputs: int, machine: Machine) -> Form | None:
    return form_of(_square(size, channels, outputs), machine)


@pytest.mark.parametrize("name", TARGETS)
def test_winograd_where_it_gains(name: str) -> None:
    machine = _machine(name)
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        assert _form(size, channels, channels, machine) is not None, (size, channels)
    assert _form(224, 3, 64, machine) is None  # few channels: the transforms cost more than they save
    assert _form(1, 256, 256, machine) is None  # one pixel: a tile computes more than is needed
    assert _form(56, 64, 64, _machine(name, "off")) is None


def test_winograd_of_dynamic_sizes() -> None:
    """The form must pay over the whole range of images, not at the largest alone."""
    machine = _machine("x86_64")

    def form(least: int, most: int, channels: int) -> int:
        side = tirx.Var("side", "int64")
        conv = _square(side, channels, channels)
        conv.ranges, conv.macs = SymbolRanges({side: (least, most)}), most * most * 9 * channels**2
        chosen = form_of(conv, machine)
        return 0 if chosen is None else chosen.m

    largest = _form(20, 512, 512, machine)
    assert largest is not None
    assert largest.m == 4
    assert form(2, 20, 512) != 4, "at 2 x 2 pixels only the weights count, and F4 has four times as many"
    assert form(1, 2, 512) == 0
    assert form(20, 20, 512) == form(16, 20, 512) == 4


def test_points_of_ranges() -> None:
    a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
    points = SymbolRanges({a: (1, 100), b: (7, 7)}).points()
    assert [[point.greatest(size) for size in (a, b, a * b)] for point in points] == [
        [1, 7, 7], [10, 7, 70], [100, 7, 700],
    ]  # fmt: skip
    assert NO_RANGES.points() == [NO_RANGES]


@pytest.mark.parametrize("name", TARGETS)
def test_a_variant_chooses_its_tile_where_the_last_one_has_no_panels(name: str) -> None:
    """As of a product whose left factor is a constant in few bits: it is stored, but not in panels."""
    machine = _machine(name)
    stored = dataclasses.replace(machine, packing=Packing(0, arrangement="a table"))
    assert choose_tile(stored, 20, 102) == choose_tile(machine, 20, 102)


def test_products_of_their_own_take_registers_where_no_instruction_adds_them() -> None:
    machine = _machine("armv7")
    tiles = [choose_tile(dataclasses.replace(machine, fma=fma), 196, 256) for fma in (machine.fma, True)]
    assert [(tile.rows, tile.vectors) for tile in tiles] == [(3, 2), (6, 2)]


def test_sums_of_a_core_without_vectors_fit_its_registers() -> None:
    found = {}
    for name in ("cortex_m0plus", "cortex_m3", "riscv32_imac", "riscv64"):
        tile = choose_tile(_machine(name), 196, 256)
        found[name] = tile.rows, tile.vectors
    assert found == {
        "cortex_m0plus": (1, 4), "cortex_m3": (2, 2), "riscv32_imac": (2, 2), "riscv64": (2, 4),
    }  # fmt: skip


def test_weights_grow_no_further_than_allowed() -> None:
    form = _form(56, 64, 64, _machine("armv7"))
    assert form is not None
    assert form.m == 2
    assert _form(56, 64, 64, _machine("armv7", "f4")) is None


def test_blocks_hold_every_tile_and_divide_among_cores() -> None:
    for size in (7, 8, 13, 28, 56, 112):
        machine = _machine("x86_64")
        form = _form(size, 64, 64, machine)
        assert form is not None
        tiles = tiles_of(_square(size, 64, 64), form.m)
        assert form.block * form.tasks * form.blocks_per_task >= tiles
        assert form.staged or form.tasks <= machine.cores
    alone = _form(56, 64, 64, _machine("x86_64", threads="none"))
    assert alone is not None
    assert alone.tasks == 1


def test_small_kernels_are_one_task() -> None:
    machine = _machine("x86_64")
    assert machine.shares(SHARED)
    assert not machine.shares(SHARED - 1)
    assert not _machine("x86_64", threads="none").shares(SHARED)


def test_parts_of_pixels() -> None:
    machine = _machine("x86_64")  # 4 cores, 256 KiB
    half = machine.l2_bytes // 2
    assert part_of(machine, 4, 33, 16, half, 1000) == 0  # x stays in the cache
    assert part_of(machine, 4, 33, 16, half + 1, half + 1) == 0  # the weights are read once
    assert part_of(machine, 4, 1, 3, half, 1000) == 0
    assert part_of(machine, 4, 32, 3, half, 1000) == 8  # three panels do not divide among four cores
    for tiles in (5, 14, 33, 523):
        part = part_of(machine, 4, tiles, 2, 20 * half, half)
        assert 1 <= part <= 8
        tasks = -(-tiles // part)
        assert -(-tasks // 4) * part <= 1.6 * tiles / 4 + 1


def _depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> Any:
    """A depthwise convolution of size x size outputs on its padded input."""
    side = (size - 1) * stride + kernel
    return SimpleNamespace(
        ranges=NO_RANGES,
        batch=1, height=side, width=side, channels=channels, pitch=channels, out_h=size, out_w=size,
        kernel_h=kernel, kernel_w=kernel,
        stride_h=stride, stride_w=stride, dilation_h=1, dilation_w=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_strips_hold_their_sums_in_registers(name: str, kernel: int) -> None:
    machine = _machine(name)
    for size, stride in ((1, 1), (2, 2), (7, 1), (14, 1), (14, 2), (56, 1)):
        conv = _depthwise(size, 64, kernel, stride)
        length = strip_length(machine, conv)
        assert 1 <= length <= size
        sums = 2 * length if shares_inputs(machine, conv, length) or machine.in_order else length
        assert sums + 3 <= machine.registers or length == 1
    if machine.registers == 32 and kernel == 3:  # no thin rest
        assert (
            strip_length(machine, _depthwise(7, 64, 3)) == strip_length(machine, _depthwise(14, 64, 3)) == 7
        )


def test_strips_of_wide_kernels_load_inputs_for_each_pixel() -> None:
    wide = dataclasses.replace(_machine("x86_64"), isa="avx512", vector_bits=512, registers=32)
    for machine, kernel, shared in ((_machine("x86_64"), 7, False), (wide, 7, True), (wide, 31, False)):
        conv = _depthwise(28, 96, kernel)
        assert strip_length(machine, conv) >= 4
        assert shares_inputs(machine, conv, strip_length(machine, conv)) == shared


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7, 9])
def test_tiles_hold_their_sums_in_registers(name: str, kernel: int) -> None:
    machine = _machine(name)
    for size in (1, 2, 5, 7, 14, 56, 112):
        tile = tile_size(machine, _depthwise(size, 64, kernel))
        if tile is not None:
            columns, rows = tile
            assert 1 < columns <= size
            assert 1 < rows <= size
            assert size % rows == 0 or size % 2
            assert columns * (min(rows, kernel) + 1) + kernel <= machine.registers
    assert (tile_size(machine, _depthwise(14, 64, kernel)) is None) == (
        (kernel > 3 and machine.registers == 16) or kernel > 9
    )
    assert tile_size(machine, _depthwise(14, 64, kernel, 2)) is None


def test_rows_in_one_set_of_the_cache_leave_room_in_it() -> None:
    wide = dataclasses.replace(
        _machine("x86_64"), isa="avx512", vector_bits=512, registers=32, l1_bytes=48 << 10
    )
    assert choose_tile(wide, 196, 512, row_bytes=2048).rows == 14
    assert choose_tile(wide, 196, 512, row_bytes=4096).rows == 10
    assert choose_tile(wide, 49, 512, row_bytes=8192).rows == 10
    assert choose_tile(dataclasses.replace(wide, l1_bytes=32 << 10), 196, 512, row_bytes=4096).rows == 6
    assert choose_tile(wide, 196, 512, (12, 2), row_bytes=4096).rows == 12
    for name in TARGETS:
        assert choose_tile(_machine(name), 196, 512, row_bytes=4096) == choose_tile(_machine(name), 196, 512)


def _tile_rows(machine: Machine, size: int, channels: int, outputs: int, kernel: int = 3) -> int:
    attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
    padded, weights = size + kernel - 1, [kernel, kernel, channels, outputs]
    conv = Convolution.of_sizes([1, padded, padded, channels], weights, [1, size, size, outputs], attrs)
    return in_lines(conv, choose_tile(machine, size * size, outputs), machine)[0].rows


def test_rows_of_a_sequence_are_one_line() -> None:
    """So each tile has one address, whatever its height, and half-empty vectors take two steps at a time."""
    wide = dataclasses.replace(_machine("x86_64"), isa="avx512", vector_bits=512, registers=32)
    attrs = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
    for length, batch in ((997, 1), (997, 2)):
        shapes = [batch, 1, length + 6, 36], [1, 7, 36, 5], [batch, 1, length, 5]
        conv = Convolution.of_sizes(*shapes, attrs)
        assert conv.in_line(14) == by_pairs(conv, wide) == (batch == 1)


def test_tiles_lie_in_a_line_of_the_image() -> None:
    wide = dataclasses.replace(_machine("x86_64"), isa="avx512", vector_bits=512, registers=32)
    assert _tile_rows(wide, 128, 1, 16, 7) == 16
    assert _tile_rows(wide, 64, 5, 24) == 8
    assert _tile_rows(wide, 56, 5, 24) == 14
    assert _tile_rows(wide, 61, 5, 24) == 14  # no tile divides 61
    assert _tile_rows(wide, 64, 64, 32, 1) == choose_tile(wide, 64 * 64, 32).rows  # lines follow each other
    assert _tile_rows(_machine("x86_64"), 20, 24, 24) == 4
    assert _tile_rows(_machine("aarch64"), 20, 24, 24) == choose_tile(_machine("aarch64"), 400, 24).rows


def test_avx512_computes_no_more_lanes_than_columns_need() -> None:
    wide = dataclasses.replace(_machine("x86_64"), isa="avx512", vector_bits=512, registers=32)
    tile = choose_tile(wide, 196, 24)
    assert [tile.lanes_of(columns) for columns in (1, 4, 5, 8, 9, 16, 24)] == [4, 4, 8, 8, 16, 16, 16]
    assert choose_tile(_machine("x86_64"), 196, 12).lanes_of(4) == 8


def test_columns_of_several_short_vectors_are_packed_for_many_rows() -> None:
    machine = _machine("x86_64")

    def packed(rows: int, columns: int) -> bool:
        tile = choose_tile(machine, rows, columns).in_one()
        return Panels(tile, rows, columns, 50, 1, columns, NO_RANGES).packed

    assert packed(50, 7)
    assert not packed(50, 8)
    assert not packed(50, 9)
    assert not packed(12, 7)


def test_llvm_makes_no_gathers_and_scatters_on_avx512() -> None:
    for variant, plain in (("v3", False), ("v4", True)):
        target = load_target("x86_64").for_variant(variant)
        found = "prefer-no-scatter" in str(tvm_target(target).attrs.get("mattr"))
        assert found == plain
        assert "prefer" not in str(tvm_target(target, lowering=True).attrs.get("mattr"))


def test_tiles_on_avx512_where_x_comes_from_outside() -> None:
    wide = dataclasses.replace(_machine("x86_64"), vector_bits=512, registers=32, l2_bytes=1 << 20)
    assert tile_size(wide, _depthwise(112, 32, 3)) == (4, 4)
    assert tile_size(wide, _depthwise(14, 384, 3)) is None


@pytest.mark.parametrize("name", TARGETS)
def test_chunks_of_channels_leave_lines_in_the_first_cache(name: str) -> None:
    machine = _machine(name)
    lanes = machine.lanes("float32")
    for size, channels, kernel in ((7, 640, 3), (7, 320, 5), (5, 480, 7), (9, 155, 3), (14, 320, 3)):
        conv = _depthwise(size, channels, kernel)
        vectors = chunk_vectors(machine, conv)
        read = kernel * conv.width + kernel * kernel
        if vectors:
            assert vectors * lanes < channels
            assert vectors * lanes * 4 * read <= machine.l1_bytes
    assert chunk_vectors(machine, _depthwise(5, 16, 3)) == 0  # all of them fit
    assert chunk_vectors(machine, _depthwise(112, 512, 3)) == 0  # far away
    assert chunk_vectors(machine, _depthwise(5, 480, 3)) > 0


def test_pixels_lie_apart_where_they_share_sets_of_the_cache() -> None:
    wide = dataclasses.replace(_machine("x86_64"), vector_bits=512)
    assert [pixel_gap_of(wide, channels, "float32") for channels in (64, 128, 144, 384, 1024)] == [
        0,
        16,
        0,
        16,
        16,
    ]
    assert pixel_gap_of(wide, 512, "int8") == 64
    assert [pixel_gap_of(_machine("x86_64"), n, "float32") for n in (128, 512, 1024)] == [
        0,
        0,
        16,
    ]


def test_chunks_of_what_comes_from_further_away_are_whole_cache_lines() -> None:
    wide = dataclasses.replace(
        _machine("x86_64"), isa="avx512", vector_bits=512, registers=32, l1_bytes=48 << 10, l2_bytes=1 << 20
    )
    assert chunk_vectors(wide, _depthwise(80, 96, 3)) == 1
    assert chunk_vectors(wide, _depthwise(160, 240, 5)) == 1  # lines stay in the second cache
    assert chunk_vectors(wide, _depthwise(160, 480, 5)) == 2
    assert chunk_vectors(wide, _depthwise(56, 128, 3)) == 0  # eight columns share the sets of a cache line
    assert chunk_vectors(wide, _depthwise(320, 16, 3)) == 0
    assert chunk_vectors(_machine("x86_64"), _depthwise(80, 96, 3)) == 0


def test_lines_of_a_distant_cache_are_read_in_order() -> None:
    near = dataclasses.replace(
        _machine("x86_64"), isa="avx512", vector_bits=512, registers=32, l1_bytes=48 << 10, l2_bytes=1 << 20
    )
    distant = dataclasses.replace(near, l2_bytes=2 << 20)
    for conv in (_depthwise(56, 96, 3, 2), _depthwise(56, 144, 3), _depthwise(80, 480, 5)):
        assert chunk_vectors(near, conv) > 0
        assert chunk_vectors(distant, conv) == 0
    assert tile_size(distant, _depthwise(56, 128, 3)) == (
        4,
        4,
    )  # x and the result together exceed the L2 cache
    assert tile_size(distant, _depthwise(28, 192, 3)) is None
    assert chunk_vectors(distant, _depthwise(28, 192, 3)) > 0
