"""TfIdfVectorizer of numbers against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.errors import KilnError
from onnx import helper
from symbolic import imported, runner

# 1-grams, then 2-grams, then one 3-gram; columns in another order than the n-grams.
POOL = {"ngram_counts": [0, 3, 9], "pool_int64s": [2, 3, 5, 5, 4, 5, 6, 7, 8, 2, 3, 5]}
POOL["ngram_indexes"] = [1, 0, 2, 4, 3, 5, 6]
WEIGHTS = [0.5, 2.0, -1.0, 3.0, 1.5, 0.25, 4.0]


def write(path: Path, shape: Any, dtype: int = onnx.TensorProto.INT64, **changed: Any) -> Path:
    given = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, **POOL, **changed}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **given)
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def compare(path: Path, dims: Any, *rows: Any) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    run = runner(imported(path, dims)[0])
    for x in rows:
        [want] = session.run(None, {"x": x})
        [output] = run([x], {})
        np.testing.assert_allclose(output, want, rtol=1e-6)
        assert output.dtype == want.dtype and output.shape == want.shape


def items(*shape: int) -> Any:
    return np.random.default_rng(1).integers(2, 9, shape)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_skip_count": 5},
        {"mode": "TFIDF", "weights": WEIGHTS, "max_gram_length": 3, "max_skip_count": 1},
        {"mode": "IDF", "weights": WEIGHTS, "min_gram_length": 2},
        {"mode": "IDF", "min_gram_length": 3, "max_gram_length": 3},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_counts_of_n_grams(changed: dict[str, Any], tmp_path: Path) -> None:
    compare(write(tmp_path / "m.onnx", [2, 12], **changed), {}, items(2, 12))


def test_rows_of_dynamic_sizes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ["b", "n"], onnx.TensorProto.INT32, max_skip_count=2)
    rows = [items(*shape).astype("i4") for shape in ((1, 4), (3, 9))]
    compare(path, {"b": (1, 3), "n": (4, 9)}, *rows)


def test_a_row_alone_shorter_than_an_n_gram(tmp_path: Path) -> None:
    compare(write(tmp_path / "m.onnx", [1], max_skip_count=3), {}, np.array([5]))


def test_what_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ["n"], max_skip_count=2)
    with pytest.raises(KilnError, match="its rows of n items are shorter than an n-gram of 3 for some sizes"):
        imported(path, {"n": (2, 9)})
