"""Tables show names of a user's model as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.tables import table_console
from rich.table import Table

PACKAGE = Path(__file__).resolve().parents[2] / "build_tools/kiln"
NAMES = ("[/]", "[red]x[/red]", "node:id:0", "[link=x]")


def test_names_that_look_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """The first ended a comparison with an exception; others lost their brackets, or became emojis."""
    table = Table(title="names of [x]")
    for name in NAMES:
        table.add_row(name)
    table_console(60).print(table)
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*NAMES, "names of [x]")), printed


def test_no_other_console_prints_tables() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if "Console(file=" in path.read_text()]
    assert sources == [PACKAGE / "tables.py"]
