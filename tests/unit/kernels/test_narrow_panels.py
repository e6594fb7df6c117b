"""Panels of weights that processors with registers of several lengths share: few columns are padded."""

from __future__ import annotations

import numpy as np
import pytest
from kiln.config import load_target
from kiln.kernels.cpu.gemm_tile import choose_tile, fitted, narrowed
from kiln.lower.pipeline import Lowering, lower, machine_of
from kiln.tir.builder import Machine
from relaxed import const, module
from tvm import relax


def _machine(name: str, variant: str) -> Machine:
    return machine_of(load_target(name).for_variant(variant), "pthread", "off")


@pytest.mark.parametrize(
    ("name", "variant", "columns", "panel"),
    [
        ("riscv64", "rvv256", 40, 8),  # two panels of 24 would have 8 columns of zeros
        ("riscv64", "rvv256", 48, 24),
        ("riscv64", "rvv256", 1000, 24),  # 8 of 1008
        ("riscv64", "rvv256", 8, 8),
        ("aarch64_sve", "sve512", 40, 16),
        ("x86_64", "v4", 50, 32),
        ("aarch64", "base", 40, 12),
    ],
)
def test_panels_are_narrow_where_that_saves_padding(
    name: str, variant: str, columns: int, panel: int
) -> None:
    machine = _machine(name, variant)
    for rows in (1, 100):  # a weight of which buckets have one row and many is stored once
        tile = choose_tile(machine, rows, columns)
        narrow = narrowed(tile, columns, machine)
        assert (narrow.columns, narrow.width) == (panel, tile.width)


def test_a_tile_of_shorter_vectors_reads_two_narrow_panels() -> None:
    tile = choose_tile(_machine("riscv64", "rvv128"), 100, 40)
    assert (tile.rows, tile.vectors) == (8, 3)
    read = fitted(tile, 8, 40)
    assert (read.rows, read.vectors, read.adjacent) == (6, 2, 2)
    last = fitted(tile, 8, 8)  # there is no second panel
    assert (last.rows, last.vectors, last.adjacent) == (8, 2, 1)


def test_parameters_of_few_columns_are_as_large_with_all_variants_as_with_the_first() -> None:
    weights = const(np.random.default_rng(3).normal(size=(1, 1, 24, 40)).astype("float32"))
    mod = module(
        [((1, 6, 6, 24), "float32")],
        lambda x: relax.op.nn.conv2d(x, weights, data_layout="NHWC", kernel_layout="HWIO"),
    )
    mod["main"] = mod["main"].with_attr("num_input", 1)
    target = load_target("riscv64")
    stored = [
        sum(value.nbytes for value in lower(mod, Lowering("m", one, "pthread")).params.values())
        for one in (target, target.for_variant(target.base))
    ]
    assert stored == [24 * 40 * 4] * 2
