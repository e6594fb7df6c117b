"""Winograd convolutions on 8-bit integers: every bit of the sums, as direct convolution gives them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from . import arithmetic
from .lowered import Array, Compiled, const, module, runnable, runnable_alone
from .test_kernels_symbolic import Lowered, build

SIZES = ((3, 3), (3, 7), (4, 4), (5, 6), (6, 5), (9, 17), (17, 10))
CHANNELS, OUTPUTS = (4, 8, 12, 36, 64), (1, 5, 8, 17, 24, 33)


def _cases() -> Iterator[tuple[Array, Array]]:
    """(x, weights): every size with several counts of channels and outputs, then extreme numbers."""
    rng = np.random.default_rng(3)
    pairs = itertools.cycle(itertools.product(CHANNELS, OUTPUTS))
    for (height, width), dtype in itertools.product(SIZES, ("int8", "uint8")):
        channels, outputs = next(pairs)
        limits = np.iinfo(dtype)
        shape = (int(rng.integers(1, 3)), height, width, channels)
        x = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        yield x, rng.integers(-128, 128, (3, 3, channels, outputs)).astype("int8")
    # Sums of products that only just fit: all equal, and with the signs that make the transforms greatest.
    signs = np.outer((1, -1, 1), (1, -1, 1))[:, :, None, None]
    for channels, (dtype, most) in itertools.product((8, 1824), (("int8", -128), ("uint8", 255))):
        x = np.full((1, 4, 4, channels), most, dtype)
        yield x, np.full((3, 3, channels, 8), -128, "int8")
        yield x, (-127 * signs * np.ones((3, 3, channels, 8))).astype("int8")


def _conv(x: Any, weights: Array) -> Any:
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return op.nn.conv2d(x, const(weights, "int8"), **layout, out_dtype="int32")


def _sums(x: Array, weights: Array) -> Array:
    return arithmetic.conv2d(x.astype("i8"), weights.astype("i8")).astype("i4")


def _check(compiled: Compiled, cases: list[tuple[Array, Array]]) -> None:
    assert set(compiled.families) == {"winograd"}
    for got, (x, weights) in zip(compiled.run([x for x, _ in cases]), cases, strict=True):
        assert (got == _sums(x, weights)).all(), (x.shape, weights.shape, x.dtype)


def _module(cases: list[tuple[Array, Array]]) -> Any:
    return module(
        [(x.shape, str(x.dtype)) for x, _ in cases],
        lambda *xs: [_conv(x, weights) for x, (_, weights) in zip(xs, cases, strict=True)],
    )


@pytest.mark.parametrize(
    ("name", "step"),
    [("x86_64", 3), *(pytest.param(name, 1, marks=pytest.mark.heavy) for name in ("x86_64", "x86_64_v2"))],
)
def test_every_bit_of_the_sums(name: str, step: int, tmp_path: Path) -> None:
    """Every `step`th of the random cases, and the extreme ones."""
    cases = list(_cases())
    cases = cases[: 2 * len(SIZES) : step] + cases[2 * len(SIZES) :]
    _check(Compiled(_module(cases), runnable_alone(name), tmp_path, winograd="f2").load(), cases)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "variant", ["v2", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("v3", "v4"))]
)
def test_weights_that_a_variant_with_vnni_packs(variant: str, tmp_path: Path) -> None:
    target = runnable("x86_64_v2", variant).with_variants([variant, "v4_vnni"])
    cases = list(_cases())[:6]
    compiled = Compiled(_module(cases), target, tmp_path, winograd="f2", variant=variant).load()
    used = {compiled.kernels[step.kernel].family for step in compiled.steps}
    assert used == {"winograd"}
    for got, (x, weights) in zip(compiled.run([x for x, _ in cases]), cases, strict=True):
        assert (got == _sums(x, weights)).all(), (x.shape, weights.shape, x.dtype)


@pytest.mark.parametrize(("size", "channels"), [(28, 64), (7, 256)])
def test_tasks_and_what_follows(size: int, channels: int, tmp_path: Path) -> None:
    """Tasks share blocks of tiles, or columns of few tiles; with a bias, a residual and a relu.

    The estimate decides on the family.
    """
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (1, size + 2, size + 2, channels)).astype("uint8")
    weights = rng.integers(-128, 128, (3, 3, channels, 72)).astype("int8")
    bias, other = rng.integers(-(2**20), 2**20, 72), rng.integers(-(2**20), 2**20, (1, size, size, 72))

    def body(image: Any, residual: Any) -> Any:
        total = op.add(_conv(image, weights), const(bias.astype("int32"), "int32"))
        return op.nn.relu(op.add(total, residual))

    mod = module([(x.shape, "uint8"), (other.shape, "int32")], body)
    compiled = Compiled(mod, runnable_alone("x86_64"), tmp_path, winograd="auto").load()
    assert compiled.families == ["winograd"] and all(k.parallel for k in compiled.kernels.values())
    got = compiled.run([x, other.astype("int32")])[0]
    assert (got == np.maximum(_sums(x, weights) + bias + other, 0)).all()


@pytest.mark.parametrize(("channels", "policy"), [(1828, "f2"), (6, "f2"), (64, "off")])
def test_what_is_left_to_direct_convolution(channels: int, policy: str, tmp_path: Path) -> None:
    """Sums that could exceed 32 bits; channels that are no groups of four; a policy that forbids it."""
    x, weights = np.ones((1, 6, 6, channels), "int8"), np.ones((3, 3, channels, 16), "int8")
    compiled = Compiled(_module([(x, weights)]), runnable("x86_64"), tmp_path, winograd=policy)
    assert "winograd" not in compiled.families


@pytest.mark.heavy  # in the gate, test_kernels_symbolic.py has the algorithm at dynamic sizes in float32
def test_dynamic_sizes(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    weights = rng.integers(-128, 128, (3, 3, 16, 24)).astype("int8")

    def body(x: Any) -> Any:
        return op.astype(_conv(op.astype(x, "int8"), weights), "float32")

    lowered = Lowered(build([("m", "n", 11, 16)], body), "x86_64", tmp_path, winograd="f2")
    assert "winograd" in {kernel.family for kernel in lowered.kernels.values()}
    for batch, height in ((1, 3), (2, 4), (9, 40), (3, 17)):
        x = rng.integers(-128, 128, (batch, height, 11, 16))
        got = lowered.run([x.astype("f4")], {"m": batch, "n": height})
        assert (got == _sums(x, weights)).all(), (batch, height)
