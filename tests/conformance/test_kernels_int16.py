"""Convolutions and dense layers on 16-bit integers: every bit of sums of 32 and 64 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.kernels.cpu.gemm_pairs import ARRANGEMENT, pair_product, pairs_together
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.lower.pipeline import machine_of
from kiln.tir.builder import Packing
from tvm import relax

from . import arithmetic
from .fenced_products import TARGETS, differing, own
from .lowered import Array, const, module

# The gate has AVX2, AVX-512 with and without VNNI, and NEON.
HEAVY = ("x86_64_v2", "armv7", "wasm32", "rvv128", "rv64gc", "avx_vnni", "aarch64_base", "sve256")
NAMES = ("x86_64", "avx512", "avx512_vnni", "aarch64", *HEAVY)


@dataclass(frozen=True)
class Case:
    """A product of `shape` by `weights`, as in int8_cases.py, of types `x` and `w`, with sums of type `sums`.

    `values`: random; or least, the least of both types, whose products are the greatest; or most, the
    least by the greatest; or small, random weights of which eight products fit 32 bits; or few: four.
    """

    shape: tuple[int, ...]
    weights: tuple[int, ...]
    x: str = "int16"
    w: str = "int16"
    sums: str = "int64"
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    values: str = "random"
    runtime: bool = False  # the weights are an input, too


def _cases() -> list[Case]:
    shapes = [
        Case((7, 48), (48, 37)), Case((5, 1025), (1025, 9)),  # more products of int8 than 32 bits hold
        Case((1, 33), (33, 21)), Case((3, 2), (2, 5)), Case((3, 1), (1, 9)),
        Case((1, 5, 7, 5), (3, 3, 5, 11)), Case((2, 6, 5, 6), (3, 2, 6, 18), stride=2),
        Case((1, 5, 5, 4), (2, 3, 2, 18), dilation=2, groups=2), Case((1, 2, 3, 530), (2, 1, 530, 3)),
    ]  # fmt: skip
    kinds = [
        ("int16", "int8", "int64"), ("int16", "int16", "int64"), ("int16", "int8", "int32"),
        ("uint8", "int16", "int64"), ("int16", "int16", "int32"), ("int8", "int16", "int32"),
    ]  # fmt: skip
    cases = [
        replace(case, x=kinds[position][0], w=kinds[position][1], sums=kinds[position][2])
        for number, case in enumerate(shapes)
        for position in (number % 2, 2 + number % 4)
    ]
    for number, values in enumerate(("least", "most", "small", "few")):
        cases += [replace(shapes[index], values=values) for index in (number % 2, 5 + number % 3)]
        cases.append(replace(shapes[1], w="int8", values=values))
    runtime = [replace(shape, runtime=True) for shape in shapes[:5]]
    for number, values in enumerate(("random", "least", "most")):
        cases += [replace(runtime[index], values=values) for index in (number, 4 - number)]
    cases += [replace(runtime[0], w="int8"), replace(runtime[2], x="uint8"), replace(runtime[1], x="int8")]
    # Depthwise, with lines of eight sums.
    return [*cases, Case((1, 4, 10, 20), (2, 3, 1, 20), groups=20)]


CASES = _cases()


def _data(case: Case, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x, w = np.iinfo(case.x), np.iinfo(case.w)
    left = rng.integers(x.min, x.max + 1, case.shape)
    right = rng.integers(w.min, w.max + 1, case.weights)
    if case.values in ("least", "most"):
        left[:], right[:] = x.min, w.min if case.values == "least" else w.max
    elif case.values != "random":
        right = right // (4 if case.values == "small" else 2) * (15 / 16)
        left[:1] = x.min
    return left.astype(case.x), right.astype(case.w)


def _expression(case: Case, x: Any, weights: Any) -> Any:
    kernel = weights if case.runtime else const(weights, str(weights.dtype))
    if len(case.shape) == 2:
        return relax.op.matmul(x, kernel, out_dtype=case.sums)
    return relax.op.nn.conv2d(
        x, kernel, strides=case.stride, dilation=case.dilation, groups=case.groups,
        data_layout="NHWC", kernel_layout="HWIO", out_dtype=case.sums,
    )  # fmt: skip


def _sums(case: Case, x: Array, weights: Array) -> Array:
    wide = x.astype("int64"), weights.astype("int64")
    if len(case.shape) == 2:
        return (wide[0] @ wide[1]).astype(case.sums)
    return arithmetic.conv2d(*wide, case.stride, dilation=case.dilation, groups=case.groups).astype(case.sums)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if name in HEAVY else name for name in NAMES]
)
def test_sums_are_exact(name: str, tmp_path: Path) -> None:
    """Also of int32 where they are beyond 32 bits: they wrap, as LiteRT's do."""
    data = [_data(case, seed) for seed, case in enumerate(CASES)]

    inputs = [array for case, item in zip(CASES, data, strict=True) for array in item[: 1 + case.runtime]]

    def body(*given: Any) -> list[Any]:
        rest = iter(given)
        return [
            _expression(case, next(rest), next(rest) if case.runtime else w)
            for case, (_, w) in zip(CASES, data, strict=True)
        ]

    mod = module([(one.shape, one.dtype.name) for one in inputs], body)
    given = [(x, w, _sums(case, x, w)) for case, (x, w) in zip(CASES, data, strict=True)]
    assert not [CASES[number] for number in differing(name, mod, given, tmp_path)]


def test_pairs_whose_sums_fit_32_bits() -> None:
    def found(*weights: int) -> int:
        return pairs_together(np.array(weights, "int16")[:, None])

    assert found(*[8191] * 9) == 4
    assert found(*[8192] * 9) == 2
    assert found(*[16384] * 9) == 1
    assert found(32767, -32767, 1, 1) == 1
    assert found(1, -32768, -32768) == 0
    assert found(-32768) == 4, "the only product"
    assert pairs_together(np.zeros((2, 2), "int8")) == 0
    assert [pairs_together(np.zeros(shape, "int16")) for shape in ((), (0,), (2, 0))] == [0, 0, 0]
    columns = np.array([[30000, 0], [0, 30000]] * 4, "int16")
    assert pairs_together(columns) == 2, "each column has sums of its own"


def test_the_method_follows_from_the_target() -> None:
    def method(name: str, sums: str, depth: int = 48) -> str | None:
        machine = machine_of(own(name), "pthread")
        found = pair_product(machine, ("int16", "int8", sums), 0, (Loop(depth, 1),), 9, 40)
        return found and found.method

    assert [method("x86_64", sums) for sums in ("int32", "int64")] == ["pairs", "pairs"]
    assert [method("aarch64", sums) for sums in ("int32", "int64")] == [None, "smlal"]
    assert [method("rvv128", sums) for sums in ("int32", "int64")] == [None, None]
    assert method("x86_64", "int32", 1) is None, "there are no pairs"
    assert method("aarch64", "int64", 1) == "smlal"
    vnni = pair_product(
        machine_of(TARGETS["avx512_vnni"](), "pthread"), ("int16", "int8", "int32"), 0, (Loop(8, 1),), 9, 40
    )
    assert vnni is not None and vnni.adds


def test_variants_share_the_packed_weights() -> None:
    """Panels of AVX-512 are read in narrower tiles; other arrangements are left to other kernels."""
    machine = machine_of(load_target("x86_64").for_variant("v3"), "pthread")

    def found(packing: Packing) -> Any:
        given = replace(machine, packing=packing)
        return pair_product(given, ("int16", "int16", "int64"), 1, (Loop(8, 1),), 9, 100)

    narrow = found(Packing(64, arrangement=ARRANGEMENT))
    assert narrow.tile.columns == 64 and narrow.tile.width == 16
    assert found(Packing(64)) is None
