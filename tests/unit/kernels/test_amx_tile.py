"""Tile registers of AMX: their sizes for a matmul, and the instructions that kernels get."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.lowered import const, module
from kiln.config import load_target
from kiln.kernels.cpu.amx_tile import Spacing, parts_of, tile_registers
from kiln.lower.pipeline import Lowering, lower
from tvm import relax


@pytest.mark.parametrize(
    ("run", "chunk", "rest"),
    [
        (16, 16, 0), (64, 64, 0), (96, 48, 0), (640, 64, 0), (576, 64, 0), (240, 60, 0),
        (68, 64, 4), (160, 64, 32), (184, 64, 56), (116, 64, 52),
    ],
)  # fmt: skip
def test_parts_of_a_run(run: int, chunk: int, rest: int) -> None:
    assert parts_of(run) == (chunk, rest)


@pytest.mark.parametrize(
    ("rows", "line", "run", "expected"),
    [
        (197, None, 64, 14), (49, None, 64, 7), (3136, None, 64, 15), (4, None, 16, 4), (196, 14, 64, 14),
        (1521, 39, 64, 13), (3, None, 64, None), (361, 19, 64, None), (9, None, 12, None),
        (9, None, 62, None),
    ],
)  # fmt: skip
def test_rows_of_a_register(rows: int, line: int | None, run: int, expected: int | None) -> None:
    """Few rows are left over; lines of an image are divided. None: vectors compute the sums."""
    found = tile_registers(rows, Spacing(64, line), run, True)
    assert (found and found.rows) == expected


@pytest.mark.parametrize(("dtype", "instruction"), [("int8", "tdpbssd"), ("uint8", "tdpbusd")])
def test_instructions_of_a_kernel(dtype: str, instruction: str) -> None:
    """The variant with AMX alone has them; what it sets up, it frees."""
    weights = np.ones((64, 32), "int8")
    mod = module(
        [((30, 64), dtype)], lambda x: [relax.op.matmul(x, const(weights, "int8"), out_dtype="int32")]
    )
    steps = lower(mod, Lowering("m", load_target("x86_64"), "pthread"))
    texts = {kernel.variant: str(steps.functions[kernel.symbol]) for kernel in steps.kernels}
    assert set(texts) == {None, "v3_vnni", "v4", "v4_vnni", "v4_amx"}
    for variant, text in texts.items():
        for name in (instruction, "ldtilecfg", "tilerelease"):
            assert (f"llvm.x86.{name}" in text) is (variant == "v4_amx"), (variant, name)
    assert "vpdpbusd" in texts["v4_vnni"]


def test_floats_have_one_kernel_for_a_width_of_vectors() -> None:
    """Variants with instructions for integers add no code to a model of floats, whatever its size."""
    weights = np.ones((3, 3, 1, 96), "f4")
    depthwise = {"groups": 96, "data_layout": "NHWC", "kernel_layout": "HWIO"}
    mod = module(
        [((1, 114, 114, 96), "float32")],
        lambda x: [relax.op.nn.conv2d(x, const(weights, "float32"), **depthwise)],
    )
    for target in ("x86_64", "windows_x86_64"):
        steps = lower(mod, Lowering("m", load_target(target), "pthread"))
        assert {kernel.variant for kernel in steps.kernels} == {None, "v4"}
