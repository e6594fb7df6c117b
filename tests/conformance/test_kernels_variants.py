"""Kernels of the variants of a target: each gives the right result from parameters that are packed once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable

Case = tuple[Any, list[Array], list[Array]]  # a module, its inputs and the results
# x86-64: SSE 4.2, AVX2, AVX-512, AVX-512 with VNNI. The last packs the weights that all of them read. In the
# gate are the narrowest vectors and the last variant; other tests run AVX2, as the base of the target x86_64.
VARIANTS = [
    pytest.param(name, marks=pytest.mark.heavy) if name in ("v3", "v4") else name
    for name in load_target("x86_64_v2").variant_names
]


def _conv(x: Any, weights: Array, **attrs: Any) -> Any:
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return relax.op.nn.conv2d(x, const(weights, str(weights.dtype)), **layout, **attrs)


# (shape of x, weights HWIO, stride, groups): panels of one, two and three vectors, wide and narrow last ones.
FLOATS = [
    ((1, 5, 6, 7), (3, 3, 7, 33), 1, 1), ((1, 4, 4, 16), (1, 1, 16, 24), 1, 1),
    ((2, 6, 5, 8), (3, 3, 8, 48), 2, 1), ((1, 7, 7, 12), (1, 1, 12, 72), 1, 1),
    ((1, 5, 5, 6), (3, 3, 3, 68), 1, 2), ((1, 1, 1, 40), (1, 1, 40, 100), 1, 1),
    ((1, 9, 4, 3), (2, 3, 3, 5), 1, 1), ((1, 3, 3, 4), (1, 1, 4, 144), 1, 1),
]  # fmt: skip


def _floats() -> Case:
    """A module of convolutions and dense layers, its inputs and the results."""
    rng = np.random.default_rng(5)
    data = [rng.uniform(-1, 1, shape).astype("f4") for shape, *_ in FLOATS]
    kernels = [rng.uniform(-1, 1, weights).astype("f4") for _, weights, *_ in FLOATS]
    matrices = [rng.uniform(-1, 1, (20, n)).astype("f4") for n in (1, 17, 70)]
    rows = [rng.uniform(-1, 1, (count, 20)).astype("f4") for count in (1, 9, 3)]

    def body(*inputs: Any) -> list[Any]:
        images = zip(inputs, kernels, FLOATS, strict=False)
        found = [_conv(x, w, strides=case[2], groups=case[3]) for x, w, case in images]
        dense = zip(inputs[len(FLOATS) :], matrices, strict=True)
        return found + [relax.op.nn.relu(relax.op.matmul(x, const(w))) for x, w in dense]

    wide = [
        (x.astype("f8"), w.astype("f8"), *case[2:]) for x, w, case in zip(data, kernels, FLOATS, strict=True)
    ]
    want = [arithmetic.conv2d(x, w, stride=stride, groups=groups) for x, w, stride, groups in wide]
    want += [np.maximum(x.astype("f8") @ w, 0) for x, w in zip(rows, matrices, strict=True)]
    inputs = [*data, *rows]
    return module([(x.shape, "float32") for x in inputs], body), inputs, want


@functools.cache
def _steps(make: Callable[..., Case], *arguments: Any, winograd: str = "off") -> Steps:
    """The steps of a case for all variants of the target, lowered once."""
    return lower(make(*arguments)[0], Lowering("m", load_target("x86_64_v2"), "pthread", winograd=winograd))


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32(variant: str, tmp_path: Path) -> None:
    mod, inputs, want = _floats()
    target, lowered = runnable("x86_64_v2", variant), _steps(_floats)
    compiled = Compiled(mod, target, tmp_path, variant=variant, lowered=lowered).load()
    for got, expected in zip(compiled.run(inputs), want, strict=True):
        close(got, expected)


def _images() -> Case:
    """A module of convolutions for Winograd's algorithm, its inputs and the results."""
    rng = np.random.default_rng(6)
    shapes = [((1, 9, 7, 5), 40), ((1, 8, 8, 160), 77), ((2, 6, 6, 16), 17)]  # the second: three kernels
    data = [rng.uniform(-1, 1, shape).astype("f4") for shape, _ in shapes]
    kernels = [rng.uniform(-1, 1, (3, 3, shape[3], count)).astype("f4") for shape, count in shapes]

    def body(*inputs: Any) -> list[Any]:
        return [_conv(x, w, padding=1) for x, w in zip(inputs, kernels, strict=True)]

    pairs = zip(data, kernels, strict=True)
    want = [arithmetic.conv2d(x.astype("f8"), w.astype("f8"), padding=(1, 1, 1, 1)) for x, w in pairs]
    return module([(x.shape, "float32") for x in data], body), data, want


@pytest.mark.parametrize("policy", [pytest.param("f2", marks=pytest.mark.heavy), "f4"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.heavy
def test_winograd(variant: str, policy: str, tmp_path: Path) -> None:
    mod, inputs, want = _images()
    target, lowered = runnable("x86_64_v2", variant), _steps(_images, winograd=policy)
    compiled = Compiled(mod, target, tmp_path, variant=variant, lowered=lowered).load()
    assert "conv2d" not in compiled.families and "winograd" in compiled.families
    for got, expected in zip(compiled.run(inputs), want, strict=True):
        close(got, expected, 1e-4)


# Shapes of int8 and uint8 convolutions; with -128 among the weights, some instructions are not exact.
INTEGERS = [
    ((1, 5, 6, 8), (3, 3, 8, 33)), ((1, 4, 4, 19), (1, 1, 19, 70)), ((1, 1, 1, 22), (1, 1, 22, 130)),
    ((1, 6, 6, 3), (3, 3, 3, 16)),
]  # fmt: skip


def _integers(least: int) -> Case:
    """A module of convolutions of integers with weights from `least`, its inputs and the sums."""
    rng = np.random.default_rng(7)
    inputs, kernels = [], []
    for (shape, weights), dtype in itertools.product(INTEGERS, ("int8", "uint8")):
        limits = np.iinfo(dtype)
        inputs.append(rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
        kernels.append(rng.integers(least, 128, weights).astype("int8"))
        kernels[-1].flat[0] = least

    def body(*images: Any) -> list[Any]:
        return [_conv(x, w, out_dtype="int32") for x, w in zip(images, kernels, strict=True)]

    want = [arithmetic.conv2d(x.astype("i8"), w.astype("i8")) for x, w in zip(inputs, kernels, strict=True)]
    return module([(x.shape, str(x.dtype)) for x in inputs], body), inputs, want


@pytest.mark.parametrize("least", [-127, pytest.param(-128, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_integers(variant: str, least: int, tmp_path: Path) -> None:
    mod, inputs, want = _integers(least)
    target, lowered = runnable("x86_64_v2", variant), _steps(_integers, least)
    compiled = Compiled(mod, target, tmp_path, variant=variant, lowered=lowered).load()
    for got, expected in zip(compiled.run(inputs), want, strict=True):
        assert (got == expected).all()


def _params_bytes(steps: Steps) -> int:
    return sum(value.nbytes for value in steps.params.values())


@pytest.mark.parametrize("name", ["x86_64_v2", pytest.param("aarch64", marks=pytest.mark.heavy)])
def test_parameters_are_the_same_for_one_variant_and_for_all(name: str) -> None:
    """Byte for byte those of the last variant; in integers but for the heads of panels."""
    target = load_target(name)
    last = target.variant_names[-1]
    for case in ((_floats,), (_integers, -127)):
        mod = case[0](*case[1:])[0]
        shared = _steps(*case) if name == "x86_64_v2" else None
        everything = shared or lower(mod, Lowering("m", target, "pthread"))
        alone = lower(mod, Lowering("m", target.with_variants([last]), "pthread"))
        assert len(everything.params) == len(alone.params)
        assert _params_bytes(everything) <= 1.1 * _params_bytes(alone)
        assert {step.label for step in everything.steps} == {step.label for step in alone.steps}
        kernels = {kernel.symbol: kernel.variant or target.base for kernel in everything.kernels}
        for step in everything.steps:
            for variant, call in step.variants.items():
                order = target.variant_names
                assert order.index(kernels[call.kernel]) <= order.index(variant)


def test_kernels_that_gain_nothing_are_shared() -> None:
    """Kernels of AVX-512 serve its variant with VNNI, but for the products of integers."""
    assert {kernel.variant for kernel in _steps(_floats).kernels} == {None, "v3", "v4"}
    assert {kernel.variant for kernel in _steps(_integers, -127).kernels} == {None, "v3", "v4", "v4_vnni"}
