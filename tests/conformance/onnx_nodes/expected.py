"""refused.txt: the node tests that are refused, by reason; every other case must pass."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .worker import PASS, REFUSED, Result, reason_of

FILE = Path(__file__).with_name("refused.txt")
_HEAD = """\
# Variants of ONNX's node tests that Kiln refuses, by reason. Written by
# PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.onnx_nodes --write
"""


def read_expected() -> dict[str, str]:
    """By case, the reason for which it is refused."""
    found: dict[str, str] = {}
    reason = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            found.update(dict.fromkeys(line.split(), reason))
        elif not line.startswith("#"):
            reason = line
    return found


def expected(result: Result, known: dict[str, str]) -> bool:
    """Whether a result is a pass of a case that should pass, or a refusal for the reason on file."""
    if result.outcome == REFUSED:
        return known.get(result.name) == reason_of(result)
    return result.outcome == PASS and result.name not in known


def write_expected(results: Iterable[Result]) -> None:
    """Write refused.txt: a line per reason, the most frequent first, and below it the cases."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.outcome == REFUSED:
            reasons.setdefault(reason_of(result), []).append(result.name)
    lines = [_HEAD.rstrip()]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += [reason, *(f"  {name}" for name in sorted(names))]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
