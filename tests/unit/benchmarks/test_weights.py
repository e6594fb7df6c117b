"""The benchmark of products of one row: its models, and the share of the memory's bandwidth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from kiln.files import write_json

from benchmarks import contenders, weights
from benchmarks.__main__ import _WHAT
from benchmarks.compare import Match, Plan
from benchmarks.contenders import Contender, Folders, Subject
from benchmarks.timing import Times
from benchmarks.workers import ROOT


@pytest.mark.parametrize("form", weights.FORMS, ids=lambda form: form.name)
def test_models_have_the_bytes_and_values_near_one(
    form: weights.Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "DEPTH", 256)
    monkeypatch.setattr(weights, "BYTES", 16 << 10)
    model = weights.model_of(form)
    size = next(len(one.raw_data) for one in model.graph.initializer if one.name == "w")
    assert size == 16 << 10
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [output] = session.run(None, {"x": np.random.default_rng(1).standard_normal((1, 256)).astype("f4")})
    assert output.shape == (1, form.columns) and 0.3 < output.std() < 3


def test_the_share_is_of_the_bytes_that_a_bundle_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "manifest.json", {"params": {"bytes": 50_000_000}})
    contender, made = Contender("kiln host", "bundle", "0.1", ("onnx",), "host"), Times()
    made.add([10e-3], [10e-3], "wall")
    monkeypatch.setattr(weights.subjects, "find", lambda *_: Subject("n", "n", tmp_path, {}))
    monkeypatch.setattr(contenders, "file_for", lambda *_: tmp_path)
    monkeypatch.setattr(weights, "play", lambda *_: Match("n", 1, "wall", {"kiln host": made}))
    folders, plan = Folders(tmp_path, tmp_path), Plan(1, 0.1, "wall", [0])
    found = weights._match(weights.FORMS[1], [contender], ["host"], 1, plan, folders)
    assert found is not None and weights.row(found, weights.FORMS[1], [contender], 1, 10.0) == [
        "int8", "1", "50", "10.0", "50 %", "**10** ±0%",
    ]  # fmt: skip


def test_the_command_knows_every_benchmark() -> None:
    """./kiln takes other words after bench for models."""
    words = next(line for line in (ROOT / "kiln").read_text().splitlines() if "| compare | " in line)
    assert set(_WHAT) <= {word.strip(' ")') for word in words.partition(")")[0].split("|")}
