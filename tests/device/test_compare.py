"""kiln compare and kiln evaluate as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kiln.command_line.compare.probes import write_probed
from kiln.config import load_model
from kiln.golden.reference import open_reference
from kiln.sources import fetch
from networks import save_network
from onnx import helper
from scons_real import lean_targets
from unit.command_line.test_compare import network

from .building import Project

ROOT = Path(__file__).resolve().parents[2]


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "build_tools" / "command.py"), "compare", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.heavy
def test_a_model_beside_its_reference(at_home: Project, tmp_path: Path) -> None:
    """On this machine as a device, which names the target and is found by its name."""
    network(tmp_path / "net.onnx")
    for name in ("devices", "targets"):
        (tmp_path / name).mkdir()
    lean_targets(tmp_path / "targets")
    local_device = f"target: x86_64\nfolder: {tmp_path}/device\ntransport: {{kind: local}}\n"
    (tmp_path / "devices" / "here.yaml").write_text(f"description: this machine\n{local_device}")
    np.savez(tmp_path / "x.npz", x=np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    done = compare(tmp_path, "net.onnx", "--device", "here", "--inputs", "x.npz")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("net on x86_64 (device 'here', ")
    assert done.stdout.splitlines()[-1] == "all 5 tensors are within their limits"
    result = json.loads((tmp_path / "build/.compare/x86_64/net/compare.json").read_text())
    assert [row["tensor"] for row in result["tensors"]] == ["scaled", "positive", "left", "right", "y"]
    assert [row["tensor"] for row in result["outputs"]] == ["y"]
    assert "build/x86_64/net.report.html: the graph, coloured by error" in done.stdout.splitlines()
    # The copies that were compared are no bundles for a user to find, and the model's own is not theirs.
    assert [path.name for path in (tmp_path / "build/x86_64").iterdir()] == ["net.report.html"]
    assert {"net", "net_probed"} <= {path.name for path in (tmp_path / "build/.copies/x86_64").iterdir()}
    assert 'value="error"' in (tmp_path / "build/x86_64/net.report.html").read_text()


def test_tensors_of_a_tflite_file_become_outputs(tmp_path: Path) -> None:
    source = fetch(load_model("resnet").source)
    probes = write_probed(source, tmp_path / "probed.tflite")
    assert [probe.op for probe in probes[:2]] == ["CONV_2D", "CONV_2D"]
    x = np.random.default_rng(1).integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)
    plain, probed = open_reference(source).run([x]), open_reference(tmp_path / "probed.tflite").run([x])
    assert len(probed) == len(probes)
    assert np.array_equal(probed[0], plain[0])
    assert len({value.tobytes() for value in probed}) > len(probes) // 2


@pytest.mark.heavy
def test_evaluate(at_home: Project, tmp_path: Path) -> None:
    """The bundle and the reference agree on random inputs; all outputs of the bundle are written."""
    x = np.random.default_rng(0).integers(-128, 128, (40, 32, 32, 3)).astype(np.int8)
    np.savez(tmp_path / "data.npz", input_1_int8=x, labels=np.arange(40) % 10)
    command = [sys.executable, str(ROOT / "build_tools" / "command.py"), "evaluate", "resnet"]
    command += ["--target", "x86_64", "--data", str(tmp_path / "data.npz")]
    command += ["--outputs", str(tmp_path / "outputs.npz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("resnet on x86_64: 40 samples, scores ")
    assert "the answers differ for 0 of 40 samples" in done.stdout
    assert np.load(tmp_path / "outputs.npz")["Identity_int8"].shape == (40, 1, 10)


@pytest.mark.heavy
def test_evaluate_a_model_with_state(at_home: Project, tmp_path: Path) -> None:
    """Each sample starts from the state that the sample before has left, at sizes that are all fixed."""
    nodes = [
        helper.make_node("Add", ["x", "h_in"], ["y"], name="add"),
        helper.make_node("Identity", ["y"], ["h_out"], name="keep"),
    ]
    save_network(
        tmp_path / "sum.onnx", nodes, {"x": [1, 4], "h_in": [1, 4]}, {"y": [1, 4], "h_out": [1, 4]}, {}
    )
    (tmp_path / "sum.yaml").write_text("source: {kind: file, path: sum.onnx}\nstate: {h_in: h_out}\n")
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    command = [sys.executable, str(ROOT / "build_tools" / "command.py"), "evaluate", "sum.yaml"]
    command += ["--target", "x86_64", "--data", "data.npz", "--outputs", "outputs.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npz")["y"][:, 0], x.cumsum(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.onnx",), "kiln: error: model 'absent.onnx': no such file\n"),
        pytest.param(
            ("net.onnx", "--inputs", "absent.npz"),
            "kiln: error: absent.npz: cannot read: No such file or directory\n",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            ("net.onnx", "--target", "x86_65"),
            "kiln: error: unknown target 'x86_65'; did you mean 'x86_64'",
            marks=pytest.mark.heavy,
        ),
        (("net.onnx", "--device", "lokal"), "kiln: error: unknown device 'lokal'; did you mean 'local'"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    network(tmp_path / "net.onnx")
    done = compare(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
