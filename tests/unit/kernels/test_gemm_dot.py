"""Vectors of x in matmuls of int8 on microcontrollers."""

from __future__ import annotations

from kiln.config import load_target
from kiln.kernels.cpu.dot_packing import blocks_of
from kiln.kernels.cpu.gemm_dot import dot_product
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.lower.pipeline import machine_of


def test_groups_of_few_channels_fill_vectors_of_helium() -> None:
    """A 3x3 kernel on groups of 4 of 32 channels is three vectors, one for each of its rows, not nine."""
    machine = machine_of(load_target("cortex_m55"), "none", "auto")

    def vectors(size: int, channels: int, width: int, columns: int = 4) -> int:
        strides = width * 32, 32, 1
        runs = tuple(
            Loop(extent, stride) for extent, stride in zip((size, size, channels), strides, strict=True)
        )
        product = dot_product(machine, ("int8", "int8"), True, runs, 1, columns)
        assert product is not None
        return len(blocks_of(product.offsets))

    assert [vectors(3, 4, width) for width in (2, 3, 16)] == [3, 3, 3]
    assert vectors(3, 2, 16, columns=2) == 3
    assert vectors(5, 4, 16) == 10  # in place of 25
    assert vectors(3, 8, 16) == 0  # six in place of nine: each value of x would be loaded for each panel
    assert vectors(3, 16, 16) == 0  # a run is a vector
