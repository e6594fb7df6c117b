"""docs/libraries.md: its files are written, its commands are run, and what they build is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.config import load_target
from kiln.device.hostcpu import obstacle
from kiln.files import read_json
from onnx import TensorProto, helper, numpy_helper
from scons_real import ROOT

from .building import Project

_FILE = re.compile(r"\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)```", re.DOTALL)
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def section(title: str) -> str:
    """The text of one heading of the page."""
    page = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def follow(project: Project, text: str) -> None:
    """Write the files of a text and run its commands, as a reader would."""
    for name, content in _FILE.findall(text):
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    tools = Path(sys.executable).parent
    environment = project.environment(PATH=f"{tools}:{os.environ['PATH']}")
    for commands in _COMMANDS.findall(text):
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=project.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def write_network(path: Path) -> None:
    """Two dense layers, of 8 to 16 and back, each with ReLU behind it."""
    draw = np.random.default_rng(5)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(draw.normal(0, 0.4, shape).astype("float32"), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [40, 8])],
        [tensor("w1", 8, 16), tensor("b1", 16), tensor("w2", 16, 8)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture
def at_home(project: Project) -> Project:
    reason = obstacle(load_target("x86_64"))
    if reason is not None:
        pytest.skip(f"x86_64: {reason}")
    write_network(project.folder / "net.onnx")
    return project


def test_a_library_of_ones_own(at_home: Project) -> None:
    follow(at_home, section("A library of your own"))
    bundle = at_home.build / "x86_64" / "net"
    (library,) = read_json(bundle / "manifest.json")["libraries"]
    assert (library["backend"], library["licence"], library["heap"]) == ("mine", "MIT", "none")
    assert library["subgraphs"] == ["dense 40x16 16x8", "dense 40x8 8x16"]
    assert (bundle / "lib" / "libmine.a").is_file() and len(
        list((bundle / "src").glob("kilnx_mine_*.c"))
    ) == 2
    results = read_json(at_home.build / ".stages/x86_64/net/test.json")
    assert all(o["error"] <= o["limit"] for vector in results["vectors"] for o in vector["outputs"])


def test_steering(at_home: Project) -> None:
    follow(at_home, section("Steer what is taken"))
    (library,) = read_json(at_home.build / "x86_64" / "steered" / "manifest.json")["libraries"]
    assert library["backend"] == "openblas" and library["subgraphs"] == ["dense 40x8 8x16 bias relu"]


def test_a_target_that_a_backend_does_not_serve(at_home: Project) -> None:
    text = (
        (ROOT / "targets" / "x86_64.yaml").read_text().replace("libraries: {}", "libraries: {openblas: gone}")
    )
    (at_home.folder / "targets" / "bare.yaml").write_text(text, encoding="utf-8")
    done = at_home.scons("target=bare", "model=net.onnx", "byoc=openblas")
    folder = at_home.folder / "targets" / "gone"
    line = f"kiln: error: byoc: backend 'openblas' for target 'bare': no folder '{folder}'\n"
    assert (done.returncode, done.stderr) == (2, line)
