"""Commands that read a model's file read the part of it that the key `cut` describes, as a build does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from kiln.command_line.compare import float_model, reduce, run
from kiln.command_line.evaluate import _reference_outputs
from kiln.command_line.model_files import graph_file
from kiln.command_line.quantise.run import quantise
from kiln.command_line.running import destination_of
from kiln.command_line.samples import Samples
from kiln.config import load_model
from kiln.config.slices import canonical_json, stage_config
from kiln.errors import KilnError
from kiln.frontend.cut_stage import run as cut_stage
from kiln.stages.model import CutStage

HOST = destination_of("host", None)
# The outputs of the part are not in the order of their names.
CUT = {"constants": {"gain": 2.0}, "outputs": {"z": "positive", "b": "product"}}
NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,8] x, float gain) => (float[2,8] y, float[2,8] product)
<float[8,8] w = {WEIGHTS}>
{
    scaled = Mul(x, gain)
    product = MatMul(scaled, w)
    positive = Relu(product)
    y = Tanh(positive)
}
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The YAML file of a model that is a part of its file."""
    weights = np.random.default_rng(1).normal(size=64).round(2)
    model = onnx.parser.parse_model(NET.replace("{WEIGHTS}", "{" + ", ".join(map(str, weights)) + "}"))
    onnx.save(model, str(tmp_path / "net.onnx"))
    content = {"source": {"kind": "file", "path": "net.onnx"}, "cut": CUT}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "part.yaml"


def outputs_of(path: Path) -> list[str]:
    return [value.name for value in onnx.load(str(path)).graph.output]


def test_outputs_are_in_the_order_of_the_yaml_file(net: Path, tmp_path: Path) -> None:
    """In the part of a build, and in the one that a command makes."""
    model = load_model(str(net))
    config, out = tmp_path / "cut.json", tmp_path / "cut.onnx"
    config.write_text(canonical_json(stage_config(model, "cut")))
    cut_stage(CutStage(config=config, source=tmp_path / "net.onnx", called=None, out=out))
    part = graph_file(model, tmp_path / "scratch")
    assert outputs_of(out) == outputs_of(part) == ["z", "b"]
    assert part.name == "net.onnx"


def test_the_reference_of_evaluate_computes_the_part(net: Path) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    ((z, b),) = _reference_outputs(load_model(str(net)), [], Samples([{"x": x}]), ["x"])
    assert np.array_equal(z, np.maximum(b, 0)) and b.min() < 0


def test_the_part_is_quantised(net: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(2).normal(size=(20, 2, 8)).astype(np.float32))
    quantise(str(net), data, tmp_path / "out.onnx")
    assert outputs_of(tmp_path / "out.onnx") == ["z", "b"]


def test_all_tensors_of_the_part_are_compared(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies with intermediate results as outputs are those of the part, which is cut only once."""
    built: list[dict[str, Any]] = []

    def build(paths: Sequence[Path], *_: Any) -> Any:
        built.extend(json.loads(path.read_text()) for path in paths)
        return [SimpleNamespace(rows=[], inputs=["x"], runner="host CPU")] * len(paths)

    monkeypatch.setattr(run, "_build_and_run", build)
    run.compare_model(str(net), HOST)
    assert not any("cut" in content for content in built)
    assert outputs_of(Path(built[1]["source"]["path"])) == ["z", "b", "scaled", "product", "positive"]
    with pytest.raises(KilnError, match="have no tensor of the same name"):
        monkeypatch.setattr(float_model, "write_probed", lambda source, out: outputs_of(source) and [])
        float_model.compare_with_float(str(net), str(net), HOST)


def test_the_part_is_reduced(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def part(parts: reduce.Parts, *_: Any) -> Any:
        seen.extend(node.op_type for node in parts.nodes)
        raise KilnError("seen")

    monkeypatch.setattr(reduce, "_reduce_to_part", part)
    with pytest.raises(KilnError, match="seen"):
        reduce.reduce_model(str(net), HOST, None, tmp_path / "out.onnx")
    assert "Tanh" not in seen and "MatMul" in seen
