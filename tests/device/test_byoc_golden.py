"""Models with subgraphs that libraries compute agree with their reference."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper

from .building import Project

# Convolutions with residuals and clips; dense layers of fixed and of dynamic sizes.
# The number: steps that are the library's, at the least.
PAIRS = [
    ("openblas", "x86_64", "mobilenet_v2", 35),
    ("openblas", "x86_64", "paraphrase_minilm_l3", 18),
    ("onednn", "x86_64", "mobilenet_v2", 53),
    ("onednn", "x86_64", "resnet18", 21),
    ("onednn", "x86_64", "vit_tiny", 74),
]
LICENCES = {
    "openblas": "BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
    "onednn": "Apache-2.0 AND BSD-3-Clause",
}
NEEDS = {"onednn": ("libgomp.so.1", "libstdc++.so.6")}  # GCC's, of the device


@pytest.mark.heavy  # below a small network of each kind of layer
@pytest.mark.parametrize(
    ("backend", "target", "model", "steps"),
    PAIRS,
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


def write_convolutions(path: Path) -> None:
    """Convolutions of one pixel with bias and clip, and with residual, and a dense layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        helper.make_node("Conv", ["b", "w2", "b2"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    weights = normal(3, 0.3, w1=(24, 16, 1, 1), b1=(24,), w2=(24, 24, 1, 1), b2=(24,), w3=(24, 10), b3=(10,))
    limits = {"low": np.float32(0), "high": np.float32(6)}
    save_network(path, nodes, {"x": [1, 16, 9, 7]}, {"y": [1, 10]}, {**weights, **limits})


@pytest.mark.heavy
def test_convolutions_of_openblas(at_home: Project) -> None:
    write_convolutions(at_home.folder / "pixels.onnx")
    text = "source: {kind: file, path: ../pixels.onnx}\nbyoc: openblas\n"
    (at_home.folder / "models" / "pixels.yaml").write_text(text, encoding="utf-8")
    printed = at_home.make("target=x86_64", "model=pixels", "test")
    assert printed.count("max error") >= 3 and "FAILED" not in printed
    bundle = at_home.build / "x86_64" / "pixels"
    (library,) = read_json(bundle / "manifest.json")["libraries"]
    assert library["licence"].startswith(LICENCES["openblas"])
    assert (bundle / "licences" / "openblas.txt").is_file()
    assert sorted(key.split()[0] for key in library["subgraphs"]) == ["conv2d", "conv2d", "dense"]


def write_open_network(path: Path) -> None:
    """Two dense layers of a dynamic number of rows, 24 to 40 and back, with bias, residual and ReLU."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = normal(7, 0.3, w1=(24, 40), b1=(40,), w2=(40, 24), b2=(24,))
    save_network(path, nodes, {"x": ["n", 24]}, {"y": ["n", 24]}, weights)


@pytest.mark.heavy
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
