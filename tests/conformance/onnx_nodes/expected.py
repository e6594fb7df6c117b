"""refused.txt: the node tests that are refused, by reason; every other case must pass."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from .worker import PASS, REFUSED, Result, reason_of

FILE = Path(__file__).with_name("refused.txt")
_HEAD = """\
# Variants of ONNX's node tests that Kiln refuses, by reason. Written by
# PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.onnx_nodes --write
"""

_WRAPPED = textwrap.TextWrapper(
    110, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
)


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
    """Set the reasons of `results` in refused.txt: a line per reason, by frequency, then its cases.

    Cases that are not among `results` keep their reasons.
    """
    known = read_expected() if FILE.exists() else {}
    for result in results:
        known.pop(result.name, None)
        if result.outcome == REFUSED:
            known[result.name] = reason_of(result)
    reasons: dict[str, list[str]] = {}
    for name, reason in known.items():
        reasons.setdefault(reason, []).append(name)
    lines = [_HEAD.rstrip()]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += [reason, *_WRAPPED.wrap(" ".join(sorted(names)))]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
