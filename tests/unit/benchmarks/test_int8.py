"""The int8 benchmark: its models, their forms, the record of runs in pieces, and the tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from kiln.errors import KilnError
from kiln.files import write_json

from benchmarks import calibration, int8, int8_forms, subjects
from benchmarks.compare import Match
from benchmarks.contenders import Contender, Folders, LeftOutError, Subject
from benchmarks.int8_forms import DEFAULTS, FLOAT, INT8, MIXED, Form
from benchmarks.timing import Times
from benchmarks.workers import ask

KILN = Contender("kiln host", "bundle", "0.1", ("onnx",), "host")
PEER = Contender("peer", "peer", "1.0", ("onnx",))
LITERT = Contender("litert", "litert", "2.0", ("onnx",))


def _times(seconds: float) -> Times:
    times = Times()
    times.add([seconds], [seconds], "wall")
    return times


def _forms(model: str = "net") -> list[Form]:
    file = Path("net.onnx")
    return [
        Form(model, FLOAT, model, model, file, 40_000_000, None, 0.9),
        Form(model, INT8, f"{model}_int8", "a.yaml", file, 10_000_000, 30.25, 0.85, 0, 20),
        Form(model, DEFAULTS, f"{model}_int8_defaults", "b.yaml", file, 10_000_000, 20.0, 0.8),
        Form(model, MIXED, f"{model}_mixed", "c.yaml", file, 15_000_000, 36.3, 0.9, 4, 20),
    ]


def test_models_are_kilns_own_with_sizes_if_asked() -> None:
    assert int8.chosen(subjects.MODELS) == list(int8.MODELS)
    assert int8.chosen(["mobilenet", "minilm_l6@1x16"]) == ["mobilenet_v2", "minilm_l6@1x16"]
    with pytest.raises(KilnError, match="nothing"):
        int8.chosen(["nothing"])
    assert int8.kinds(["mixed"]) == [MIXED] and int8.kinds(["none"]) == []
    with pytest.raises(KilnError, match="--form 'int4': allowed are defaults, mixed and none"):
        int8.kinds(["int4"])


def test_forms_keep_what_describes_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "float.onnx"
    monkeypatch.setattr(int8_forms, "fetch", lambda _source: source)
    quality = {"quantised": {"snr": 21.5, "bytes": 10, "kept": [], "choices": 7}, "float": {"bytes": 40}}
    for suffix in ("int8", "int8_defaults", "mixed"):
        (tmp_path / f"minilm_l6_{suffix}.onnx").write_bytes(b"")
        write_json(tmp_path / f"minilm_l6_{suffix}.json", quality)
    whole, made, *_ = int8_forms.prepare("minilm_l6", tmp_path)
    assert (whole.file, whole.bytes, whole.build) == (source, 40, "minilm_l6")
    assert (made.name, made.snr, made.bytes, made.kept, made.choices) == ("minilm_l6_int8", 21.5, 10, 0, 7)
    config = yaml.safe_load(Path(made.build).read_text())
    assert config["source"]["path"] == str(tmp_path / "minilm_l6_int8.onnx")
    assert {"dims", "inputs", "golden"} <= set(config) and "tolerance" not in config
    int8_forms.prepare("minilm_l6", tmp_path, sizes=(1, 64))
    config = yaml.safe_load(Path(made.build).read_text())
    assert config["dims"]["seq"] == {"min": 64, "max": 64, "buckets": [64]}


def test_calibration_data_are_photographs_by_class_and_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(source: dict[str, str]) -> Path:
        asked.append(source)
        return Path(__file__)

    monkeypatch.setattr(calibration, "fetch", fetch)
    folder = calibration.data_for("mobilenet_v2", tmp_path)
    assert folder is not None and len(asked) == 20
    assert asked[0]["path"] == "foolbox/data/imagenet_00_243.jpg" and len(asked[0]["sha256"]) == 64
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    assert len(found) == 20 and "243/imagenet_00_243.jpg" in found
    assert calibration.data_for("mobilenet_v2", tmp_path) == folder and len(asked) == 20
    sentences = calibration.data_for("minilm_l6", tmp_path)
    assert sentences is not None
    ids, mask = (np.load(sentences)[name] for name in ("input_ids", "attention_mask"))
    assert ids.shape == mask.shape == (32, 64) and ids.dtype == mask.dtype == np.int64
    assert (ids[:, 0] == 101).all() and ((ids != 0) == (mask == 1)).all() and ids.max() < 30522
    assert calibration.data_for("silero_vad", tmp_path) is None


def test_litert_gets_the_float_model_and_the_data_and_no_qdq_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, bool]] = []

    def file_for(contender: Contender, subject: Subject, _folders: Folders) -> Path:
        if subject.name.endswith(MIXED):
            raise LeftOutError("not here")
        asked.append((contender.name, subject.name, "calibration" in subject.interface))
        return Path("file")

    monkeypatch.setattr(int8, "file_for", file_for)
    monkeypatch.setattr(int8.calibration, "data_for", lambda *_: None)
    monkeypatch.setattr(int8, "samples_of", lambda *_: tmp_path / "samples.npz")
    found = {
        kind: Subject(f"net {kind}", "net", tmp_path, {"inputs": [{"name": "x"}]})
        for kind in (FLOAT, INT8, DEFAULTS, MIXED)
    }
    files = int8.files_of("net", "net", found, [PEER, LITERT], Folders(tmp_path, Path(sys.executable)))
    assert [name for name, *_ in asked] == ["peer", "peer", "peer", "litert", "litert"]
    assert asked[3:] == [("litert", "net float32", False), ("litert", "net int8 by TensorFlow", True)]
    assert [c.name for c in files][2:] == [f"peer: {DEFAULTS}", "litert: float32", "litert: int8"]


def test_tables_have_every_form_and_ratios_to_the_best_int8_of_each_peer(tmp_path: Path) -> None:
    seconds = {
        "kiln host: int8": 2e-3, "kiln host: float32": 4e-3, "peer: int8": 5e-3, f"peer: {DEFAULTS}": 3e-3,
    }  # fmt: skip
    times = {name: _times(value) for name, value in seconds.items()}
    record = int8.Record("a machine", ["kiln host", "peer"], {"kiln host": "0.1", "peer": "1.0"}, 3, 0.1)
    record.forms["net"] = _forms()
    record.take(Match("net", 1, "wall", {}))
    record.take(Match("net", 1, "wall", times))
    int8.save(record, tmp_path / "int8.json")
    again = int8.load(tmp_path / "int8.json")
    assert again == record and len(again.matches) == 1
    lines = int8.report(again).splitlines()
    assert "kiln host 0.1, peer 1.0." in lines
    assert "| net, int8 | 30.2 | 85 % | 10.0 | 0 of 20 |" in lines
    assert f"| net, {DEFAULTS} | 20.0 | 80 % | 10.0 |  |" in lines
    assert "| net, int8 | **2** ±0% | 5 ±0% |" in lines
    assert "| net | 2.00 | 1.50 |" in lines
    assert int8.load(tmp_path / "none.json") == int8.Record()


def test_a_worker_finds_the_benchmark_and_kiln() -> None:
    """An environment of peers holds no Kiln: a bundle's worker gets it from the source tree."""
    request = {"do": "version", "peer": "bundle"}
    assert ask(Path(sys.executable), request, None)["missing"] == []
