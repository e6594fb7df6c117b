"""Softmax and normalisations of rows, of any length, with what surrounds them, against numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable

op = relax.op
SHAPES = [(5, 1), (2, 3), (3, 7), (4, 17), (2, 3, 5, 64), (9, 130), (1, 1000)]


def _deviation(x: Array, epsilon: float) -> Array:
    return np.asarray(np.sqrt(x.var(-1, keepdims=True) + epsilon))


def _operators(shape: tuple[int, ...]) -> dict[str, tuple[Any, Any]]:
    gamma, beta = np.linspace(0.5, 1.5, shape[-1], dtype="f4"), np.linspace(-1, 1, shape[-1], dtype="f4")
    return {
        "softmax": (lambda x: op.nn.softmax(x, -1), lambda x: arithmetic.softmax(x, -1)),
        "log_softmax": (lambda x: op.nn.log_softmax(x, -1), lambda x: np.log(arithmetic.softmax(x, -1))),
        "layer_norm": (
            lambda x: op.nn.layer_norm(x, const(gamma), const(beta), [-1], 1e-5),
            lambda x: (x - x.mean(-1, keepdims=True)) / _deviation(x, 1e-5) * gamma + beta,
        ),
        "rms_norm": (
            lambda x: op.nn.rms_norm(x, const(gamma), [-1], 1e-5),
            lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gamma,
        ),
    }


NAMES, TARGETS = ("softmax", "log_softmax", "layer_norm", "rms_norm"), ("x86_64", "x86_64_v2", "host")
IN_GATE = {("softmax", "x86_64_v2"), *zip(NAMES, ("host", "x86_64", "x86_64_v2", "x86_64"), strict=True)}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(*pair, marks=[] if pair in IN_GATE else [pytest.mark.heavy])
        for pair in itertools.product(NAMES, TARGETS)
    ],
)
def test_rows(name: str, target: str, tmp_path: Path) -> None:
    """The kernels of every shape, in one module; the outputs may overwrite the inputs."""
    rng = np.random.default_rng(3)
    inputs = [rng.uniform(-4, 4, shape).astype("f4") for shape in SHAPES]

    def body(*variables: Any) -> list[Any]:
        pairs = zip(variables, SHAPES, strict=True)
        return [_operators(shape)[name][0](op.add(x, x)) for x, shape in pairs]

    mod = module([(shape, "float32") for shape in SHAPES], body)
    compiled = Compiled(mod, runnable(target), tmp_path).load()
    assert compiled.families.count("rows") == len(SHAPES)
    for x, got in zip(inputs, compiled.run(inputs), strict=True):
        close(got, _operators(x.shape)[name][1](2 * x.astype("f8")), 2e-6)


def test_softmax_of_extreme_rows(tmp_path: Path) -> None:
    """Far apart, all equal, and masked with the least float32: no overflow, no NaN."""
    x = np.array([[-3e4, 0, 3e4, 7], [5, 5, 5, 5], [-3.4e38, 1, -3.4e38, 1]], "f4")
    mod = module([(x.shape, "float32")], lambda x: op.nn.softmax(x, -1))
    got = Compiled(mod, runnable("x86_64"), tmp_path).load().run([x])[0]
    close(got, arithmetic.softmax(x, -1), 1e-6)
    assert (got[2] == [0, 0.5, 0, 0.5]).all()


@pytest.mark.parametrize("target", ["host", pytest.param("x86_64_v2", marks=pytest.mark.heavy)])
def test_a_quantised_softmax_is_one_kernel(target: str, tmp_path: Path) -> None:
    """The exponentials do not fit into the memory of the levels; every length of a row."""
    shapes = [(3, 5, length) for length in (1, 7, 16, 61, 255, 256, 1030)]
    inputs = [np.random.default_rng(1).uniform(-6, 6, shape).astype("f4") for shape in shapes]

    def body(*xs: Any) -> list[Any]:
        scale, zero = const(1 / 256), const(-128, "int8")
        return [op.quantize(op.nn.softmax(x, -1), scale, zero, out_dtype="int8") for x in xs]

    compiled = Compiled(module([(x.shape, "float32") for x in inputs], body), runnable(target), tmp_path)
    assert compiled.families == ["rows"] * len(shapes)
    for got, x in zip(compiled.load().run(inputs), inputs, strict=True):
        want = arithmetic.softmax(x.astype("f8"), -1) * 256 - 128
        assert np.abs(np.clip(want, -128, 127) - got).max() <= 0.51


def test_softmax_along_another_axis_is_not_taken_for_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-3, 3, (3, 9, 5)).astype("f4")
    square = np.random.default_rng(1).uniform(-3, 3, (2, 4, 7, 7)).astype("f4")
    pair = [(x.shape, "float32"), (square.shape, "float32")]
    mod = module(pair, lambda x, y: [op.nn.softmax(x, 1), op.nn.softmax(y, 2), op.nn.log_softmax(y, 2)])
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    assert "rows" not in compiled.families
    got = compiled.run([x, square])
    close(got[0], arithmetic.softmax(x, 1), 2e-6)
    close(got[1], arithmetic.softmax(square, 2), 1e-6)
    close(got[2], np.log(arithmetic.softmax(square, 2)), 1e-6)
