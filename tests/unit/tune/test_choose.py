"""byoc-choose: the times of earlier builds."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config.library_choices import LibraryTime
from kiln.tune.choose import _stored_in

GOOD = '{"kiln": 3.5, "us": 7, "ratio": 2.0, "worth": false}'


@pytest.mark.parametrize("content", ["{", "[]", '{"d": 1}', '{"d": {"cpu": {"kiln": 3.5}}}'])
def test_damaged_times_are_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = tmp_path / "times.json"
    path.write_text(content)
    assert _stored_in(path) == {}
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}: ") and printed.endswith(": the subgraphs are timed again\n")
    assert printed.count("\n") == printed.count(str(path)) == 1


def test_times_of_earlier_builds(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    assert _stored_in(path) == {}
    path.write_text(f'{{"d": {{"cpu": {GOOD}}}}}')
    assert _stored_in(path) == {"d": {"cpu": LibraryTime(kiln=3.5, us=7.0, ratio=2.0, worth=False)}}
