"""The table of docs/zoo.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kiln.files import atomic_write

from zoo.environment import ROOT
from zoo.record import Record, Result

PAGE = ROOT / "docs/zoo.md"
_BEGIN, _END = "<!-- begin of the table -->", "<!-- end of the table -->"


def write(record: Record) -> None:
    """Replace the table in docs/zoo.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(_BEGIN)[0], page.split(_END)[1]
    atomic_write(PAGE, f"{before}{_BEGIN}\n{made(record)}{_END}{after}")


def made(record: Record) -> str:
    """A row for each model: whether it builds and agrees, static and open, and figures of the static form."""
    forms = ("static", "open")
    lines = ["| model | kind | static | open | lower, s | arena, kB | ONNX Runtime / Kiln |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | ---: |")
    speeds = []
    counts: dict[str, list[int]] = {form: [0, 0] for form in forms}
    for name in sorted(record.models, key=lambda name: (record.groups[name], name)):
        results = record.models[name]
        chosen = {form: _results(results, form) for form in forms}
        for form, found in chosen.items():
            built = [one for one in found if one.state != "not exported"]
            counts[form][0] += bool(built) and all(one.state == "ok" for one in built)
            counts[form][1] += bool(built)
        figures = next((one for one in [*chosen["static"], *chosen["open"]] if one.state == "ok"), Result(""))
        speed = next((one.speed for one in chosen["static"] if one.speed), None)
        speeds += [speed] if speed else []
        cells = [
            name,
            record.groups[name],
            *(_state(chosen[form]) for form in forms),
            "" if figures.lower is None else f"{figures.lower:.0f}",
            "" if figures.arena is None else f"{figures.arena / 1000:.0f}",
            f"{speed:.2f}" if speed else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    shown = [f"{good} of {tried}" for good, tried in counts.values()]
    mean = f"{math.exp(sum(map(math.log, speeds)) / len(speeds)):.2f} (mean)" if speeds else ""
    lines.insert(2, f"| all | | {shown[0]} | {shown[1]} | | | {mean} |")
    return "\n".join(lines) + "\n"


def _results(results: dict[str, Result], form: str) -> Sequence[Result]:
    return [result for name, result in results.items() if name.endswith(form)]


def _state(found: Sequence[Result]) -> str:
    """The worst of the states, with its reason; ok where every export that exists builds and agrees."""
    built = [one for one in found if one.state != "not exported"]
    if not built:
        return "not exported" if found else ""
    worst = next((one for one in built if one.state != "ok"), None)
    return "ok" if worst is None else f"{worst.state}: {_plain(worst.why)}"


def _plain(text: str, most: int = 120) -> str:
    text = text.replace(str(ROOT) + "/", "").replace("|", "\\|")
    return text if len(text) <= most else text[: most - 1] + "…"
