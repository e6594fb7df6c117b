"""kiln compare: intermediate tensors as outputs of ONNX and TFLite files, their figures, and the verdict."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line.compare import reduce, run
from kiln.command_line.compare.figures import difference
from kiln.command_line.compare.probe import Probe
from kiln.command_line.compare.probes import write_probed
from kiln.command_line.compare.run import Compared, Row, as_json
from kiln.command_line.compare.show import show
from kiln.command_line.running import destination_of
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.golden.compare import ErrorLimits
from kiln.golden.reference import open_reference
from kiln.sources.npy import load_npz
from onnx import TensorProto, helper


def network(path: Path) -> Path:
    """y = relu(x * w) + shape-dependent and constant nodes, which are no probes; the second node has no
    name."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"], "scale"),
        helper.make_node("Relu", ["scaled"], ["positive"]),
        helper.make_node("Add", ["w", "w"], ["twice"], "constant"),
        helper.make_node("Split", ["positive"], ["left", "right"], "split", axis=1, num_outputs=2),
        helper.make_node("Add", ["left", "right"], ["y"], "sum"),
    ]
    w = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, -1.0, 2.0, 0.5])
    x, y = value("x", TensorProto.FLOAT, [2, 4]), value("y", TensorProto.FLOAT, [2, 2])
    graph = helper.make_graph(nodes, "net", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path


def test_onnx_probes(tmp_path: Path) -> None:
    probes = write_probed(network(tmp_path / "net.onnx"), tmp_path / "probed.onnx")
    assert probes == [
        Probe("scale", "Mul", "scaled", ("x",)),
        Probe("node 1", "Relu", "positive", ("scaled",)),
        Probe("split", "Split", "left", ("positive",)),
        Probe("split", "Split", "right", ("positive",)),
        Probe("sum", "Add", "y", ("left", "right")),
    ]
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    outputs = open_reference(tmp_path / "probed.onnx").run([x])
    names = [output.name for output in onnx.load(str(tmp_path / "probed.onnx")).graph.output]
    assert names == ["y", "scaled", "positive", "left", "right"]
    assert np.array_equal(outputs[2], np.maximum(x * [1, -1, 2, 0.5], 0))
    assert np.array_equal(outputs[0], outputs[3] + outputs[4])


def test_a_full_disk_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network(tmp_path / "net.onnx")

    def full(_: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onnx, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.compare_model("net.onnx", destination_of("x86_64", None))
    assert [path for path in Path("build").rglob("*") if path.is_file()] == []


def test_wrong_files(tmp_path: Path) -> None:
    for suffix, kind in (("onnx", "ONNX"), ("tflite", "TFLite")):
        path = tmp_path / f"damaged.{suffix}"
        path.write_bytes(b"damaged" * 9)
        with pytest.raises(KilnError, match=f"not a valid {kind} model"):
            write_probed(path, tmp_path / "out")
    with pytest.raises(KilnError, match=r"compare accepts \.onnx and \.tflite files"):
        write_probed(tmp_path / "net.pb", tmp_path / "out")


def test_figures() -> None:
    want = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)
    got = want.copy()
    assert difference(got, want, ErrorLimits()).snr is None
    got[1, 0] += 0.3
    figures = difference(got, want, ErrorLimits())
    assert (figures.passed, figures.where, figures.weak) == (False, (1, 0), False)
    assert figures.snr == pytest.approx(10 * np.log10(30 / 0.09), abs=1e-3)
    assert (figures.got, figures.want) == (pytest.approx(3.3), 3.0)
    got[0, 1] = np.nan
    figures = difference(got, want, ErrorLimits())
    assert (figures.where, figures.snr) == ((0, 1), float("-inf"))
    assert difference(want[:1], want, ErrorLimits()).detail == "float32[1, 2] instead of float32[2, 2]"
    assert difference(np.ones(3), np.ones(3), ErrorLimits()).weak


def test_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The first tensor in the model's order is named, and the worst vector of each tensor is shown."""
    want = np.ones((2,), np.float32) * [1, 2]

    def row(tensor: str, vector: str, error: float) -> Row:
        probe = Probe(f"node_{tensor}", "Mul", tensor)
        return Row(probe, vector, difference(want + error, want, ErrorLimits()))

    rows = [
        row("a", "v1", 0),
        row("a", "v2", 1e-6),
        row("b", "v1", 0.5),
        row("b", "v2", 1.0),
        row("c", "v1", 2),
    ]
    compared = Compared("net", "host", "host CPU", rows, [rows[-1]])
    assert show(compared, Path("compare.json"), everything=True) == 1
    text = capsys.readouterr().out
    assert "first beyond its limit: node_b (Mul), tensor b\nin vector v1: " in text
    lines = [line for line in text.splitlines() if line.startswith("│ node")]
    assert [line.split("│")[4].strip() for line in lines] == ["1e-06", "1", "2"]
    content: Any = json.loads(json.dumps(as_json(compared)))
    assert (content["first"]["node"], len(content["tensors"])) == ("node_b", 5)
    fused = Compared("net", "host", "host CPU", rows[:2], [rows[-1]])
    assert show(fused, Path("compare.json"), everything=False) == 1
    assert "the fault is in kernels that compute several nodes at once" in capsys.readouterr().out
    assert show(Compared("net", "host", "host CPU", rows[:2], []), Path("x"), everything=False) == 0
    assert "all 1 tensors are within their limits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "fault", "message"),
    [
        (["z"], "golden.inputs: kind 'tensors' gives no tensor for input 'x'", "no array 'x'.* file has: z"),
        ([], "golden.inputs: kind 'tensors' gives no tensor for input 'x'", "no array .x.*has no arrays"),
        (["x", "z"], "model 'net': golden.inputs: no input is called 'z', there are: x",
         "array 'z' is not an input of the model; the inputs are x"),
        (["z", "x"], "{1} is float64[3], but input 'x' is int8[3]", "array 'x' is float64.*'x' is int8"),
        (["x"], "net.onnx: output 'y' of tensors has no finite value in the reference: it proves nothing; c",
         "these inputs prove nothing: net.onnx: output 'y' has no finite value in the reference$"),
        (["x", "z"], "", "array 'z' is not an input of the model; the inputs are x"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_the_models_inputs(
    arrays: list[str], fault: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names arrays as the user's file does, and `reduce` takes it for no fault of the model."""
    monkeypatch.chdir(tmp_path)
    network(tmp_path / "net.onnx")
    np.savez(tmp_path / "in.npz", **{name: np.zeros(3) for name in arrays})  # type: ignore[arg-type]
    read: list[Path] = []

    def loaded(path: Path) -> Any:
        read.append(path)
        return load_npz(path)

    monkeypatch.setattr(run, "load_npz", loaded)

    def built(configurations: Sequence[Path], *_: Any) -> Any:
        if fault:
            array = configurations[0].resolve().with_name("input_1.npy")
            raise KilnError(fault.replace("{1}", str(array)))
        return [run._RunResult("host CPU", [], ["x"])] * 2

    monkeypatch.setattr(run, "_build_and_run", built)
    with pytest.raises(run.WrongInputsError, match=rf"^in\.npz: {message}"):
        run.compare_model("net.onnx", destination_of("host", None), Path("in.npz"))
    assert read == [Path("in.npz")]  # decompressed once
    with pytest.raises(run.WrongInputsError, match=rf"^in\.npz: {message}"):
        reduce.reduce_model("net.onnx", destination_of("host", None), Path("in.npz"), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_errors_name_the_model_and_not_its_copy(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("source: {kind: file, path: net.onnx}\n")
    source, probed = Path("net.onnx"), tmp_path / "probed.onnx"
    with (
        pytest.raises(KilnError, match=r"^net\.onnx: sizes are dynamic; give them in models/m\.yaml$"),
        run.errors_of_the_copy(load_model(str(tmp_path / "m.yaml")), source, probed),
    ):
        raise KilnError(f"{probed}: sizes are dynamic; give them in models/m_probed.yaml")
