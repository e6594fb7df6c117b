"""kiln report A B: which figures and steps differ between two pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line.two_reports import compare_reports
from kiln.errors import KilnError

from unit.report.test_html import page


def step(index: int, label: str, shape: str, time: float | None, code: int) -> dict[str, Any]:
    return {
        "step": index, "label": label, "kernel": f"k_{label}_{code}", "time": time, "arena": 64, "params": 0,
        "code": code, "flops": 0, "writes": [{"dtype": "float32", "shape": shape}],
    }  # fmt: skip


def write(path: Path, steps: list[dict[str, Any]], arena: int, flash: int, unit: str = "ms") -> Path:
    data = {
        "format": 1, "model": "m", "target": "t", "time_unit": unit, "bytes": {"flash": flash, "ram": 10},
        "buckets": [{"name": "static", "arena": arena, "nodes": [{"port": "input"}, *steps]}],
    }  # fmt: skip
    path.write_text(f'<script type="application/json" id="kiln-data">{json.dumps(data)}</script>')
    return path


BEFORE = [
    step(0, "conv", "1 × 8", 1.0, 100),
    step(1, "pad", "1 × 9", 0.5, 10),
    step(2, "add", "1 × 8", 0.25, 5),
]
AFTER = [
    step(0, "conv", "1 × 8", 0.8, 120),
    step(1, "add", "1 × 8", 0.25, 5),
    step(2, "relu", "1 × 8", 0.1, 7),
]


def test_steps_are_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step is faster, one is gone, one is new, and one has another number only."""
    paths = write(tmp_path / "a.html", BEFORE, 128, 1000), write(tmp_path / "b.html", AFTER, 64, 1100)
    found = compare_reports(*paths)
    assert found["bytes"] == {"flash": {"before": 1000, "after": 1100}, "ram": {"before": 10, "after": 10}}
    bucket = found["buckets"][0]
    assert bucket["arena"] == {"before": 128, "after": 64}
    assert bucket["time"] == {"before": 1.75, "after": pytest.approx(1.15)}
    pairs = [
        (row["label"], row["before"] and row["before"]["step"], row["after"] and row["after"]["step"])
        for row in bucket["steps"]
    ]
    assert pairs == [("conv", 0, 0), ("pad", 1, None), ("add", 2, 1), ("relu", None, 2)]
    assert command_line.main(["report", *map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert (
        "+10.0 %" in out and "-50.0 %" in out and "1 → gone" in out and "new → 2" in out and "1 → 0.8" in out
    )
    assert command_line.main(["report", *map(str, paths), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["data"] == found


def test_times_are_compared_only_where_both_have_them(tmp_path: Path) -> None:
    untimed = [{**one, "time": None} for one in BEFORE]
    paths = write(tmp_path / "a.html", BEFORE, 1, 1), write(tmp_path / "b.html", untimed, 1, 1)
    assert compare_reports(*paths)["buckets"][0]["steps"] == []
    write(paths[1], BEFORE, 1, 1, unit="M instr.")
    assert compare_reports(*paths)["time_unit"] is None
    assert compare_reports(*paths)["buckets"][0]["time"] == {"before": None, "after": None}


def test_a_real_page_of_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").write_text(page(), encoding="utf-8")
    assert command_line.main(["report", str(tmp_path), str(tmp_path / "report.html")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "static: all 2 steps are equal"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; a report.html"),
        ("<html>", "not a report of this version of Kiln"),
        ('<script type="application/json" id="kiln-data">{</script>', "not a page of Kiln"),
        ('<script type="application/json" id="kiln-data">[]</script>', "not a report of this version"),
    ],
)
def test_what_is_no_report(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.html").write_text(content)
    with pytest.raises(KilnError, match=message):
        compare_reports(tmp_path / "a.html", tmp_path / "a.html")


def test_two_words_without_a_target_are_reports(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    assert command_line.main(["report", *paths]) == 2
    told = f"kiln: error: report: {paths[0]}: No such file or directory; a report.html or a bundle's folder"
    assert capfd.readouterr().err.startswith(told)


@pytest.mark.parametrize("count", [1, 3])
def test_two_reports_are_compared(tmp_path: Path, count: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["report", *[str(tmp_path / "report.html")] * count]) == 2
    assert capfd.readouterr().err == (
        f"kiln: error: report: two reports are compared, {count} given; the report of one model: "
        "kiln report MODEL --target NAME\n"
    )
