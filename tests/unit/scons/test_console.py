"""What a build prints on a terminal: names are shown as they are."""

from __future__ import annotations

import sys

import pytest
from kiln.scons import console as console_module
from kiln.scons.console import Console


def test_names_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """rich would drop [b4], make an emoji of :id:, and pass an escape sequence on."""
    monkeypatch.setattr(console_module, "_quiet", lambda: False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    shown = Console()
    run = shown.start("host/net[b4]: lower")
    shown.line("output a:id:0 [/] \x1b[2Jx\nnext")
    shown.finish(run, True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "output a:id:0 [/] \\u001b[2Jx" in lines and "next" in lines
    assert any(line.startswith("✓ host/net[b4]: lower ") for line in lines), lines
