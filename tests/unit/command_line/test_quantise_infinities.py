"""Quantising models with infinite elements and NaN, such as masks of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.command_line.quantise.improve import QuantiseOptions
from kiln.command_line.quantise.run import Goal, quantise
from kiln.command_line.quantise.search import snr_db
from kiln.golden.reference import open_reference
from networks import normal
from onnx import numpy_helper

# A mask of -inf is a constant; the masked scores are an output, and what a product reads.
MASKED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4,8] x) => (float[1,4,4] scores, float[1,4,8] y)
<float[8,8] v, float[8,8] w, float[8,8] u, float[4,4] mask>
{
    a = MatMul(x, v)  b = MatMul(x, w)  bt = Transpose<perm = [0,2,1]>(b)
    s = MatMul(a, bt)  scores = Add(s, mask)
    p = Softmax(scores)  c = MatMul(p, x)  y = MatMul(c, u)
}
"""


@pytest.mark.parametrize("all_integer", [False, True])
def test_masks_of_minus_infinity(all_integer: bool, tmp_path: Path) -> None:
    """Tensors with infinite elements stay in floats: a scale would be infinite, and every element NaN."""
    model, path = onnx.parser.parse_model(MASKED), tmp_path / "net.onnx"
    del model.graph.initializer[:]
    weights = normal(5, 0.4, v=(8, 8), w=(8, 8), u=(8, 8))
    weights["mask"] = np.triu(np.full((4, 4), -np.inf, "f4"), 1)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.save(model, str(path))
    x = np.random.default_rng(6).normal(size=(16, 4, 8)).astype("f4")
    np.savez(tmp_path / "data.npz", x=x)
    options = QuantiseOptions(equalise="no", correct_bias="no", all_integer=all_integer)
    result = quantise(str(path), tmp_path / "data.npz", tmp_path / "out.onnx", options)
    assert result.figures.snr > 25
    assert not result.warning
    got = open_reference(tmp_path / "out.onnx").run([x[:1]])
    assert (got[0][0] == -np.inf).tolist() == np.triu(np.full((4, 4), True), 1).tolist()
    scales = [numpy_helper.to_array(one) for one in onnx.load(str(tmp_path / "out.onnx")).graph.initializer]
    assert [one.shape for one in scales if not np.isfinite(one.astype("f4")).all()] == [(4, 4)]  # the mask


# Levels of the divisor are 0.02 and more apart.
DIVIDED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,8] x) => (float[1,8] y)
<float[8,8] v, float[8,8] w, float[8,8] u, float eps = {0.005}>
{
    a = MatMul(x, v)  b = MatMul(x, w)  n = Relu(b)  d = Add(n, eps)
    q = Div(a, d)  r = Relu(q)  y = MatMul(r, u)
}
"""


@pytest.mark.parametrize("all_integer", [False, True])
def test_divisors_that_round_to_zero(all_integer: bool, tmp_path: Path) -> None:
    """Divisors stay in floats; where they are to be integers, a goal leaves the node that makes them out."""
    model, path = onnx.parser.parse_model(DIVIDED), tmp_path / "net.onnx"
    weights = normal(5, 0.4, v=(8, 8), w=(8, 8), u=(8, 8))
    kept = [one for one in model.graph.initializer if one.name == "eps"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.save(model, str(path))
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(6).normal(size=(16, 8)).astype("f4"))
    options = QuantiseOptions(equalise="no", correct_bias="no", all_integer=all_integer)
    goal = Goal(min_snr=12) if all_integer else Goal()
    result = quantise(str(path), tmp_path / "data.npz", tmp_path / "out.onnx", options, goal)
    assert result.figures.snr > 12
    if all_integer:
        assert result.layers[0][1] == -np.inf
        assert result.layers[0][0] in result.kept


def test_ratio_of_values_that_are_not_finite() -> None:
    want = np.float32([1, np.inf, -np.inf, np.nan, 3])
    near = np.float32([1.1, np.inf, -np.inf, np.nan, 3])
    assert snr_db([near], [want]) == pytest.approx(30, abs=0.1)
    assert snr_db([want], [want]) == np.inf
    for place, other in ((1, -np.inf), (1, 7), (3, 0), (0, np.nan), (4, np.inf)):
        wrong = want.copy()
        wrong[place] = other
        assert snr_db([wrong], [want]) == -np.inf
