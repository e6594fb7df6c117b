"""docs/libraries.md: its files are written, its commands are run, and what they build is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.files import read_json
from networks import normal, save_network
from onnx import helper
from scons_real import ROOT

from .building import Project
from .pages import follow, section


def write_network(path: Path) -> None:
    """Two dense layers, of 8 to 16 and back, each with a ReLU after it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = normal(5, 0.4, w1=(8, 16), b1=(16,), w2=(16, 8))
    save_network(path, nodes, {"x": [40, 8]}, {"y": [40, 8]}, weights)


@pytest.fixture
def with_network(at_home: Project) -> Project:
    write_network(at_home.folder / "net.onnx")
    return at_home


@pytest.mark.heavy
def test_a_library_of_ones_own(with_network: Project) -> None:
    follow(with_network, section("libraries.md", "A library of your own"))
    bundle = with_network.build / "x86_64" / "net"
    (library,) = read_json(bundle / "manifest.json")["libraries"]
    assert (library["backend"], library["licence"], library["heap"]) == ("mine", "MIT", "none")
    assert library["subgraphs"] == ["dense 40x16 16x8", "dense 40x8 8x16"]
    assert (bundle / "lib" / "libmine.a").is_file() and len(
        list((bundle / "src").glob("kilnx_mine_*.c"))
    ) == 2
    results = read_json(with_network.build / ".stages/x86_64/net/test.json")
    assert all(o["error"] <= o["limit"] for vector in results["vectors"] for o in vector["outputs"])


@pytest.mark.heavy  # the page's commands; tests/unit/byoc and test_byoc_golden.py do the same in the gate
def test_steering(with_network: Project) -> None:
    follow(with_network, section("libraries.md", "Choose the subgraphs"))
    (library,) = read_json(with_network.build / "x86_64" / "steered" / "manifest.json")["libraries"]
    assert library["backend"] == "openblas" and library["subgraphs"] == ["dense 40x8 8x16 bias relu"]


def test_a_target_that_a_backend_does_not_serve(with_network: Project) -> None:
    text = (
        (ROOT / "targets" / "x86_64.yaml").read_text().replace("libraries: {}", "libraries: {openblas: gone}")
    )
    (with_network.folder / "targets" / "bare.yaml").write_text(text, encoding="utf-8")
    done = with_network.scons("target=bare", "model=net.onnx", "byoc=openblas")
    folder = with_network.folder / "targets" / "gone"
    line = f"kiln: error: byoc: backend 'openblas' for target 'bare': no folder '{folder}'\n"
    assert (done.returncode, done.stderr) == (2, line)
