"""Convolutions and dense layers on 8-bit integers: every bit of the int32 sums, on every instruction set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.kernels.cpu.gemm_int8 import MatmulSize, integer_product, magnitude, merged
from kiln.kernels.cpu.gemm_tile import Loop, doubled_tile, doubles
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.lower.pipeline import machine_of
from kiln.tir.builder import Machine

from .fenced_products import TARGETS, differing, own
from .int8_cases import CASES, GRIDS, TILE_CASES, Case, data_of, expression_of, sums_of
from .lowered import module

# Targets that multiply by the same method divide the gate's cases of random numbers between them.
DIVIDED = {"x86_64": 0, "x86_64_v2": 1, "aarch64": 0, "armv7": 1, "avx_vnni": 0, "avx512_vnni": 1,
           "aarch64_a76": 0, "aarch64_i8mm": 1, "rvv128": 0, "rvv256": 1,
           "sve256": 0, "wasm32": 0}  # fmt: skip
# The gate has other targets that multiply by the same method; for WebAssembly zig would build a C library.
# SSE 4.2 is in test_kernels_variants.py.
HEAVY = ("x86_64_v2", "avx_vnni", "avx512", "aarch64", "aarch64_dotprod", "aarch64_base", "rvv128", "rvv256",
         "rv64gc", "wasm32", "sve256", "sve256_longer", "sve512")  # fmt: skip


def _cases_of(name: str, grid: str) -> list[Case]:
    """The cases of a target: in the gate those of extreme numbers and its share of the others."""
    if name == "amx":
        return TILE_CASES if grid == "gate" else CASES
    shared = [case.x == case.w == "random" for case in GRIDS["gate"]]
    own = [not shared[i] or i % 2 == DIVIDED.get(name, i % 2) for i in range(len(shared))]
    if grid == "gate":
        return [case for case, mine in zip(GRIDS["gate"], own, strict=True) if mine]
    return GRIDS["rest"] + [case for case, mine in zip(GRIDS["gate"], own, strict=True) if not mine]


@pytest.mark.parametrize("grid", ["gate", pytest.param("rest", marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if name in HEAVY else name for name in TARGETS]
)
def test_sums_are_exact(name: str, grid: str, tmp_path: Path) -> None:
    cases = _cases_of(name, grid)
    data = [data_of(case, seed) for seed, case in enumerate(cases)]
    given = [array for case, item in zip(cases, data, strict=True) for array in item[: 1 + case.runtime]]

    def body(*inputs: Any) -> list[Any]:
        rest = iter(inputs)
        return [
            expression_of(case, next(rest), next(rest) if case.runtime else w)
            for case, (_, w) in zip(cases, data, strict=True)
        ]

    mod = module([(one.shape, one.dtype.name) for one in given], body)
    expected = [sums_of(case, *item) for case, item in zip(cases, data, strict=True)]
    wrong = differing(name, mod, [(*item, want) for item, want in zip(data, expected, strict=True)], tmp_path)
    assert not [cases[number] for number in wrong]


def test_two_rows_in_one_register(tmp_path: Path) -> None:
    """64-bit cores without vectors: the sums of two rows at their ends, and of an odd number of rows."""
    name, machine = "rv64gc", _machine("rv64gc")
    assert doubles(machine, ["uint8", "int8"], "int32", 2)
    assert not doubles(machine, ["float32", "float32"], "float32", 2)
    assert doubled_tile(machine, 5, 30).rows == 4
    cases = [
        Case((5, 700), (700, 6), "uint8", x="most", w="least_of_all"),
        Case((3, 700), (700, 5), "int8", x="least", w="least_of_all"),
        Case((1, 5, 4, 7), (3, 2, 7, 9), "uint8", w="wide"),
        Case((1, 6, 5, 6), (2, 2, 3, 10), "int8", stride=2, groups=2),
        Case((2, 9), (9, 12), "int8", w="int16"),
    ]
    data = [data_of(case, seed) for seed, case in enumerate(cases)]
    given = [x for x, _ in data]

    def body(*inputs: Any) -> list[Any]:
        return [expression_of(case, x, w) for case, x, (_, w) in zip(cases, inputs, data, strict=True)]

    mod = module([(one.shape, one.dtype.name) for one in given], body)
    expected = [sums_of(case, *item) for case, item in zip(cases, data, strict=True)]
    wrong = differing(name, mod, [(*item, want) for item, want in zip(data, expected, strict=True)], tmp_path)
    assert not [cases[number] for number in wrong]


def _machine(name: str) -> Machine:
    return machine_of(own(name), "pthread")


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("x86_64", ("sign", None)),
        ("x86_64_v2", ("sign", None)),
        ("avx_vnni", ("vnni", "vnni")),
        ("avx512_vnni", ("vnni", "vnni")),
        ("amx", ("vnni", "vnni")),
        ("avx512", ("sign", None)),
        ("aarch64", ("mull", "mull")),
        ("aarch64_a76", ("sdot", "sdot")),
        ("aarch64_i8mm", ("smmla", "smmla")),
        ("sve256", ("sdot", "sdot")),
        ("armv7", ("mull", "mull")),
        ("rvv128", (None, None)),
        ("wasm32", ("dot", "dot")),
    ],
)
def test_the_method_follows_from_the_target(name: str, methods: tuple[str | None, str | None]) -> None:
    """With weights above -128, and with -128 among them."""
    found = [
        integer_product(_machine(name), ("int8", "int8"), small, MatmulSize(9, 20, [Loop(64, 1)], 9))
        for small in (True, False)
    ]
    assert tuple(item and item.method for item in found) == methods


def test_what_is_left_to_the_general_product() -> None:
    machine = _machine("x86_64")

    def found(dtypes: tuple[str, str], depth: int) -> object:
        size = MatmulSize(9, 20, [Loop(3, 90), Loop(depth, 1)], 9)
        return integer_product(machine, dtypes, True, size)

    assert found(("int8", "int8"), GROUP) is not None
    assert found(("uint8", "int8"), GROUP) is not None
    assert found(("int8", "int8"), GROUP - 1) is None
    assert found(("int8", "int16"), GROUP) is None
    assert found(("float32", "float32"), GROUP) is None


def test_runs_join_the_loops_that_lie_together() -> None:
    """An NHWC image of 10 columns by 4 channels under a 3x3 kernel; then one as wide as the image."""
    assert merged([Loop(3, 40), Loop(3, 4), Loop(4, 1)]) == (Loop(3, 40), Loop(12, 1))
    assert merged([Loop(3, 80), Loop(3, 8), Loop(4, 1)]) == (Loop(3, 80), Loop(3, 8), Loop(4, 1))
    assert merged([Loop(3, 40), Loop(10, 4), Loop(4, 1)]) == (Loop(120, 1),)
    assert merged([Loop(1, 40), Loop(1, 4), Loop(4, 1)]) == (Loop(4, 1),)
    assert merged([Loop(1, 1)]) == (Loop(1, 1),)


def test_narrow_weights() -> None:
    assert magnitude(np.array([-64, 64], "int8")) == magnitude(np.zeros(0, "int8")) == 64
    assert magnitude(np.array([-127, 65], "int8")) == magnitude(np.array([65], "int8")) == 127
    assert magnitude(np.array([-128, 127], "int8")) == magnitude(np.array([0], "int16")) == 128
