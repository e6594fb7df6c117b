"""A step of a decoder: its cache is empty at first; contents and sizes together have code of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper

from .building import Project

pytestmark = pytest.mark.slow

_YAML = """source: {kind: file, path: ../decoder.onnx}
inputs:
  past: {shape: [1, past, 8]}
  mask: {shape: [1, past]}
dims: {past: {min: 0, max: 9, buckets: [0]}}
special_cases:
  - all: [{input: mask, value: ones}, {dim: past, exact: 4}]
  - {input: mask, value: zeros}
golden: {inputs: [{kind: normal, seed: 1}]}
"""


def _multiply_adds(bucket: dict[str, Any]) -> int:
    return sum(step["macs"] for step in bucket["steps"])


@pytest.mark.heavy
def test_empty_cache_and_conditions_together(project: Project) -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["new"]),
        node("Unsqueeze", ["mask", "last"], ["wide"]),
        node("Mul", ["past", "wide"], ["kept"]),
        node("Concat", ["kept", "new"], ["present"], axis=1),
        node("Transpose", ["present"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["x", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present"], ["y"]),
        node("Transpose", ["kept"], ["across"], perm=[0, 2, 1]),
        node("MatMul", ["across", "past"], ["gram"]),
        node("ReduceSum", ["kept", "middle"], ["total"], keepdims=0),
    ]
    inputs = {"x": [1, 1, 8], "past": [1, "past", 8], "mask": [1, "past"]}
    outputs = {"y": [1, 1, 8], "present": [1, "now", 8], "gram": [1, 8, 8], "total": [1, 8]}
    weights = {**normal(1, 0.3, w=(8, 8)), "last": np.array([2]), "middle": np.array([1])}
    save_network(project.folder / "decoder.onnx", nodes, inputs, outputs, weights)
    (project.folder / "models/decoder.yaml").write_text(_YAML)
    printed = project.make("target=x86_64", "model=decoder", "test")
    assert "checks of repeated runs, guards and wrong arguments ok" in printed
    plan = read_json(project.build / ".stages/x86_64/decoder/plan/plan.json")
    cases = {bucket["name"]: bucket for bucket in plan["buckets"] if bucket["when"]}
    with_two_conditions = next(bucket for bucket in cases.values() if len(bucket["when"]["all"]) == 2)
    assert with_two_conditions["when"]["all"] == [
        {"dim": "past", "min": 4, "max": 4},
        {"input": 2, "value": "ones"},
    ]
    # Zeros are followed: the product of the cache with itself is not computed.
    zeros = next(bucket for bucket in cases.values() if bucket["when"]["all"][0].get("value") == "zeros")
    general = plan["buckets"][zeros["when"]["bucket"]]
    assert _multiply_adds(zeros) < _multiply_adds(general)
    assert not any(bucket["name"].startswith("past0_") for bucket in plan["buckets"])
    golden = read_json(project.build / "x86_64/decoder/golden/golden.json")
    tried = {vector["name"]: vector["dims"] for vector in golden["vectors"]}
    assert {"past": 0} in tried.values()
    assert any(name.endswith("case1") and sizes == {"past": 4} for name, sizes in tried.items())
    assert any(name.endswith("case2") for name in tried)
