"""Operands and results of rank 0 to 5 in every family of kernels, against ONNX Runtime.

Many graphs are one program: that is one import and one call of the compiler.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.golden.reference import open_reference
from symbolic import Array, write

from .programs import Program
from .rank_cases import cases, save

CASES = {rest: list(cases(rest)) for rest in (False, True)}
OUTPUTS = {rest: [f"{c.name}: {name}" for c in made for name in c.outputs] for rest, made in CASES.items()}
Results = dict[str, tuple[Array, Array]]


def computed(rest: bool, folder: Path) -> Results:
    """Of the gate's cases, or of the rest, by output what Kiln computes, and what ONNX Runtime does."""
    inputs, expected = save(CASES[rest], folder / "m.onnx")
    outputs = Program(folder / "m.onnx", optimise=rest).run(inputs)
    return dict(zip(OUTPUTS[rest], zip(outputs, expected, strict=True), strict=True))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return computed(False, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def results_of_the_rest(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return computed(True, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("output", OUTPUTS[False])
def test_every_rank(output: str, results: Results) -> None:
    agree(*results[output])


@pytest.mark.heavy
@pytest.mark.parametrize("output", OUTPUTS[True])
def test_the_other_ranks(output: str, results_of_the_rest: Results) -> None:
    agree(*results_of_the_rest[output])


def agree(ours: Array, theirs: Array) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_numbers_from_dynamic_shapes(tmp_path: Path) -> None:
    """Whole tensors reduced to one number, which rows, tiles, products and conditions then read."""
    text = """g (float[n,40] x, float[40,n] t, float s, bool c) => (
      float m, float[n,40] scaled, float[40,n] turned, float[n,n] product, float[n] row, float chosen,
      float[n] joined, float[n,40] soft) {
      m = ReduceMax<keepdims = 0>(x)
      d = Div(x, m)
      e = Equal(x, m)
      scaled = Where(e, s, d)
      turned = Transpose<perm = [1, 0]>(scaled)
      p = MatMul(x, t)
      q = Mul(p, s)
      product = Add(q, m)
      r = ReduceMean<keepdims = 0, axes = [1]>(x)
      row = Sub(r, s)
      total = ReduceSum<keepdims = 0>(row)
      chosen = Where(c, total, s)
      joined = Mul(row, chosen)
      z = Mul(x, s)
      soft = Softmax<axis = -1>(z)
    }"""
    path = write(tmp_path / "m.onnx", text)
    program, reference = Program(path, {"n": (1, 70)}), open_reference(path)
    rng = np.random.default_rng(3)
    for n in (1, 2, 23, 70):
        shapes: list[tuple[int, ...]] = [(n, 40), (40, n), ()]
        inputs = [np.asarray(rng.uniform(0.2, 2, shape), "f4") for shape in shapes]
        inputs.append(np.asarray(n % 2 == 0))
        for ours, theirs in zip(program.run(inputs, {"n": n}), reference.run(inputs), strict=True):
            agree(ours, theirs)
