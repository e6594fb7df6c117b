"""What tests of the import stage share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kiln.__main__ import main


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """A function that imports a file that must be refused, and returns the error."""

    def call(source: Path, **config: Any) -> str:
        settings, out = tmp_path / "import.json", tmp_path / "out" / "import"
        settings.write_text(json.dumps({"name": "m", **config}))
        out.parent.mkdir(exist_ok=True)
        status = main(["import", "--config", str(settings), "--source", str(source), "--out", str(out)])
        printed = capfd.readouterr()
        assert status == 2
        assert printed.out == ""
        assert printed.err.startswith("kiln: error: ") and printed.err.count("\n") == 1, printed.err
        assert list(out.parent.iterdir()) == []
        return printed.err

    return call
