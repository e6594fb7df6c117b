"""Winograd convolutions against numpy, with odd channels, sizes that no tile divides, and epilogues."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable

# Of the greatest output. Direct convolution keeps to 1e-5 (lowered.close).
TOLERANCE = {"f2": 1e-5, "f4": 1e-4}
CHANNELS = (1, 3, 7, 16, 17, 40)
SIZES = ((1, 1), (1, 5), (2, 2), (3, 3), (4, 4), (5, 2), (6, 7), (7, 7), (8, 12), (9, 1), (13, 15), (15, 14))
POLICIES = ("f2", "f4")
HEAVY = pytest.mark.heavy


def _convolution(x: Any, weights: Array, padding: list[int] | int = 1) -> Any:
    return relax.op.nn.conv2d(x, const(weights), padding=padding, data_layout="NHWC", kernel_layout="HWIO")


def _want(x: Array, weights: Array, padding: tuple[int, int, int, int] = (1, 1, 1, 1)) -> Array:
    return arithmetic.conv2d(x.astype("f8"), weights.astype("f8"), padding=padding)


def _grid() -> list[tuple[tuple[int, ...], int, tuple[int, int, int, int]]]:
    """(shape of x, outputs, padding): every size, every pair of channel counts at least once."""
    rng = np.random.default_rng(3)
    pairs = itertools.cycle(itertools.product(CHANNELS, CHANNELS))
    grid: list[tuple[tuple[int, ...], int, tuple[int, int, int, int]]] = []
    for height, width in [*SIZES, *SIZES]:
        channels, outputs = next(pairs)
        low = [0 if size > 3 else 1 for size in (height, width, height, width)]
        padding = [int(rng.integers(least, 3)) for least in low]
        shape = (int(rng.integers(1, 3)), height, width, channels)
        grid.append((shape, outputs, (padding[0], padding[1], padding[2], padding[3])))
    return grid


@pytest.mark.parametrize(
    ("target_name", "part", "step"),
    [
        ("x86_64", 0, 2),
        pytest.param("x86_64", 0, 1, marks=HEAVY),
        pytest.param("x86_64", 1, 1, marks=HEAVY),
        pytest.param("x86_64_v2", 0, 2, marks=HEAVY),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_grid_of_shapes(policy: str, target_name: str, part: int, step: int, tmp_path: Path) -> None:
    """Each part of the grid has every size once; of it every `step`th is taken."""
    rng = np.random.default_rng(1)
    halves = [shape for i, shape in enumerate(_grid()) if (i + i // len(SIZES) + part) % 2 == 0]
    grid = halves[::step]
    data = [rng.uniform(-1, 1, shape).astype("f4") for shape, _, _ in grid]
    kernels = [rng.uniform(-1, 1, (3, 3, shape[3], outputs)).astype("f4") for shape, outputs, _ in grid]

    def body(*xs: Any) -> list[Any]:
        return [
            _convolution(x, w, list(padding)) for x, w, (_, _, padding) in zip(xs, kernels, grid, strict=True)
        ]

    mod = module([(x.shape, "float32") for x in data], body)
    compiled = Compiled(mod, runnable(target_name), tmp_path, winograd=policy).load()
    assert "conv2d" not in compiled.families
    for x, weights, case, result in zip(data, kernels, grid, compiled.run(data), strict=True):
        try:
            close(result, _want(x, weights, case[2]), TOLERANCE[policy])
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("policy", [pytest.param("f2", marks=HEAVY), "f4"])
def test_weights_larger_than_the_cache_make_a_kernel_for_each_phase(policy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (1, 7, 9, 96)).astype("f4")
    weights = rng.uniform(-1, 1, (3, 3, 96, 77)).astype("f4")
    bias = rng.uniform(-1, 1, 77).astype("f4")

    def body(image: Any) -> Any:
        return relax.op.nn.relu(relax.op.add(_convolution(image, weights), const(bias)))

    compiled = Compiled(
        module([(x.shape, "float32")], body), runnable("x86_64"), tmp_path, winograd=policy
    ).load()
    assert compiled.families.count("winograd") == 3
    close(compiled.run([x])[0], np.maximum(_want(x, weights) + bias, 0), TOLERANCE[policy])


@pytest.mark.parametrize(
    ("policy", "channels"),
    [("f2", 8), ("f4", 72), pytest.param("f2", 72, marks=HEAVY), pytest.param("f4", 8, marks=HEAVY)],
)
def test_residual_that_the_output_overwrites(policy: str, channels: int, tmp_path: Path) -> None:
    """Each element is added once, also where tiles reach over the edge. 72 channels: three kernels."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (1, 6, 7, channels)).astype("f4")
    first = rng.uniform(-1, 1, (1, 1, channels, channels)).astype("f4")
    second = rng.uniform(-1, 1, (3, 3, channels, channels)).astype("f4")

    def body(image: Any) -> Any:
        residual = _convolution(image, first, 0)
        return relax.op.nn.relu(relax.op.add(_convolution(image, second), residual))

    compiled = Compiled(
        module([(x.shape, "float32")], body), runnable("x86_64"), tmp_path, winograd=policy
    ).load()
    assert any(step.in_place for step in compiled.steps)
    residual = _want(x, first, (0, 0, 0, 0))
    close(compiled.run([x])[0], np.maximum(_want(x, second) + residual, 0), TOLERANCE[policy])


def test_without_threads_there_is_one_kernel(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (1, 10, 10, 72)).astype("f4")
    weights = rng.uniform(-1, 1, (3, 3, 72, 72)).astype("f4")
    mod = module([(x.shape, "float32")], lambda image: _convolution(image, weights))
    compiled = Compiled(mod, runnable("x86_64"), tmp_path, threads="none", winograd="f4").load()
    assert compiled.families.count("winograd") == 1
    assert not any(kernel.parallel for kernel in compiled.kernels.values())
    close(compiled.run([x])[0], _want(x, weights), TOLERANCE["f4"])


@pytest.mark.parametrize(
    ("policy", "limit"),
    [pytest.param("off", 1e-5, marks=HEAVY), pytest.param("f2", 4e-6, marks=HEAVY), ("f4", 7e-5)],
)
def test_accuracy_as_stated(policy: str, limit: float, tmp_path: Path) -> None:
    """On data of unit scale, as kernels/cpu/winograd.py says."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1, 14, 14, 128)).astype("f4")
    weights = (rng.standard_normal((3, 3, 128, 32)) / np.sqrt(9 * 128)).astype("f4")
    mod = module([(x.shape, "float32")], lambda image: _convolution(image, weights))
    compiled = Compiled(mod, runnable("x86_64"), tmp_path, winograd=policy).load()
    assert np.abs(compiled.run([x])[0] - _want(x, weights)).max() <= limit
