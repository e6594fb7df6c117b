"""Models with sizes: how they are named, and that everybody gets one file and one input of these sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.config import load_model
from kiln.config.interface import Interface
from kiln.errors import KilnError
from kiln.files import write_json
from networks import save_network
from onnx import helper
from records import port

from benchmarks import subjects
from benchmarks.contenders import Folders
from benchmarks.subjects import SizedModel, find, parse


def test_names_and_sizes() -> None:
    assert parse("resnet50") == SizedModel("resnet50")
    assert parse("ppocr_det@320x640") == SizedModel("ppocr_det", (320, 640))
    assert parse("ppocr_det@320x640").label == "ppocr_det@320x640"
    with pytest.raises(KilnError, match=r"^--model 'minilm_l6@a': sizes are numbers"):
        parse("minilm_l6@a")


@pytest.mark.parametrize("text", subjects.MODELS)
def test_models_measured_by_default_have_these_sizes(text: str) -> None:
    chosen = parse(text)
    dims = load_model(chosen.model).dims
    assert len(chosen.sizes) == len(dims)
    for size, dim in zip(chosen.sizes, dims.values(), strict=True):
        assert dim.min <= size <= dim.max
        assert size % dim.multiple == 0


@pytest.fixture
def built(tmp_path: Path) -> Folders:
    """minilm_l6 as if it had been built, with a graph that only adds its inputs."""
    shape = ["batch", "seq"]
    names = ("input_ids", "attention_mask")
    added = helper.make_node("Add", names, ["sum"])
    folder = tmp_path / ".stages/models/minilm_l6"
    folder.mkdir(parents=True)
    (tmp_path / "host/minilm_l6").mkdir(parents=True)
    inputs, outputs = dict.fromkeys(names, shape), {"sum": shape}
    save_network(folder / "source.onnx", [added], inputs, outputs, {}, int64=[*names, "sum"])
    ports = [port(name, shape, "int64") for name in names]
    interface = Interface(inputs=ports, outputs=[port("sum", shape, "int64")])
    dims = [{"name": name, "min": 1, "max": 8, "multiple": 1} for name in shape]
    manifest = {**interface.model_dump(), "name": "minilm_l6", "dims": dims}
    for entry in (*manifest["inputs"], *manifest["outputs"]):
        entry["bytes"] = 320  # a key of manifests alone
    write_json(tmp_path / "host/minilm_l6/manifest.json", manifest)
    return Folders(tmp_path, tmp_path / "python")


def test_a_model_of_dynamic_sizes_is_fixed_for_everyone(built: Folders) -> None:
    subject = find(parse("minilm_l6@2x5"), built, ["host"])
    assert (subject.name, subject.model) == ("minilm_l6@2x5", "minilm_l6")
    assert subject.interface["dims"] == {"batch": 2, "seq": 5}
    fixed = onnx.load(subject.source).graph
    assert [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in fixed.input] == [[2, 5], [2, 5]]
    ids, mask = (np.fromfile(t["file"], t["dtype"]).reshape(t["shape"]) for t in subject.interface["inputs"])
    expected = subject.interface["outputs"][0]
    assert (mask == 1).all()  # a mask of real tokens
    assert (np.fromfile(expected["file"], expected["dtype"]).reshape(2, 5) == ids + mask).all()
    before = subject.source.stat().st_mtime_ns
    assert find(parse("minilm_l6@2x5"), built, ["host"]).source.stat().st_mtime_ns == before


def test_sizes_that_a_model_does_not_have_are_refused(built: Folders) -> None:
    with pytest.raises(KilnError, match=r"seq = 300, allowed 1\.\.256"):
        find(parse("minilm_l6@1x300"), built, ["host"])
    with pytest.raises(KilnError, match="1 sizes, its dimensions are batch x seq"):
        find(parse("minilm_l6@16"), built, ["host"])
