"""Convolutions and dense layers on 8-bit integers by the families that gather rows: every bit of the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.kernels import families
from kiln.kernels.cpu import conv2d_magnitudes, conv2d_pairs, conv2d_widened
from kiln.tir.builder import Packing
from tvm.relax import op

from . import arithmetic
from .int8_cases import Case, data_of, expression_of, sums_of
from .lowered import Array, Compiled, const, module, runnable, runnable_alone
from .test_kernels_symbolic import Lowered, build

CASES = [
    Case((1, 11, 11, 16), (1, 1, 16, 24), "uint8"),
    Case((1, 12, 13, 5), (1, 1, 5, 33)),
    Case((2, 20, 19, 8), (3, 3, 8, 17), "uint8", stride=2, w="wide"),
    Case((1, 16, 15, 6), (2, 3, 6, 40), dilation=2),
    Case((1, 17, 17, 3), (7, 7, 3, 16), "uint8", x="most", w="least"),
    Case((97, 64), (64, 8)),
    Case((200, 19), (19, 70), "uint8", w="wide"),
    Case((19, 75), (75, 33), x="least", w="least_of_all"),
    Case((1, 9, 8, 32), (3, 3, 32, 20), x="most", w="least_of_all"),
    Case((5, 4), (4, 9), "uint8", x="least", w="least_of_all"),
    Case((2, 9, 11, 5), (3, 3, 5, 33), w="seven"),
    Case((1, 9, 11, 36), (1, 1, 36, 40), "uint8", w="seven"),
    Case((19, 75), (75, 33), "uint8", x="most", w="seven_most"),
    Case((7, 64), (64, 16), x="most", w="seven_least"),
]
LIMITS: dict[str, dict[str, Any]] = {
    "magnitudes": {"_LEAST": (0, 0), "_LEAST_OF_SEVEN_BITS": (0, 0)},
    "pairs": {"_LEAST_COLUMNS": 0, "_LEAST_DEPTH": 0},
    "widened": {"_LEAST_MACS": 0, "_LEAST_ROWS": 1},
}
MODULES = {"magnitudes": conv2d_magnitudes, "pairs": conv2d_pairs, "widened": conv2d_widened}
Made = Callable[..., list[Any]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Let a family take small convolutions too, in place of the others; returns the kernels that it makes.

    `columns`: the columns of a panel of weights, by the lanes of a vector; None: as the family chooses them.
    """

    def choose(name: str, columns: Callable[[int], int] | None = None) -> list[Any]:
        kernels: list[Any] = []
        chosen = MODULES[name]

        def make(*args: Any) -> Any:
            *group, machine = args
            if columns is not None:
                lanes = machine.lanes("int32")
                packing = Packing(columns(lanes), arrangement="groups", head_lanes=lanes)
                machine = replace(machine, packing=packing)
            kernels.append(chosen.make(*group, machine))
            return kernels[-1]

        others = [module.make for module in MODULES.values() if module is not chosen]
        listed = [family for family in families.FAMILIES if family.make not in others]
        listed = [replace(family, make=make) if family.make is chosen.make else family for family in listed]
        monkeypatch.setattr(families, "FAMILIES", listed)
        for limit, least in LIMITS[name].items():
            monkeypatch.setattr(chosen, limit, least)
        return kernels

    return choose


def _check(compiled: Compiled, data: list[tuple[Array, Array]]) -> None:
    for got, case, item in zip(compiled.run([x for x, _ in data]), CASES, data, strict=True):
        assert (got == sums_of(case, *item)).all(), case


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("magnitudes", "x86_64"),
        ("pairs", "x86_64"),
        ("widened", "x86_64"),
        *(pytest.param(family, "x86_64_v2", marks=pytest.mark.heavy) for family in MODULES),
    ],
)
def test_every_bit_of_the_sums(family: str, name: str, made: Made, tmp_path: Path) -> None:
    kernels = made(family)
    data = [data_of(case, seed) for seed, case in enumerate(CASES)]
    graph = module(
        [(x.shape, x.dtype.name) for x, _ in data],
        lambda *xs: [expression_of(case, x, w) for case, x, (_, w) in zip(CASES, xs, data, strict=True)],
    )
    compiled = Compiled(graph, runnable_alone(name), tmp_path).load()
    assert len(kernels) == len(CASES)
    _check(compiled, data)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.heavy) for name in ("v2", "v3", "v4")]
)
@pytest.mark.parametrize("family", MODULES)
def test_weights_that_a_variant_with_vnni_packs(
    family: str, variant: str, made: Made, tmp_path: Path
) -> None:
    kernels = made(family)
    target = runnable("x86_64_v2", variant)
    data = [data_of(case, seed) for seed, case in enumerate(CASES)]
    graph = module(
        [(x.shape, x.dtype.name) for x, _ in data],
        lambda *xs: [expression_of(case, x, w) for case, x, (_, w) in zip(CASES, xs, data, strict=True)],
    )
    _check(Compiled(graph, target, tmp_path, variant=variant).load(), data)
    assert kernels


@pytest.mark.parametrize("family", MODULES)
def test_tiles_across_panels_that_a_variant_with_narrower_tiles_packs(
    family: str, made: Made, tmp_path: Path
) -> None:
    """Panels of one vector of columns, where the family's own tile has several vectors."""
    kernels = made(family, lambda lanes: lanes // 2 if family == "pairs" else lanes)
    data = [data_of(case, seed) for seed, case in enumerate(CASES)]
    graph = module(
        [(x.shape, x.dtype.name) for x, _ in data],
        lambda *xs: [expression_of(case, x, w) for case, x, (_, w) in zip(CASES, xs, data, strict=True)],
    )
    _check(Compiled(graph, runnable_alone("x86_64"), tmp_path).load(), data)
    assert len(kernels) == len(CASES)


def test_tasks_with_a_residual_that_the_output_overwrites(tmp_path: Path) -> None:
    """Large enough without being told so; every residual is added once, also by the last tile of a block."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (1, 29, 29, 64)).astype("uint8")
    weights = rng.integers(-128, 128, (1, 1, 64, 84)).astype("int8")
    other = rng.integers(-(2**20), 2**20, (1, 29, 29, 84)).astype("int32")

    def body(image: Any, residual: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        sums = op.nn.conv2d(image, const(weights, "int8"), **layout, out_dtype="int32")
        return op.nn.relu(op.add(sums, op.negative(residual)))

    compiled = Compiled(
        module([(x.shape, "uint8"), (other.shape, "int32")], body), runnable_alone("x86_64"), tmp_path
    ).load()
    assert any(step.in_place for step in compiled.steps)
    assert any(compiled.kernels[step.kernel].parallel for step in compiled.steps)
    want = np.maximum(arithmetic.conv2d(x.astype("i8"), weights.astype("i8")) - other, 0)
    assert (compiled.run([x, other])[0] == want).all()


@pytest.mark.parametrize(
    "family", ["magnitudes", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("pairs", "widened"))]
)
def test_dynamic_sizes(family: str, made: Made, tmp_path: Path) -> None:
    kernels = made(family)
    rng = np.random.default_rng(9)
    weights = rng.integers(-128, 128, (3, 3, 6, 24)).astype("int8")

    def body(x: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        sums = op.nn.conv2d(op.astype(x, "int8"), const(weights, "int8"), **layout, out_dtype="int32")
        return op.astype(sums, "float32")

    lowered = Lowered(build([("m", "n", 11, 6)], body), "x86_64", tmp_path)
    assert kernels
    for batch, height in ((1, 3), (2, 4), (9, 40), (3, 17)):
        x = rng.integers(-128, 128, (batch, height, 11, 6))
        want = arithmetic.conv2d(x.astype("i8"), weights.astype("i8"))
        assert (lowered.run([x.astype("f4")], {"m": batch, "n": height}) == want).all(), (batch, height)
