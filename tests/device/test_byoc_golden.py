"""Models that libraries compute in part agree with their reference like those that Kiln computes alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper

from .building import Project

# Convolutions with residuals and clips; dense layers of fixed and of open sizes.
# The number: steps that are the library's, at the least.
PAIRS = [
    ("openblas", "x86_64", "mobilenet_v2", 35),
    ("openblas", "x86_64", "paraphrase_minilm_l3", 18),
    ("onednn", "x86_64", "mobilenet_v2", 53),
    ("onednn", "x86_64", "resnet18", 21),
    ("onednn", "x86_64", "vit_tiny", 74),
]
GATE = {("openblas", "mobilenet_v2")}
LICENCES = {
    "openblas": "BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
    "onednn": "Apache-2.0 AND BSD-3-Clause",
}
NEEDS = {"onednn": ("libgomp.so.1", "libstdc++.so.6")}  # GCC's, of the device


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "target", "model", "steps"),
    [pytest.param(*pair, marks=[] if pair[:3:2] in GATE else [pytest.mark.heavy]) for pair in PAIRS],
)
def test_models_agree_with_their_references(
    project: Project, backend: str, target: str, model: str, steps: int
) -> None:
    for name in NEEDS.get(backend, ()):
        try:
            ctypes.CDLL(name)
        except OSError:
            pytest.skip(f"{name}, which {backend} needs, is not on this machine")
    project.make(f"target={target}", f"model={model}", f"byoc={backend}", "test", "-j2")
    results = read_json(project.build / ".stages" / target / model / "test.json")
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
    manifest = read_json(project.build / target / model / "manifest.json")
    (library,) = manifest["libraries"]
    assert library["heap"] == "library"
    assert library["licence"].startswith(LICENCES[backend])
    assert (project.build / target / model / "licences" / f"{backend}.txt").is_file()
    plan = read_json(project.build / ".stages" / target / model / "plan" / "plan.json")
    external = {kernel["symbol"] for kernel in plan["kernels"] if "external" in kernel}
    taken = [step for bucket in plan["buckets"] for step in bucket["steps"] if step["kernel"] in external]
    assert len(taken) >= steps


def write_open_network(path: Path) -> None:
    """Two dense layers of an open number of rows, 24 to 40 and back, with bias, residual and ReLU."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = normal(7, 0.3, w1=(24, 40), b1=(40,), w2=(40, 24), b2=(24,))
    save_network(path, nodes, {"x": ["n", 24]}, {"y": ["n", 24]}, weights)


@pytest.mark.parametrize("target", ["aarch64", "armv7"])
def test_openblas_on_other_processors(project: Project, target: str) -> None:
    write_open_network(project.folder / "rows.onnx")
    text = """\
source: {kind: file, path: ../rows.onnx}
format: onnx
inputs: {x: {shape: [n, 24], dtype: float32}}
dims: {n: {min: 1, max: 100, buckets: [{exact: 1}]}}
"""
    (project.folder / "models" / "rows.yaml").write_text(text, encoding="utf-8")
    project.make(f"target={target}", "model=rows", "byoc=openblas", "test")
    results = read_json(project.build / ".stages" / target / "rows" / "test.json")
    assert {vector["bucket"] for vector in results["vectors"]} == {"n1", "dynamic"}
    (library,) = read_json(project.build / target / "rows" / "manifest.json")["libraries"]
    assert library["subgraphs"] == [
        "dense 1x24 24x40 bias relu", "dense 1x40 40x24 bias residual relu",
        "dense nx24 24x40 bias relu", "dense nx40 40x24 bias residual relu",
    ]  # fmt: skip
