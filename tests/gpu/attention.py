"""A small model for the tests of libraries on a GPU: attention of n images' rows, dense layers around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, CLASSES = 5, 24, 9

_YAML = """\
source: {kind: file, path: ../attention.onnx}
format: onnx
inputs:
  x: {shape: [n, 5, 24], dtype: float32}
dims:
  n: {min: 1, max: 6, buckets: [1, {exact: 4}]}
golden:
  inputs:
    - {kind: normal, seed: 1}
    - {kind: random, seed: 2}
tolerance: {absolute: 1e-5, relative: 1e-4}
"""


def write(folder: Path) -> None:
    """models/attention.yaml and the model that it names, below `folder`."""
    random = np.random.default_rng(5)
    values: dict[str, Any] = {
        name: random.standard_normal(shape, np.float32) * 0.3
        for name, shape in {
            "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wv": (WIDTH, WIDTH), "wo": (WIDTH, WIDTH),
            "bq": (WIDTH,), "bo": (WIDTH,), "wc": (WIDTH, CLASSES), "bc": (CLASSES,),
        }.items()
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q0"]), node("Add", ["q0", "bq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]), node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["x", "wv"], ["v"]),
        node("MatMul", ["q", "kt"], ["s"]), node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["a"]),
        node("MatMul", ["a", "wo"], ["o0"]), node("Add", ["o0", "bo"], ["o1"]),
        node("Add", ["o1", "x"], ["o2"]), node("Relu", ["o2"], ["o"]),
        node("MatMul", ["o", "wc"], ["c0"]), node("Add", ["c0", "bc"], ["c1"]), node("Relu", ["c1"], ["y"]),
    ]  # fmt: skip
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", ROWS, width])]
        for name, width in (("x", WIDTH), ("y", CLASSES))
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "attention", *ports, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(folder / "attention.onnx"))
    (folder / "models" / "attention.yaml").write_text(_YAML, encoding="utf-8")
