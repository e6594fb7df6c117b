"""Products that load the left operands of several steps of k together, as for 64-bit ARM, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.kernels.cpu import gemm, gemm_tile, panel_sums
from kiln.lower.pipeline import machine_of
from symbolic import Array, write

from . import test_kernels_long_attention as long_attention
from .lowered import Compiled, close, runnable_alone
from .programs import Program
from .test_kernels_variants import _floats

# Depths of products whose operands are both known only at run time: below, at and past multiples of 4.
DEPTHS = (3, 8, 37)


@pytest.fixture(autouse=True)
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """AVX2 takes left operands as 64-bit ARM does; the number of values of each load of them."""
    values: list[int] = []
    load = panel_sums.adjacent_lefts

    def counted(buffer: Any, offsets: Any, steps: int) -> Any:
        values.append(steps)
        return load(buffer, offsets, steps)

    monkeypatch.setitem(gemm_tile._LEFT_STEPS, ("avx2", 16), 4)
    for user in (panel_sums, gemm):
        monkeypatch.setattr(user, "adjacent_lefts", counted)
    yield values


def test_convolutions_and_dense_layers(loads: list[int], tmp_path: Path) -> None:
    mod, inputs, want = _floats()
    compiled = Compiled(mod, runnable_alone("x86_64"), tmp_path).load()
    for got, expected in zip(compiled.run(inputs), want, strict=True):
        close(got, expected)
    assert set(loads) == {4}


def test_half_precision(loads: list[int], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.uniform(-1, 1, shape).astype("f2") for shape in ((70, 24), (24, 31)))
    graph = "g (float16[70,24] x) => (float16[70,31] y) { y = MatMul(x, w) }"
    got = Program(write(tmp_path / "m.onnx", graph, 17, w=w), optimise=True).run([x])[0]
    assert np.abs(got.astype("f8") - x.astype("f8") @ w.astype("f8")).max() < 4e-3
    assert set(loads) == {4}


def test_depths_that_are_no_multiples(loads: list[int], tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    nodes = " ".join(f"y{k} = MatMul(a{k}, b{k})" for k in (*DEPTHS, "n"))
    sizes = ", ".join(f"float[2,11,{k}] a{k}, float[2,{k},19] b{k}" for k in (*DEPTHS, "n"))
    results = ", ".join(f"float[2,11,19] y{k}" for k in (*DEPTHS, "n"))
    path = write(tmp_path / "m.onnx", f"g ({sizes}) => ({results}) {{ {nodes} }}", 17)
    program = Program(path, {"n": (1, 40)}, optimise=True)
    for n in (1, 4, 39):
        inputs: list[Array] = []
        for depth in (*DEPTHS, n):
            inputs += [rng.uniform(-1, 1, shape).astype("f4") for shape in ((2, 11, depth), (2, depth, 19))]
        for number, got in enumerate(program.run(inputs, {"n": n})):
            a, b = inputs[2 * number : 2 * number + 2]
            close(got, a.astype("f8") @ b.astype("f8"))
    assert set(loads) == {4}


def test_attention_of_long_sequences(loads: list[int], tmp_path: Path) -> None:
    """Adjacent keys are loaded together, too: six rows of weights by four and two."""
    long_attention.plain("x86_64", tmp_path)
    assert {2, 4} <= set(loads)


@pytest.mark.parametrize(
    ("name", "steps"), [("aarch64", 4), ("aarch64_a53", 4), ("armv7", 1), ("riscv64", 1)]
)
def test_targets_whose_multiply_adds_select_a_lane(name: str, steps: int) -> None:
    tile = gemm_tile.choose_tile(machine_of(load_target(name), "pthread"), 196, 256)
    assert tile.left_steps == steps
    # The sums, the left operands and a row of weights, in 32 registers.
    assert tile.rows * tile.vectors + tile.rows + tile.vectors <= 32 or steps == 1
