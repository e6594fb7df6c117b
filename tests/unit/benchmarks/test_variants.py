"""Variants in benchmarks: forced for a comparison, and next to the base of their target."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import contenders
from benchmarks.contenders import Folders, find_peer, kiln_for
from benchmarks.variants import Row


def test_a_target_may_name_the_variant_that_runs() -> None:
    whole, one = kiln_for("x86_64"), kiln_for("x86_64:v3")
    assert (whole.target, whole.variant) == ("x86_64", None)
    assert (one.name, one.target, one.variant) == ("kiln x86_64:v3", "x86_64", "v3")


def test_peers_that_cannot_be_held_to_an_instruction_set_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.touch()
    answers = {"openvino": ["avx2"], "onnxruntime": []}

    def ask(_python: Path, request: dict[str, str], _log: Path) -> dict[str, object]:
        return {"missing": [], "version": "1", "sources": ["onnx"], "isas": answers[request["peer"]]}

    monkeypatch.setattr(contenders, "ask", ask)
    folders = Folders(tmp_path, python)
    assert find_peer("openvino", folders, "avx2").name == "openvino"
    assert find_peer("onnxruntime", folders, "avx2").name == "onnxruntime †"
    assert find_peer("onnxruntime", folders).name == "onnxruntime"
    assert find_peer("onnxruntime", folders, "avx2").module == "onnxruntime"


def test_a_row_is_compared_with_the_base_and_with_host() -> None:
    base = Row("t", "m", "base", 1000, 64, 60, "3 right", instructions=4_000_000)
    wide = Row("t", "m", "wide", 2000, 64, 60, "3 right", instructions=1_000_000)
    assert wide.cells(base, None)[3:] == [
        "2,000", "64", "60", "3 right", "1.00", "0.25", "–", "–", "–", "–",
    ]  # fmt: skip
    timed, host = Row("t", "m", "v4", 1, 1, 1, "", ms=3.0), Row("host", "m", "base", 1, 1, 1, "", ms=2.0)
    assert timed.cells(Row("t", "m", "v3", 1, 1, 1, "", ms=6.0), host)[7:] == [
        "–", "–", "3.000", "0.50", "1.50", "–",
    ]  # fmt: skip
