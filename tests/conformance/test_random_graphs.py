"""Random ONNX graphs of many operators compute what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from .drawn_operators.case import DrawnCase, compare_case, save_case
from .onnx_nodes.results import HOST, PASS, REFUSED
from .onnx_nodes.worker import run_all
from .random_graphs.cases import made

NODES = 8
# Graphs that were refused: sizes that ONNX infers wrongly, and Resize with align_corners of three axes.
ONCE_REFUSED = {252: 10, 291: 10, 525: 10, 638: 10, 804: 10}
# … and one whose dilated average pool counted wrongly.
ONCE_WRONG = {2036: 30}
CRASHED = 119  # with an open axis, whose padding differs from size to size
SAMPLE = range(1000, 1024)


def agree(
    found: Iterable[DrawnCase | None], targets: Sequence[str], jobs: int = 1, refusals: bool = False
) -> None:
    """Compare the graphs that ONNX Runtime can run, which must be most of `found`.

    refusals: some may be refused, such as operands that fit at the three sizes alone, but none crashes.
    """
    all_found = list(found)
    cases = [case for case in all_found if case is not None]
    assert len(cases) > 0.8 * len(all_found)
    results = list(run_all(cases, jobs, save_case, compare_case, targets))
    assert len(results) == len(cases) * len(targets)
    allowed = (PASS, REFUSED) if refusals else (PASS,)
    assert sum(result.outcome == PASS for result in results) > 0.9 * len(results)
    wrong = [f"{r.key}: {r.outcome} {r.detail}" for r in results if r.outcome not in allowed]
    assert not wrong, "\n".join(wrong)


def test_a_sample() -> None:
    once_failed = (made(seed, nodes) for seed, nodes in {**ONCE_REFUSED, **ONCE_WRONG}.items())
    fixed = (made(seed, NODES) for seed in SAMPLE[:12])
    is_open = (made(seed, NODES, is_open=True) for seed in (CRASHED, *SAMPLE[12:]))
    agree([*once_failed, *fixed, *is_open], [HOST])


@pytest.mark.heavy
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("target", [HOST, "aarch64", "armv7", "riscv64"])
def test_many(target: str, is_open: bool) -> None:
    agree((made(seed, NODES, is_open) for seed in range(200)), [target], 2, refusals=is_open)


def test_a_seed_determines_a_graph() -> None:
    a, b, c = (made(seed, NODES) for seed in (7, 7, 8))
    assert a is not None and b is not None and c is not None
    assert a.model == b.model != c.model
    assert all((x == y).all() for x, y in zip(a.outputs, b.outputs, strict=True))
