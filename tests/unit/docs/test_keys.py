"""docs/keys.md has every key of the YAML files."""

from __future__ import annotations

import re

from .keys import PAGE, page


def test_the_page_is_up_to_date() -> None:
    command = "PYTHONPATH=build_tools:tests .venv/bin/python -m unit.docs.keys"
    assert PAGE.read_text(encoding="utf-8") == page(), f"write it by: {command}"


def test_every_section_has_one_table() -> None:
    """Some key has the section, by the name of its table."""
    for part in page().split("## Files in ")[1:]:
        headings = [line[5:-1] for line in part.splitlines() if line.startswith("### ")]
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        named = {text for row in rows for text in re.findall("`([^`]+)`", row.split(" | ")[1])}
        assert len(headings) == len(set(headings)) > 3
        assert set(headings) <= named
