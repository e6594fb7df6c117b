"""The table of docs/onnx.md: by operator, how many node tests pass, and why the others are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .cases import VARIANTS, Case

PAGE = Path(__file__).resolve().parents[3] / "docs/onnx.md"
_BEGIN, _END = "<!-- begin of the table -->", "<!-- end of the table -->"
_REASONS = 2  # shown for an operator


def table(cases: Sequence[Case], refused: Mapping[str, str]) -> str:
    """The table, from all cases and the reasons of those that are refused."""
    operators: dict[str, list[Case]] = {}
    for case in cases:
        operators.setdefault(case.operator, []).append(case)
    lines = [
        "| operator | inputs as data | inputs as constants | refused because |",
        "| --- | ---: | ---: | --- |",
        _row("all", cases, refused, reasons=False),
    ]
    lines += [_row(name, operators[name], refused) for name in sorted(operators, key=str.lower)]
    return "\n".join(lines)


def _row(name: str, cases: Sequence[Case], refused: Mapping[str, str], reasons: bool = True) -> str:
    shares = []
    for variant in VARIANTS:
        chosen = [case.name for case in cases if case.name.endswith(f"/{variant}")]
        shares.append(f"{sum(each not in refused for each in chosen)} of {len(chosen)}" if chosen else "")
    counted = Counter(refused[case.name].removeprefix(f"{name}: ") for case in cases if case.name in refused)
    shown = "; ".join(_plain(reason, name) for reason, _ in counted.most_common(_REASONS))
    more = f"; {len(counted) - _REASONS} more" if len(counted) > _REASONS else ""
    return f"| {name} | {shares[0]} | {shares[1]} | {shown + more if reasons else ''} |"


def _plain(reason: str, name: str) -> str:
    """A reason as a part of a sentence; of a bare operator, that it has no conversion."""
    return "no conversion" if reason == name else reason.replace("|", "\\|")


def write_table(cases: Sequence[Case], refused: Mapping[str, str]) -> None:
    """Replace the table in docs/onnx.md."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(cases, refused)), encoding="utf-8")


def with_table(page: str, made: str) -> str:
    """The page with the table `made`."""
    before, after = page.split(_BEGIN)[0], page.split(_END)[1]
    return f"{before}{_BEGIN}\n{made}\n{_END}{after}"
