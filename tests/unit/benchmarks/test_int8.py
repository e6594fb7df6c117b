"""The int8 benchmark: which models, their configuration, and the table."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from kiln.errors import KilnError
from kiln.files import write_json

from benchmarks import calibration, int8, subjects
from benchmarks.compare import Match
from benchmarks.contenders import Contender
from benchmarks.timing import Times
from benchmarks.workers import ask

KILN = Contender("kiln host", "bundle", "0.1", ("onnx",), "host")
PEER = Contender("peer", "peer", "1.0", ("onnx",))


def _times(seconds: float) -> Times:
    made = Times()
    made.add([seconds], [seconds], "wall")
    return made


def test_models_are_kilns_own_and_have_no_sizes() -> None:
    assert int8.chosen(subjects.MODELS) == list(int8.MODELS)
    assert int8.chosen(["mobilenet"]) == ["mobilenet_v2"]
    with pytest.raises(KilnError, match="without sizes"):
        int8.chosen(["minilm_l6@1x16"])
    with pytest.raises(KilnError, match="nothing"):
        int8.chosen(["nothing"])


def test_a_quantised_model_keeps_what_describes_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "minilm_l6_int8.onnx").write_bytes(b"")
    figures = {"quantised": {"snr": 21.5, "bytes": 10}, "float": {"bytes": 40}}
    write_json(tmp_path / "minilm_l6_int8.json", figures)
    made = int8.prepare("minilm_l6", tmp_path)
    config = yaml.safe_load(made.config.read_text())
    assert (made.name, made.snr, made.float_bytes, made.bytes) == ("minilm_l6_int8", 21.5, 40, 10)
    assert config["source"]["path"] == str(tmp_path / "minilm_l6_int8.onnx")
    assert {"dims", "inputs", "golden"} <= set(config) and "tolerance" not in config


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


def test_the_table_has_both_forms_of_kiln_and_marks_the_fastest_int8() -> None:
    one = int8.QuantisedSubject("net", "net_int8", Path(), 30.25, 40_000_000, 10_000_000, 0.9, 0.85)
    times = {"kiln host": _times(2e-3), "kiln host float32": _times(1e-3), "peer": _times(3e-3)}
    text = int8.report("a machine", [one], [KILN, PEER], [Match("net_int8", 1, "wall", times)])
    assert "kiln host 0.1, peer 1.0" in text
    row = next(line for line in text.splitlines() if line.startswith("| net "))
    assert (
        "30.2" in row
        and "40.0 / 10.0" in row
        and "90 / 85 %" in row
        and "**2** " in row
        and "**1** " not in row
    )


def test_a_worker_finds_the_benchmark_and_kiln() -> None:
    """An environment of peers holds no Kiln: a bundle's worker gets it from the source tree."""
    request = {"do": "version", "peer": "bundle"}
    assert ask(Path(sys.executable), request, None)["missing"] == []
