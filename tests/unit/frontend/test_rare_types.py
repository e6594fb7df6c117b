"""Operators with element types for which TVM converts wrongly, fails, or returns another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from onnx.reference import ReferenceEvaluator
from symbolic import imported, runner, write

GRID = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 4, 5, 2))


def compare(path: Path, *inputs: Any) -> None:
    names = [value.name for value in onnx.load(path).graph.input]
    want = ReferenceEvaluator(str(path)).run(None, dict(zip(names, inputs, strict=True)))
    for ours, theirs in zip(runner(imported(path, {})[0])(inputs, {}), want, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint32"])
def test_shrink_of_integers(dtype: str, tmp_path: Path) -> None:
    text = f"g ({dtype}[7] x) => ({dtype}[7] y) {{ y = Shrink<lambd = 1.5, bias = 1.5>(x) }}"
    path = write(tmp_path / "m.onnx", text)
    [output] = runner(imported(path, {})[0])([np.array([0, 1, 2, 3, 4, 9, 20], dtype)], {})
    np.testing.assert_array_equal(output, np.array([0, 0, 0, 1, 2, 7, 18], dtype))  # towards zero
    if dtype == "int8":
        [output] = runner(imported(path, {})[0])([np.array([-1, -2, -3, -4, -9, -20, 2], dtype)], {})
        np.testing.assert_array_equal(output, np.array([0, 0, -1, -2, -7, -18, 0], dtype))


def test_equal_truth_values(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (bool[3,4] x, bool[4] z) => (bool[3,4] y) { y = Equal(x, z) }")
    rng = np.random.default_rng(1)
    compare(path, rng.random((3, 4)) < 0.5, rng.random(4) < 0.5)


@pytest.mark.parametrize(
    ("image", "grid", "mode"),
    [
        ("uint8", "float", "nearest"),
        ("bool", "float", "nearest"),
        ("float", "double", "linear"),
        ("double", "float", "linear"),
    ],
)
def test_samples_have_the_type_of_the_image(image: str, grid: str, mode: str, tmp_path: Path) -> None:
    text = f"g ({image}[1,2,3,4] x, {grid}[1,4,5,2] t) => ({image}[1,2,4,5] y) "
    path = write(tmp_path / "m.onnx", f'{text} {{ y = GridSample<mode = "{mode}">(x, t) }}', 20)
    dtypes = [{"float": "float32", "double": "float64"}.get(one, one) for one in (image, grid)]
    x = np.random.default_rng(2).uniform(0, 9, (1, 2, 3, 4))
    compare(path, (x > 4 if image == "bool" else x).astype(dtypes[0]), GRID.astype(dtypes[1]))


def test_truth_values_are_not_resized_by_weights(tmp_path: Path) -> None:
    text = 'g (bool[1,2,3,4] x) => (bool[1,2,6,8] y) { y = Resize<mode = "linear">(x, , scales) }'
    with pytest.raises(KilnError, match="mode linear of bool, allowed: numbers, or mode nearest"):
        imported(write(tmp_path / "m.onnx", text, scales=np.float32([1, 1, 2, 2])), {})
