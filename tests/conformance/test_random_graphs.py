"""Random ONNX graphs of many operators compute what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from .onnx_nodes.results import HOST, PASS
from .onnx_nodes.worker import run_all
from .random_graphs.cases import compare, load, made

NODES = 8
# Graphs that were refused: sizes that ONNX infers wrongly, and Resize with align_corners of three axes.
ONCE_REFUSED = {252: 10, 291: 10, 525: 10, 638: 10, 804: 10}
SAMPLE = range(1000, 1018)


def agree(seeds: Iterable[tuple[int, int]], targets: Sequence[str], jobs: int = 1) -> None:
    """Compare the graphs of pairs of a seed and a number of nodes."""
    found = [made(seed, nodes) for seed, nodes in seeds]
    cases = [case for case in found if case is not None]
    assert len(cases) > 0.9 * len(found), "ONNX Runtime cannot run most of the graphs"
    results = list(run_all(cases, jobs, load, compare, targets))
    assert len(results) == len(cases) * len(targets)
    wrong = [f"{r.key}: {r.outcome} {r.detail}" for r in results if r.outcome != PASS]
    assert not wrong, "\n".join(wrong)


def test_a_sample() -> None:
    agree([*ONCE_REFUSED.items(), *((seed, NODES) for seed in SAMPLE)], [HOST])


@pytest.mark.heavy
@pytest.mark.parametrize("target", [HOST, "aarch64", "armv7", "riscv64"])
def test_many(target: str) -> None:
    agree(((seed, NODES) for seed in range(200)), [target], jobs=2)


def test_a_seed_determines_a_graph() -> None:
    a, b, c = (made(seed, NODES) for seed in (7, 7, 8))
    assert a is not None and b is not None and c is not None
    assert a.model == b.model != c.model and all(
        (x == y).all() for x, y in zip(a.outputs, b.outputs, strict=True)
    )
