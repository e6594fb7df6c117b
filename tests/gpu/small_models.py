"""Small models for the tests of libraries on a GPU, each of as many images as a run has.

attention     rows of 24 numbers: dense layers and products of activations
convolutions  images of 9x8 with 4 channels: convolutions, one after the other, with a residual
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from networks import save_network
from onnx import helper

_YAML = """\
source: {{kind: file, path: ../{name}.onnx}}
format: onnx
inputs:
  x: {{shape: [n, {shape}], dtype: float32}}
dims:
  n: {{min: 1, max: 6, buckets: {buckets}}}
golden:
  inputs:
    - {{kind: normal, seed: 1}}
    - {{kind: random, seed: 2}}
tolerance: {{absolute: 1e-5, relative: 1e-4}}
"""
_ROWS, _WIDTH, _CLASSES = 5, 24, 9


def write(folder: Path, buckets: str = "[1, {exact: 4}]") -> None:
    """models/<name>.yaml and the model that it names, below `folder`, for each of them."""
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
    square = dict.fromkeys(("wq", "wk", "wv", "wo"), (_WIDTH, _WIDTH))
    shapes = {**square, "bq": (_WIDTH,), "bo": (_WIDTH,), "wc": (_WIDTH, _CLASSES), "bc": (_CLASSES,)}
    _save(folder, buckets, "attention", nodes, shapes, [_ROWS, _WIDTH], [_ROWS, _CLASSES])
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a0"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Relu", ["a0"], ["a"]),
        node("Conv", ["a", "w2", "b2"], ["c0"], pads=[2, 1, 2, 1], dilations=[2, 1]),
        node("Relu", ["c0"], ["c"]),
        node("Conv", ["c", "w3", "b3"], ["d0"]),
        node("Add", ["d0", "a"], ["d1"]),
        node("Relu", ["d1"], ["d"]),
        node("Conv", ["d", "w4", "b4"], ["y"], pads=[0, 1, 0, 1]),
    ]
    shapes = {
        "w1": (12, 4, 3, 3), "b1": (12,), "w2": (12, 12, 3, 3), "b2": (12,),
        "w3": (12, 12, 1, 1), "b3": (12,), "w4": (7, 12, 1, 3), "b4": (7,),
    }  # fmt: skip
    _save(folder, buckets, "convolutions", nodes, shapes, [4, 9, 8], [7, 5, 8])


def _save(
    folder: Path,
    buckets: str,
    name: str,
    nodes: Any,
    shapes: dict[str, Any],
    given: list[int],
    made: list[int],
) -> None:
    random = np.random.default_rng(5)
    weights = {weight: random.standard_normal(shape, np.float32) * 0.3 for weight, shape in shapes.items()}
    save_network(folder / f"{name}.onnx", nodes, {"x": ["n", *given]}, {"y": ["n", *made]}, weights)
    text = _YAML.format(name=name, buckets=buckets, shape=", ".join(map(str, given)))
    (folder / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
