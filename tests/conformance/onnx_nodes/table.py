"""The tables of docs/onnx.md: how many node tests pass on each target, and of each operator, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .cases import VARIANTS, Case
from .expected import Runs
from .results import CRASH, HOST, PASS, WRONG

PAGE = Path(__file__).resolve().parents[3] / "docs/onnx.md"
_TARGETS, _OPERATORS = "table of targets", "table"  # names of the tables in the page's comments
_REASONS = 2  # shown for an operator


def tables(cases: Sequence[Case], refused: Mapping[str, str], runs: Runs) -> dict[str, str]:
    """Both tables by name, from all cases, the reasons of the refused ones, and the last runs."""
    return {_TARGETS: table_of_targets(cases, runs), _OPERATORS: table(cases, refused)}


def table_of_targets(cases: Sequence[Case], runs: Runs) -> str:
    """A row for each target that was run: the share of each variant that passed."""
    totals = Counter(case.variant for case in cases)
    lines = [
        "| target | inputs as data | inputs as constants | in float16 | wrong results |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for target in sorted(runs, key=lambda name: (name != HOST, name)):
        shares, wrong = [], 0
        for variant in VARIANTS:
            counts = runs[target].get(variant, {})
            run = sum(counts.values())
            wrong += counts.get(WRONG, 0) + counts.get(CRASH, 0)
            some = "" if run == totals[variant] else " run"
            shares.append(f"{counts[PASS]} of {run}{some}, {counts[PASS] / run:.1%}" if run else "")
        lines.append(f"| {target} | {' | '.join(shares)} | {wrong} |".replace("%", " %"))
    return "\n".join(lines)


def table(cases: Sequence[Case], refused: Mapping[str, str]) -> str:
    """A row for each operator, from all cases and the reasons of cases that every target refuses."""
    operators: dict[str, list[Case]] = {}
    for case in cases:
        operators.setdefault(case.operator, []).append(case)
    lines = [
        "| operator | inputs as data | inputs as constants | in float16 | refused because |",
        "| --- | ---: | ---: | ---: | --- |",
        _row("all", cases, refused, reasons=False),
    ]
    lines += [_row(name, operators[name], refused) for name in sorted(operators, key=str.lower)]
    return "\n".join(lines)


def _row(name: str, cases: Sequence[Case], refused: Mapping[str, str], reasons: bool = True) -> str:
    shares = []
    for variant in VARIANTS:
        chosen = [case.name for case in cases if case.variant == variant]
        shares.append(f"{sum(each not in refused for each in chosen)} of {len(chosen)}" if chosen else "")
    counted = Counter(refused[case.name].removeprefix(f"{name}: ") for case in cases if case.name in refused)
    shown = "; ".join(_plain(reason, name) for reason, _ in counted.most_common(_REASONS))
    more = f"; {len(counted) - _REASONS} more" if len(counted) > _REASONS else ""
    return f"| {name} | {' | '.join(shares)} | {shown + more if reasons else ''} |"


def _plain(reason: str, name: str) -> str:
    """A reason as a part of a sentence; of a bare operator, that it has no conversion."""
    return "no conversion" if reason == name else reason.replace("|", "\\|")


def write_tables(cases: Sequence[Case], refused: Mapping[str, str], runs: Runs) -> None:
    """Replace the tables in docs/onnx.md."""
    page = with_tables(PAGE.read_text(encoding="utf-8"), tables(cases, refused, runs))
    PAGE.write_text(page, encoding="utf-8")


def with_tables(page: str, made: Mapping[str, str]) -> str:
    """The page with the tables `made`, each between the comments that name it."""
    for name, content in made.items():
        begin, end = f"<!-- begin of the {name} -->", f"<!-- end of the {name} -->"
        page = f"{page.split(begin)[0]}{begin}\n{content}\n{end}{page.split(end)[1]}"
    return page
