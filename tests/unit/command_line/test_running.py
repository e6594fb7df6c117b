"""Runs of a bundle by commands: sequences of a model with state stay whole, and samples are no sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.command_line import running
from kiln.device.bundle import Bundle
from kiln.device.check.execute import Outcome
from kiln.device.check.runners.local import LocalRunner


def test_a_program_is_started_with_whole_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "m", "outputs": [{"dtype": "float32"}]}))
    started: list[tuple[int, int]] = []

    def execute(*given: Any, runs: int, **_: Any) -> Outcome:
        started.append((len(given[1]), runs))
        return Outcome(outputs=list(given[1]))

    monkeypatch.setattr(running, "execute", execute)
    bundle = running.RunningBundle(Bundle(tmp_path, "m"), tmp_path, LocalRunner("host"))
    inputs = [[np.zeros(1, np.float32)] for _ in range(70)]
    assert len(bundle.outputs(inputs, 5)) == 70 and started == [(30, 5), (30, 5), (10, 5)]
    started.clear()
    assert len(bundle.outputs(inputs)) == 70 and started == [(32, 1), (32, 1), (6, 1)]
    started.clear()
    assert len(bundle.outputs(inputs, 64)) == 70 and started == [(64, 64), (6, 64)]
