"""The table of docs/zoo.md."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from kiln.files import atomic_write

from zoo.environment import ROOT
from zoo.record import Record, Result

PAGE = ROOT / "docs/zoo.md"
_COLUMNS = ("kind", "static", "dynamic", "lower", "arena", "speed", "dynamic speed")
_BETWEEN = re.compile(r"(?<!\\)\|")  # cells may contain escaped bars
_BEGIN, _END = "<!-- begin of the table -->", "<!-- end of the table -->"


def write(record: Record) -> None:
    """Replace the table in docs/zoo.md; rows of models and forms that `record` lacks stay as they are."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    old, _, after = rest.partition(_END)
    atomic_write(PAGE, f"{before}{_BEGIN}\n{made(record, rows(old))}{_END}{after}")


def rows(table: str) -> dict[str, list[str]]:
    """The cells of each model's row of a table, by the model's name."""
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in _BETWEEN.split(line)[1:-1]] for line in lines]
    return {name: found for name, *found in cells if name != "all"}


def made(record: Record, known: Mapping[str, Sequence[str]] | None = None) -> str:
    """A row for each model: whether its forms build and agree, and their figures.

    `known`: the cells of an earlier table, for what `record` lacks.
    """
    cells_of_model = {name: list(cells) for name, cells in (known or {}).items()}
    for name, results in record.models.items():
        cells_of_model[name] = _cells(
            record.groups[name], results, cells_of_model.get(name, [""] * len(_COLUMNS))
        )
    ordered = sorted(cells_of_model, key=lambda name: (cells_of_model[name][0], name))
    lines = [
        "| model | kind | static | dynamic | lower, s | arena, kB | speed, static | dynamic (lowest) |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    shown = []
    for column in (_COLUMNS.index("static"), _COLUMNS.index("dynamic")):
        built = [
            cells[column] for cells in cells_of_model.values() if cells[column] not in ("", "not exported")
        ]
        shown.append(f"{built.count('ok')} of {len(built)}")
    for column in (_COLUMNS.index("speed"), _COLUMNS.index("dynamic speed")):
        speeds = [float(cells[column].split()[0]) for cells in cells_of_model.values() if cells[column]]
        shown.append(f"{statistics.geometric_mean(speeds):.2f} (mean)" if speeds else "")
    lines.append(f"| all | | {shown[0]} | {shown[1]} | | | {shown[2]} | {shown[3]} |")
    lines += ["| " + " | ".join([name, *cells_of_model[name]]) + " |" for name in ordered]
    return "\n".join(lines) + "\n"


def _cells(group: str, results: Mapping[str, Result], old: Sequence[str]) -> list[str]:
    """The cells of a model after its name, from `results` or else from an earlier table."""
    chosen = {form: _results(results, form) for form in ("static", "dynamic")}
    figures = next((one for one in [*chosen["static"], *chosen["dynamic"]] if one.state == "ok"), None)
    static, dynamic = (next((one for one in results if one.speed), None) for results in chosen.values())
    lower, arena = old[3:5]
    if figures is not None:
        lower = "" if figures.lower is None else f"{figures.lower:.0f}"
        arena = "" if figures.arena is None else f"{figures.arena / 1000:.0f}"
    return [
        group,
        _state(chosen["static"]) if chosen["static"] else old[1],
        _state(chosen["dynamic"]) if chosen["dynamic"] else old[2],
        lower,
        arena,
        f"{static.speed:.2f}" if static else old[5],
        f"{dynamic.speed:.2f} ({dynamic.lowest:.2f})" if dynamic else old[6],
    ]


def _results(results: Mapping[str, Result], form: str) -> Sequence[Result]:
    return [result for name, result in results.items() if name.endswith(form)]


def _state(results: Sequence[Result]) -> str:
    """The worst of the states, with its reason; ok where every export that exists builds and agrees."""
    built = [one for one in results if one.state != "not exported"]
    if not built:
        return "not exported" if results else ""
    worst = next((one for one in built if one.state != "ok"), None)
    return "ok" if worst is None else f"{worst.state}: {_plain(worst.why)}"


def _plain(text: str, most: int = 120) -> str:
    text = text.replace(str(ROOT) + "/", "").replace("|", "\\|")
    return text if len(text) <= most else text[: most - 1] + "…"
