"""Expected results: refused.txt has the node tests that are refused, by reason; all others pass.

runs.json: for each target and variant, how many cases of a run passed, were refused, and had wrong results.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from .cases import VARIANTS
from .results import HOST, PASS, REFUSED, Result, counts, reason_of

FILE = Path(__file__).with_name("refused.txt")
RUNS = Path(__file__).with_name("runs.json")
Runs = dict[str, dict[str, Mapping[str, int]]]  # by target and variant, the number of cases by outcome
_HEAD = """\
# Variants of ONNX's node tests that Kiln refuses, by reason; with @target, on that target alone. Written by
# PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.onnx_nodes --write
"""

_WRAPPED = textwrap.TextWrapper(
    110, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
)


def read_expected() -> dict[str, str]:
    """By case, the reason for which it is refused."""
    outcomes: dict[str, str] = {}
    reason = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            outcomes.update(dict.fromkeys(line.split(), reason))
        elif not line.startswith("#"):
            reason = line
    return outcomes


def expected(result: Result, known: dict[str, str]) -> bool:
    """Whether a result is a pass of a case that should pass, or a refusal for the reason on file."""
    if result.outcome == REFUSED:
        return known.get(result.key, known.get(result.name)) == reason_of(result)
    return result.outcome == PASS and result.name not in known and result.key not in known


def write_expected(results: Iterable[Result]) -> None:
    """Set the reasons of `results` in refused.txt: a line per reason, by frequency, then its cases.

    Cases that are not among `results` keep their reasons.
    """
    known = read_expected() if FILE.exists() else {}
    for result in sorted(results, key=lambda result: result.target != HOST):
        known.pop(result.key, None)
        if result.outcome == REFUSED and known.get(result.name) != reason_of(result):
            known[result.key] = reason_of(result)
    reasons: dict[str, list[str]] = {}
    for name, reason in known.items():
        reasons.setdefault(reason, []).append(name)
    lines = [_HEAD.rstrip()]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += [reason, *_WRAPPED.wrap(" ".join(sorted(names)))]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_runs() -> Runs:
    """The outcomes of the last runs."""
    return dict(json.loads(RUNS.read_text(encoding="utf-8"))) if RUNS.exists() else {}


def write_runs(results: Iterable[Result]) -> None:
    """Set the outcomes of each target and variant of `results`; others stay."""
    runs, results = read_runs(), list(results)
    for target in {result.target for result in results}:
        for variant in VARIANTS:
            counted = counts(results, target, variant)
            if sum(counted.values()):
                runs.setdefault(target, {})[variant] = counted
    RUNS.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
