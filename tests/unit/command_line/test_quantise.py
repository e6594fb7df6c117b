"""kiln quantise: calibration data, a quantised file that other tools read, the search for float nodes,
errors."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line.quantise import improve, quantiser, run
from kiln.command_line.quantise.improve import QuantiseOptions
from kiln.command_line.quantise.quantiser import Quantiser
from kiln.command_line.quantise.run import Goal, quantise
from kiln.command_line.quantise.search import snr_db
from kiln.config import load_model
from kiln.config.source import FileSource
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from networks import normal, operators_of, save_network
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolution, ReLU, mean and a Gemm of 8 inputs to 4 classes; weights of the first layer differ by
    channel."""
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    spread = (10.0 ** np.linspace(-2, 0, 8)).reshape(8, 1, 1, 1)
    arrays = {
        "w": (RANDOM.standard_normal((8, 3, 3, 3)) * spread).astype(np.float32),
        "m": RANDOM.standard_normal((8, 4)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], "pool"),
        helper.make_node("Flatten", ["c"], ["d"], "flat"),
        helper.make_node("Gemm", ["d", "m"], ["y"], "gemm"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture(scope="module")
def data(net: Path) -> Path:
    """24 samples, and the float model's own classes as labels."""
    x = RANDOM.standard_normal((24, 3, 8, 8)).astype(np.float32)
    reference = open_reference(net)
    labels = np.array([int(reference.run([one[None]])[0].argmax()) for one in x])
    path = net.parent / "data.npz"
    np.savez(path, x=x, labels=labels)
    return path


@pytest.mark.parametrize(("activations", "greatest"), [("int8", 127), ("uint8", 64)])
@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_a_quantised_file(
    net: Path, data: Path, tmp_path: Path, method: Any, activations: Any, greatest: int
) -> None:
    out, bits = tmp_path / "out.onnx", 7 if greatest == 64 else 8
    result = quantise(str(net), data, out, QuantiseOptions(method, activations, weight_bits=bits))
    operators_left = operators_of(out)
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= set(operators_left)
    assert (result.kept, result.choices, result.float_figures.accuracy) == ((), 3, 1.0)
    assert result.figures.snr > 15 and result.figures.accuracy is not None
    x = np.load(data)["x"]
    want = [open_reference(net).run([one[None]])[0] for one in x]
    got = [open_reference(out).run([one[None]])[0] for one in x]
    assert snr_db(got, want) == pytest.approx(result.figures.snr, abs=1e-6)
    weights = {tensor.name: tensor for tensor in onnx.load(str(out)).graph.initializer}
    scales = [tensor for name, tensor in weights.items() if name.startswith("w") and name.endswith("scale")]
    assert [list(tensor.dims) for tensor in scales] == [[8]]  # one for each channel
    levels = [numpy_helper.to_array(one) for one in weights.values() if one.data_type == TensorProto.INT8]
    assert {int(np.abs(one.astype("int16")).max()) for one in levels if one.ndim > 1} == {greatest}
    report = json.loads(out.with_suffix(".json").read_text())
    assert report["quantised"]["snr"] == pytest.approx(result.figures.snr)


def test_a_goal_keeps_sensitive_nodes_in_float(net: Path, data: Path, tmp_path: Path) -> None:
    whole = quantise(str(net), data, tmp_path / "whole.onnx")
    aim = whole.figures.snr + 0.5
    mixed = quantise(str(net), data, tmp_path / "mixed.onnx", goal=Goal(min_snr=aim))
    assert mixed.figures.snr >= aim
    assert 1 <= len(mixed.kept) <= 2
    assert mixed.kept[0] == mixed.layers[0][0] == min(mixed.layers, key=lambda layer: layer[1])[0]
    assert [len(one.kept) for one in mixed.frontier] == sorted({len(one.kept) for one in mixed.frontier})
    assert quantise(str(net), data, tmp_path / "same.onnx", goal=Goal(max_drop=100)).kept == ()
    with pytest.raises(
        KilnError, match=r"no choice of float nodes reaches the goal; the best: SNR .* nodes in float"
    ):
        quantise(str(net), data, tmp_path / "never.onnx", goal=Goal(min_snr=500))
    assert not (tmp_path / "never.onnx").exists()


def test_the_keys_of_the_float_model_are_written(net: Path, data: Path, tmp_path: Path) -> None:
    """Without them a model of dynamic sizes could not be built; limits of floats are not for integers."""
    (tmp_path / "in").mkdir()
    shutil.copy(net, tmp_path / "in" / "net.onnx")
    described = tmp_path / "in" / "net.yaml"
    described.write_text(
        "source: {kind: file, path: net.onnx}\naliases: [other]\ntolerance: {relative: 1.0e-6}\n"
        "inputs: {x: {shape: [1, 3, h, 2 * half]}}\nweights: int8\n"
        "dims: {h: {min: 8, max: 12, buckets: [8]}, half: {min: 4, max: 6}}\n"
        "golden: {inputs: [{kind: tensors, tensors: {x: {kind: file, path: x.npy}}}]}\n"
    )
    result = quantise(str(described), data, tmp_path / "My net-int8.onnx")
    assert result.described == tmp_path / "my_net_int8.yaml"
    text = result.described.read_text()
    assert "in/x.npy" in text and "half * 2" in text and str(tmp_path) not in text
    before, after = load_model(described), load_model(result.described)
    for key in ("dims", "inputs", "golden"):
        assert getattr(after, key) == getattr(before, key)
    assert after.source == FileSource(kind="file", path=str(tmp_path / "My net-int8.onnx"))
    assert not {"aliases", "tolerance", "weights", "cut"} & after.model_fields_set
    result.described.write_text(text.replace("max: 12", "max: 20"))
    again = quantise(str(described), data, tmp_path / "My net-int8.onnx")
    assert load_model(again.described or "").dims["h"].max == 20
    assert quantise(str(net), data, tmp_path / "bare.onnx").described is None


def test_golden_inputs_are_weak_data(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few to be split: the model is judged by all of them, and the float model runs once."""
    opened: list[str] = []

    def counted(path: Path) -> Any:
        opened.append(path.name)
        return open_reference(path)

    for module in (run, quantiser):
        monkeypatch.setattr(module, "open_reference", counted)
    result = quantise(str(net), None, tmp_path / "out.onnx")
    assert result.warning.startswith("calibrated on 3 golden inputs, which may differ from real ones")
    assert opened.count("prepared.onnx") == 1


def test_equalisation_that_is_asked_for_and_does_not_apply_is_said(
    net: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = QuantiseOptions(equalise="yes", correct_bias="no")
    monkeypatch.setattr(Quantiser, "equalised", lambda self, runs: (copy.copy(self), 0))
    _, none = quantise(str(net), data, tmp_path / "out.onnx", asked).steps
    assert (none.name, none.used) == ("no channels that can be equalised, or that gain by it", False)
    monkeypatch.setattr(Quantiser, "equalised", lambda self, runs: (copy.copy(self), 1))
    monkeypatch.setattr(Quantiser, "save_float", lambda self, out: self.write(out))
    monkeypatch.setattr(improve, "_SAME", float("inf"))
    _, changed = quantise(str(net), data, tmp_path / "out.onnx", asked).steps
    assert re.fullmatch(r"channels not equalised: \d+ dB in float", changed.name) and not changed.used


def test_shapes_of_data(net: Path, tmp_path: Path) -> None:
    """One sample, several along the batch axis, and several with an axis of their own are all accepted."""
    x = RANDOM.standard_normal((6, 3, 8, 8)).astype(np.float32)
    for array in (x[:1], x, x[:, None]):
        np.savez(tmp_path / "data.npz", x=array)
        result = quantise(str(net), tmp_path / "data.npz", tmp_path / "out.onnx")
        assert result.warning.endswith("16 or more give better ranges of activations")


def test_data_without_elements_of_an_input(tmp_path: Path) -> None:
    """The cache of a decoder is empty in the first run: its range is not known, which is said."""
    nodes = [
        helper.make_node("MatMul", ["past", "w"], ["old"], "first"),
        helper.make_node("Add", ["old", "b"], ["shifted"], "shift"),
        helper.make_node("Concat", ["shifted", "x"], ["all"], "join", axis=1),
        helper.make_node("MatMul", ["all", "w"], ["y"], "last"),
    ]
    shapes: dict[str, Any] = {"past": [1, "past", 4], "x": [1, 2, 4]}
    weights = normal(1, 1.0, w=(4, 4), b=(4,))
    path = save_network(tmp_path / "net.onnx", nodes, shapes, {"y": [1, "now", 4]}, weights)
    x = RANDOM.standard_normal((3, 1, 2, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, past=np.zeros((3, 1, 0, 4), np.float32))
    result = quantise(str(path), tmp_path / "data.npz", tmp_path / "out.onnx")
    assert result.warning.startswith("'past' has no elements: no range follows from it")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 3, 8, 8), np.float32)}, "no array 'x', which is an input of the model; the file"),
        ({"x": np.zeros((1, 3, 8, 8))}, "float64, the model's input is float32; convert it with .astype("),
        ({"x": np.zeros((1, 3, 9, 8), np.float32)}, "'x' has the shape [1, 3, 9, 8], allowed: [samples, "),
        ({"x": np.zeros((0, 3, 8, 8), np.float32)}, "'x' has no sample"),
        ({"x": np.full((1, 3, 8, 8), np.nan, np.float32)}, "'x' has NaN or infinite values"),
        (
            {"x": np.zeros((2, 3, 8, 8), np.float32), "labels": np.zeros(3, np.int64)},
            "3 labels for 2 samples",
        ),
        (
            {"x": np.ones((1, 3, 8, 8), np.float32), "labels": np.array([-3])},
            "'labels' is negative, allowed are numbers of classes: integers from 0 on",
        ),
        ({"x": np.ones((1, 3, 8, 8), np.float32), "labels": np.array([0.5])}, "'labels' is float64, allowed"),
        (
            {"x": np.ones((1, 3, 8, 8), np.float32), "labels": np.array([4])},
            "label 4: the output has 4 scores",
        ),
        (
            {"x": np.zeros((2, 3, 8, 8), np.float32), "y": np.zeros(3)},
            "array 'y' is not an input; the inputs are x",
        ),
    ],
)
def test_wrong_data(net: Path, tmp_path: Path, arrays: Mapping[str, Any], message: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(KilnError, match=re.escape(message)):
        quantise(str(net), tmp_path / "data.npz", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_constant_data_are_weak(net: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 3, 8, 8), np.float32))
    result = quantise(str(net), tmp_path / "data.npz", tmp_path / "out.onnx")
    assert result.warning == "'x' is the same number everywhere: no range follows from it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-snr", "nan"], "--min-snr/--min_snr: 'nan', allowed: a finite number"),
        (["--min-snr", "much"], "--min-snr/--min_snr: 'much', allowed: a finite number"),
        (["--max-drop", "-1"], "--max-drop/--max_drop: '-1', allowed: 0 or more"),
        (["max_drop=inf"], "'inf', allowed: a finite number"),
    ],
)
def test_goals_that_mean_nothing(
    net: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"model={net}", "quantise", *words] if "=" in words[0] else ["quantise", str(net), *words]
    assert command_line.main(given) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_values_without_a_histogram(net: Path, tmp_path: Path) -> None:
    """For values without a histogram, such as masks of -3.4e38, the error names the other method."""
    x = np.zeros((2, 3, 8, 8), np.float32)
    x[0, 0, 0, 0] = 3e38
    np.savez(tmp_path / "data.npz", x=x)
    with pytest.raises(KilnError, match=r"calibration \(entropy\) failed: .*; --method minmax needs no hist"):
        quantise(str(net), tmp_path / "data.npz", tmp_path / "out.onnx", QuantiseOptions("entropy"))
    assert not (tmp_path / "out.onnx").exists()


def test_wrong_models_and_arguments(
    net: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantise(str(net), data, tmp_path / "once.onnx")
    with pytest.raises(KilnError, match="this model is quantised already"):
        quantise(str(tmp_path / "once.onnx"), data, tmp_path / "twice.onnx")
    with pytest.raises(KilnError, match=r"model 'resnet': quantise accepts \.onnx and \.pt2 files"):
        quantise("resnet", None, tmp_path / "out.onnx")
    with pytest.raises(KilnError, match="images need the section 'preprocess'"):
        quantise(str(net), tmp_path, tmp_path / "out.onnx")
    (tmp_path / "unlabelled.npz").write_bytes(b"PK")
    with pytest.raises(KilnError, match=r"unlabelled\.npz: not a \.npz file of arrays"):
        quantise(str(net), tmp_path / "unlabelled.npz", tmp_path / "out.onnx")
    with pytest.raises(KilnError, match="max_drop needs data with an array 'labels'"):
        quantise(str(net), None, tmp_path / "out.onnx", goal=Goal(max_drop=1))
    assert command_line.main(["quantise"]) == 2
    assert "quantise: one model is needed" in capsys.readouterr().err


def test_an_own_operator_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime cannot run it: calibration told of a temporary file that cannot be loaded."""
    monkeypatch.chdir(tmp_path)
    Path("operators").mkdir()
    Path("operators/twice.py").write_text(
        "from kiln.operators import OwnOperator\n"
        "OPERATOR = OwnOperator(name='Twice', domain='mine', result=lambda x: x, reference=lambda x: x + x,\n"
        "                       relax=lambda x: x + x)\n"
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Twice", ["a"], ["y"], "second", domain="mine"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    w = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "net.onnx")
    with pytest.raises(
        KilnError, match=r"net\.onnx: node 'second' is of your own operator mine\.Twice, .*'cut'"
    ):
        quantise("net.onnx", None, Path("out.onnx"))
    assert not Path("out.onnx").exists()


def test_both_forms_of_the_command(
    net: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    for words in (
        ["quantise", str(net), "--data", str(data), "--out", str(out)],
        [f"model={net}", "quantise", f"data={data}", f"out={out}"],
    ):
        out.unlink(missing_ok=True)
        assert command_line.main(words) == 0
        assert out.exists()
        assert "0 of 3" in capsys.readouterr().out


def test_a_full_disk_is_told(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime writes to it without an error; the model without inputs was said to lack the samples."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    monkeypatch.setattr(
        "onnxruntime.quantization.shape_inference.quant_pre_process", lambda _, out, **__: Path(out).touch()
    )
    with pytest.raises(KilnError, match=f"quantisation: No space left on device. {tmp_path} has 0 bytes"):
        Quantiser(net, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{}: the model file is empty"),
        (b"\x08\x08", "{}: not a complete ONNX model: truncated, or its graph has no nodes or no outputs"),
        (b"\x08\x08\x3a\xff", "{}: not a complete ONNX model: truncated or of another format"),
        (b"hello\n", "{}: not an ONNX model: the file is plain text"),
    ],
)
def test_damaged_files_are_refused_as_a_build_does(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(KilnError) as raised:
        quantise(str(path), None, tmp_path / "out.onnx")
    assert str(raised.value) == message.format(path)
