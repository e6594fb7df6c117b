"""The folder of a build for the temporary files of its stages."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kiln.scons.build_scratch import BuildScratch


def test_stages_that_start_at_once_share_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders were made, of which the second alone was removed."""
    made, make = [], tempfile.mkdtemp
    all_ask = threading.Barrier(4)

    def slow(**options: Any) -> str:
        time.sleep(0.05)  # the others ask in the meantime
        made.append(make(**{**options, "dir": tmp_path}))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", slow)
    scratch, folders = BuildScratch(), set[Path]()

    def ask() -> None:
        all_ask.wait()
        folders.add(scratch.folder())

    stages = [threading.Thread(target=ask) for _ in range(4)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()
    assert len(made) == len(folders) == 1
    scratch.remove()
    assert not list(tmp_path.iterdir())
