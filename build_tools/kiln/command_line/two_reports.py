"""Two reports side by side: bytes, arenas, times, and the steps that differ."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from kiln.errors import KilnError
from kiln.tables import table_console

_DATA = re.compile(r'<script type="application/json" id="kiln-data">(.*?)</script>', re.DOTALL)
_FIGURES = ("time", "arena", "params", "code", "flops")
_BYTES = {"flash": "flash", "ram": "RAM", "stack": "stack", "parameters": "parameters"}


def compare_reports(before: Path, after: Path) -> dict[str, Any]:
    """Compare the reports `before` and `after`, each a page or a bundle's folder.

    Buckets are paired by name, and steps by their operators and the shapes that they write, in order. Times
    are compared where both reports have them in the same unit. Raises KilnError for any other file.
    """
    first, second = page_data(before), page_data(after)
    unit = first["time_unit"] if first["time_unit"] == second["time_unit"] else None
    names = dict.fromkeys(bucket["name"] for page in (first, second) for bucket in page["buckets"])
    pages = [{bucket["name"]: bucket for bucket in page["buckets"]} for page in (first, second)]
    return {
        "model": second["model"],
        "reports": [str(before), str(after)],
        "of": [f"{page['model']} on {page['target']}" for page in (first, second)],
        "time_unit": unit,
        "bytes": {
            name: _pair(first["bytes"].get(name), second["bytes"].get(name))
            for name in _BYTES
            if name in first["bytes"] or name in second["bytes"]
        },
        "buckets": [
            _bucket(name, pages[0].get(name), pages[1].get(name), unit is not None) for name in names
        ],
    }


def page_data(path: Path) -> dict[str, Any]:
    """The figures of a report, a page or a bundle's folder. Raises KilnError for any other file."""
    page = path / "report.html" if path.is_dir() else path
    try:
        data = _DATA.search(page.read_text(encoding="utf-8"))
        content = json.loads(data[1]) if data else {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a page of Kiln"
        raise KilnError(f"report: {page}: {reason}; a report.html or a bundle's folder is expected") from None
    if not isinstance(content, dict) or content.get("format") != 1:
        raise KilnError(f"report: {page}: not a report of this version of Kiln; build the bundle again")
    return content


def _pair(before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after}


def _bucket(
    name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, timed: bool
) -> dict[str, Any]:
    first, second = (
        [node for node in (page or {"nodes": []})["nodes"] if "step" in node] for page in (before, after)
    )
    times = _pair(_total(first), _total(second)) if timed else _pair(None, None)
    return {
        "name": name,
        "arena": _pair(before and before["arena"], after and after["arena"]),
        "time": times,
        "count": _pair(len(first), len(second)),
        "steps": _steps(first, second, None not in times.values()),
    }


def _total(steps: Sequence[Mapping[str, Any]]) -> float | None:
    times = [step["time"] for step in steps]
    return sum(times) if times and None not in times else None


def _key(step: Mapping[str, Any]) -> tuple[str, ...]:
    return step["label"], *(f"{tensor['dtype']} {tensor['shape']}" for tensor in step["writes"])


def _steps(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], timed: bool
) -> list[dict[str, Any]]:
    """The steps that differ: changed, new (without `before`), gone (without `after`), in order."""
    matcher = difflib.SequenceMatcher(None, list(map(_key, before)), list(map(_key, after)), autojunk=False)
    rows: list[dict[str, Any]] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            rows += [
                _row(step, counterpart, timed)
                for step, counterpart in zip(before[a:b], after[c:d], strict=True)
            ]
        else:
            rows += [_row(step, None, timed) for step in before[a:b]]
            rows += [_row(None, counterpart, timed) for counterpart in after[c:d]]
    return [row for row in rows if row["before"] != row["after"]]


def _row(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, timed: bool) -> dict[str, Any]:
    def figures(step: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if step is None:
            return None
        figures_of_step = {key: step[key] for key in _FIGURES if timed or key != "time"}
        return {"step": step["step"], "kernel": step["kernel"], **figures_of_step}

    step = after or before or {}
    return {"label": step["label"], "before": figures(before), "after": figures(after)}


def show(comparison: Mapping[str, Any]) -> None:
    """Print the comparison: totals, then the steps of each bucket that differ."""
    width = None if sys.stdout.isatty() else 140
    console = table_console(width)
    for path, description in zip(comparison["reports"], comparison["of"], strict=True):
        print(f"{path}: {description}")
    totals = Table()
    for title in ("", "before", "after", "change"):
        totals.add_column(title, justify="right" if title else "left")
    for name, pair in comparison["bytes"].items():
        totals.add_row(f"{_BYTES[name]}, bytes", *_cells(pair))
    for bucket in comparison["buckets"]:
        totals.add_row(f"{bucket['name']}: arena, bytes", *_cells(bucket["arena"]))
        if any(value is not None for value in bucket["time"].values()):
            totals.add_row(f"{bucket['name']}: time, {comparison['time_unit']}", *_cells(bucket["time"]))
    console.print(totals)
    for bucket in comparison["buckets"]:
        if not bucket["steps"]:
            print(f"{bucket['name']}: all {bucket['count']['after']} steps are equal")
            continue
        table = Table(title=f"{bucket['name']}: steps that differ", title_justify="left")
        table.add_column("step", overflow="fold")
        for title in ("#", "time", "arena", "params", "code"):
            table.add_column(title, justify="right")
        for row in bucket["steps"]:
            step_before, step_after = row["before"], row["after"]
            numbers = (step_before or {"step": "new"})["step"], (step_after or {"step": "gone"})["step"]
            where = " → ".join(map(str, numbers))
            figures = (
                _change((step_before or {}).get(k), (step_after or {}).get(k))
                for k in ("time", "arena", "params", "code")
            )
            table.add_row(row["label"], where, *figures)
        console.print(table)


def _cells(pair: Mapping[str, Any]) -> tuple[str, str, str]:
    before, after = pair["before"], pair["after"]
    change = f"{100 * (after / before - 1):+.1f} %" if before and after is not None else ""
    return _number(before), _number(after), change


def _change(before: Any, after: Any) -> str:
    return _number(after) if before == after else f"{_number(before) or '–'} → {_number(after) or '–'}"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
