"""An unexpected exception is one line that names the stage and its subject."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from kiln import unforeseen
from kiln.__main__ import main
from kiln.stage import STAGES, Input, Stage, StageSpec

RAISED = [
    (ZeroDivisionError("division by zero\nsecond line"), "ZeroDivisionError: division by zero"),
    (MemoryError(), "out of memory"),
    (RecursionError("maximum recursion depth exceeded"), "RecursionError: maximum"),
    (ValueError(), "ValueError"),
]


@dataclass(frozen=True, kw_only=True)
class BrokenStage(Stage, spec=StageSpec("broken", "broken_stage", cached=False)):
    """A stage whose module raises an exception."""

    source: Annotated[Path, Input("model file")]


del STAGES["broken"]


@pytest.mark.parametrize(("error", "told"), RAISED, ids=[type(error).__name__ for error, _ in RAISED])
@pytest.mark.parametrize("shown", ["", "1"])
def test_one_line(
    error: Exception,
    told: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stage = types.ModuleType("broken_stage")

    def run(_: object) -> None:
        raise error

    stage.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_stage", stage)
    monkeypatch.setitem(STAGES, "broken", BrokenStage)
    monkeypatch.setenv(unforeseen.VARIABLE, shown)
    assert main(["broken", "--source", "models/some.onnx"]) == 2
    printed = capfd.readouterr().err
    last = printed.splitlines()[-1]
    assert last.startswith(f"kiln: error: broken of models/some.onnx: {told}")
    assert ("Traceback (most recent call last)" in printed) is bool(shown)
    assert shown or (printed.count("\n") == 1 and "KILN_TRACEBACK=1" in printed)
