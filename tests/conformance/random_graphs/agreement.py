"""Compares random graphs of any format with their reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..onnx_nodes.results import PASS, REFUSED
from ..onnx_nodes.worker import Compare, Load, run_all


def agree(
    found: Iterable[Any],
    how: tuple[Load, Compare],
    targets: Sequence[str],
    jobs: int = 1,
    refusals: bool = False,
) -> None:
    """Compare the graphs that the reference can run, which must be most of `found`: it has None for others.

    how: the way to load a case, and the one to compare its results. refusals: some may be refused, such as
    operands that fit at the three sizes alone, but none crashes.
    """
    all_found = list(found)
    cases = [case for case in all_found if case is not None]
    assert len(cases) > 0.8 * len(all_found)
    results = list(run_all(cases, jobs, *how, targets))
    assert len(results) == len(cases) * len(targets)
    allowed = (PASS, REFUSED) if refusals else (PASS,)
    assert sum(result.outcome == PASS for result in results) > 0.9 * len(results)
    wrong = [f"{r.key}: {r.outcome} {r.detail}" for r in results if r.outcome not in allowed]
    assert not wrong, "\n".join(wrong)
