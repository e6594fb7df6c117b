"""kiln compare --float: tensors of a quantised model compared with those of the float model, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line.compare import float_model
from kiln.command_line.compare.run import Compared, as_json
from kiln.command_line.compare.show import show
from kiln.command_line.running import destination_of
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from kiln.report.measured import worst_rows
from networks import normal, save_network
from onnx import helper

WEIGHTS = normal(3, 0.5, w=(8, 6), v=(6, 4))
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def dense(path: Path, quantised: bool = False, scale: Any = 1, rows: int = 4, **faults: Any) -> Path:
    """Write y = relu(x w) v. `quantised`: with a rounded `a` between. `scale`: channels of `a` are divided by
    it, and v multiplied. `faults`: `last` is added to an element of v, `first` to the first row of w, v is
    multiplied with `gains`."""
    scale = np.broadcast_to(np.asarray(scale, np.float32), 6)
    w, v = WEIGHTS["w"] / scale, WEIGHTS["v"] * scale[:, None]
    v[0, 0] += faults.get("last", 0)
    w[0] += faults.get("first", 0)
    v *= np.float32(faults.get("gains", 1))
    read = "a_DequantizeLinear_Output" if quantised else "a"
    pair = [
        helper.make_node("QuantizeLinear", ["a", "step", "zero"], ["a_QuantizeLinear_Output"]),
        helper.make_node("DequantizeLinear", ["a_QuantizeLinear_Output", "step", "zero"], [read]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="first"),
        helper.make_node("Relu", ["product"], ["a"], name="positive"),
        *(pair if quantised else []),
        helper.make_node("MatMul", [read, "v"], ["y"], name="second"),
    ]
    step = np.float32(np.maximum(X @ w, 0).max() / 127)
    weights = {"w": w, "v": v, **({"step": step, "zero": np.int8(0)} if quantised else {})}
    return save_network(path, nodes, {"x": [rows, 8]}, {"y": [rows, 4]}, weights)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """compared(quantised file, float file): a comparison; ONNX Runtime stands for the bundle."""
    monkeypatch.chdir(tmp_path)
    probed = tmp_path / "build/.compare/x86_64/net_int8/probed.onnx"
    given = [X]

    @contextmanager
    def running(*_: Any) -> Iterator[Any]:
        def outputs(inputs: Sequence[Sequence[Any]], runs: int) -> list[list[Any]]:
            assert runs == 1
            return [open_reference(probed).run(one) for one in inputs]

        vectors = [SimpleNamespace(name=f"random_{number}", inputs=[x]) for number, x in enumerate(given)]
        bundle = SimpleNamespace(runs=lambda: 1, vectors=lambda: vectors)
        yield SimpleNamespace(bundle=bundle, outputs=outputs, runner=SimpleNamespace(description="CPU"))

    def manifest(_: Path) -> Any:
        outputs = onnx.load(str(probed)).graph.output
        return {"inputs": [{"name": "x"}], "outputs": [{"name": one.name} for one in outputs]}

    monkeypatch.setattr(float_model, "running", running)
    monkeypatch.setattr(float_model, "read_manifest", manifest)
    monkeypatch.setattr(float_model, "build_copy", lambda *_, **__: SimpleNamespace(folder=tmp_path))

    def compare(
        one: Path, other: Path, min_snr: float | None = None, vectors: Sequence[Any] = (X,)
    ) -> Compared:
        given[:] = vectors
        place = destination_of("x86_64", None)
        return float_model.compare_with_float(str(one), str(other), place, None, min_snr)

    return compare


def test_rounding_and_a_fault(compared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = dense(tmp_path / "net.onnx")
    found = compared(dense(tmp_path / "net_int8.onnx", True), original)
    assert [row.probe.tensor for row in found.rows] == ["product", "a", "y"]
    assert [row.probe.tensor for row in found.outputs] == ["y"] and found.culprit is None
    product, rounded, _ = (row.difference for row in found.rows)
    assert product.snr is None and 30 < rounded.snr < 60  # that of the rounded tensor, which is read
    strict = compared(tmp_path / "net_int8.onnx", original, 90.0)
    assert strict.culprit.probe.node == "positive"
    wrong = compared(dense(tmp_path / "net_int8.onnx", True, last=3.0), original)
    assert wrong.culprit.probe.node == "second" and wrong.culprit.difference.snr < 20
    assert show(wrong, Path("compare.json"), everything=True) == 1
    text = capsys.readouterr().out
    assert "compared with " in text and "net.onnx in float:" in text
    assert "first beyond its limit: second (MatMul), tensor y" in text
    data = as_json(wrong)
    assert data["reference"].endswith("net.onnx in float")
    names = {"product", "a", "a_QuantizeLinear_Output", "a_DequantizeLinear_Output", "y"}
    assert set(worst_rows(data)) == names  # which steps of the report may have


def test_channels_of_other_scales(compared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equalisation is no fault; a channel that the next layer does not scale back shows in the output."""
    original = dense(tmp_path / "net.onnx")
    scale = [1, 2, 4, 0.5, 1, 8]
    found = compared(dense(tmp_path / "net_int8.onnx", True, scale), original)
    assert [row.scaled for row in found.rows] == [True, True, False] and found.culprit is None
    assert show(found, Path("compare.json"), everything=True) == 0
    assert "channels with other scales, as equalisation gives them: product, a" in capsys.readouterr().out


def test_a_fault_in_channels_of_one_element(compared: Any, tmp_path: Path) -> None:
    """A factor for each channel and vector made every value of such a tensor right."""
    original = dense(tmp_path / "net.onnx", rows=1)
    rows = [X[number : number + 1] for number in range(4)]
    wrong = dense(tmp_path / "net_int8.onnx", True, rows=1, first=2.0)
    for count in (1, 4):
        found = compared(wrong, original, vectors=rows[:count])
        assert found.culprit.probe.node == "first" and not found.rows[0].scaled
    scaled = compared(
        dense(tmp_path / "net_int8.onnx", True, [1, 2, 4, 0.5, 1, 8], rows=1), original, vectors=rows
    )
    assert scaled.culprit is None and scaled.rows[0].scaled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.graph.input[0].__setattr__("name", "z"), "inputs are z, the quantised one's x"),
        (lambda _: None, "compare --float accepts .onnx and .pt2 files"),
        (lambda model: rename(model), "have no tensor of the same name; --float is the model that was quan"),
    ],
    ids=["inputs", "kind", "names"],
)
def test_models_that_do_not_belong_together(
    change: Any, message: str, compared: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    quantised, original = dense(tmp_path / "net_int8.onnx", True), dense(tmp_path / "net.onnx")
    model = onnx.load(str(original))
    change(model)
    for node in model.graph.node:
        node.input[0] = {"x": model.graph.input[0].name}.get(node.input[0], node.input[0])
    onnx.save(model, str(original))
    if "kind" in request.node.name:
        original = tmp_path / "net.tflite"
        original.write_bytes(b"TFL3")
    with pytest.raises(KilnError, match=message):
        compared(quantised, original)


def rename(model: onnx.ModelProto) -> None:
    """Give the model's tensors other names."""
    for node in model.graph.node:
        node.input[0] = node.input[0] if node.input[0] == "x" else f"{node.input[0]}_other"
        node.output[0] += "_other"
    model.graph.output[0].name += "_other"


def test_shapes_and_single_values() -> None:
    want = np.float32([[1, 2], [3, 4]])
    assert not float_model.snr_difference(want[:1], want, 20).passed
    assert float_model.snr_difference(want, want, 20).passed
    assert not float_model.snr_difference(np.full_like(want, np.nan), want, 20).passed
    assert float_model._channel_factors([(np.float32([1, 2]), np.float32([2, 4]))]) == 1


def test_the_float_model_hands_on_its_state(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "h_in"], ["h_out"]), helper.make_node("Neg", ["h_out"], ["y"])]
    shapes = {"x": [1, 4], "h_in": [1, 4]}
    path = save_network(tmp_path / "sum.onnx", nodes, shapes, {"y": [1, 4], "h_out": [1, 4]}, {})
    initial, x = np.full((1, 4), 2, np.float32), np.float32([[1, 2, 3, 4]])
    states = {"h_in": ("h_out", initial)}
    model = float_model._FloatModel(path, states)
    for _ in range(2):  # two sequences of two runs
        model.begin()
        for number in (1, 2):
            np.testing.assert_array_equal(model.run({"x": x})["y"], -(initial + number * x))
    with pytest.raises(KilnError, match="inputs are x, h_in, the quantised one's z, h_in"):
        model.run({"z": x})
    with pytest.raises(KilnError, match="state comes from 'other', which the float model lacks"):
        float_model._FloatModel(path, {"h_in": ("other", initial)})


def test_a_limit_without_its_float_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["compare", "resnet", "--min-snr", "30"]) == 2
    assert "--min-snr is the limit of --float FILE.onnx" in capsys.readouterr().err


def test_inputs_of_another_name(compared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the user's file and array, not the key of a YAML file that compare has written."""

    def built(*_: Any, **__: Any) -> Any:
        raise KilnError("model 'net_int8': golden.inputs: no input is called 'z', there are: x")

    monkeypatch.setattr(float_model, "build_copy", built)
    np.savez(tmp_path / "in.npz", z=X)
    names = [str(dense(tmp_path / "net_int8.onnx", True)), str(dense(tmp_path / "net.onnx"))]
    with pytest.raises(
        KilnError, match=r"^in\.npz: array 'z' is not an input of the model; the inputs are x$"
    ):
        float_model.compare_with_float(*names, destination_of("x86_64", None), Path("in.npz"))
