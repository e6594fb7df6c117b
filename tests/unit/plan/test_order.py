"""The order of steps: producers stay before consumers, and the peak never rises."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import lifetimes, lower_bound, root_of
from kiln.plan.order import reorder
from plans import tensor_record

Graph = tuple[dict[str, TensorRecord], list[Step], set[str]]


def call(kernel: str, args: list[Any], writes: list[str]) -> Step:
    return Step(kernel=kernel, label="", args=args, writes=writes)


def random_graph(seed: int) -> Graph:
    """Steps that each read one to three earlier tensors; some through a view, some written twice."""
    rng = random.Random(seed)
    tensors = {"in": tensor_record("in", 64, "input")}
    steps: list[Step] = []
    readable = ["in"]
    for index in range(rng.randint(2, 25)):
        name = f"t{index}"
        tensors[name] = tensor_record(name, 64 * rng.randint(1, 50))
        reads = rng.sample(readable, min(len(readable), rng.randint(1, 3)))
        scratch = []
        if not rng.randrange(4):
            tensors[f"s{index}"] = tensor_record(f"s{index}", 64 * rng.randint(1, 9), "workspace")
            scratch = [f"s{index}"]
        steps.append(call(f"k{index}", [*reads, name, *scratch], [name]))
        if not rng.randrange(4):  # a second step that completes the same tensor
            steps.append(call(f"k{index}b", [name], [name]))
        readable.append(name)
        if not rng.randrange(3):
            tensors[f"v{index}"] = tensor_record(f"v{index}", tensors[name].bytes, alias=name)
            readable.append(f"v{index}")
    return tensors, steps, {"in", readable[-1]}


def peak(graph: Graph, steps: list[Step]) -> int:
    tensors, _, placed = graph
    return lower_bound(lifetimes(tensors, steps, placed), len(steps))


def test_the_step_that_frees_most_comes_first() -> None:
    """Both steps are ready after `begin`; `frees` makes a larger tensor, but is the last to read `big`."""
    sizes = {"big": 1024, "small": 64, "kept": 512, "result": 640, "y": 64}
    tensors = {
        "in": tensor_record("in", 64, "input"),
        **{name: tensor_record(name, size) for name, size in sizes.items()},
    }
    steps = [
        call("begin", ["in", "big", "small"], ["big", "small"]),
        call("keeps", ["small", "kept"], ["kept"]),
        call("frees", ["big", "result"], ["result"]),
        call("end", ["kept", "result", "y"], ["y"]),
    ]
    order = reorder(tensors, steps, {"in", "y"})
    assert [step.kernel for step in order] == ["begin", "frees", "keeps", "end"]


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    tensors, steps, placed = graph
    order = reorder(tensors, steps, placed)
    assert sorted(step.kernel for step in order) == sorted(step.kernel for step in steps)
    assert peak(graph, order) <= peak(graph, steps)
    assert reorder(tensors, steps, placed) == order
    # each step sees of every tensor the same writers before it as in the model's own order
    assert history(tensors, order) == history(tensors, steps)


def history(tensors: dict[str, Any], steps: list[Step]) -> dict[str, dict[str, list[str]]]:
    """For each step, who had written each of its tensors before it."""
    writers: dict[str, list[str]] = {}
    seen = {}
    for step in steps:
        roots = {root_of(tensors, name) for name in step.tensors}
        seen[step.kernel] = {root: list(writers.get(root, [])) for root in sorted(roots)}
        for name in step.writes:
            writers.setdefault(root_of(tensors, name), []).append(step.kernel)
    return seen


def test_a_branch_is_finished_before_the_next_one_begins() -> None:
    """Four branches that each blow up and shrink: side by side they need all four at once."""
    tensors = {"in": tensor_record("in", 64, "input"), "out": tensor_record("out", 64)}
    wide, narrow = [], []
    for index in range(4):
        big, small = f"big{index}", f"small{index}"
        tensors |= {big: tensor_record(big, 6400), small: tensor_record(small, 64)}
        wide.append(call(f"wide{index}", ["in", big], [big]))
        narrow.append(call(f"narrow{index}", [big, small], [small]))
    smalls = [f"small{index}" for index in range(4)]
    join = call("join", [*smalls, "out"], ["out"])
    steps = [*wide, *narrow, join]
    graph = tensors, steps, {"in", "out"}
    order = reorder(tensors, steps, {"in", "out"})
    assert peak(graph, steps) > 4 * 6400
    assert peak(graph, order) <= 6400 + 4 * 64
    assert order[-1].kernel == "join"


def test_the_models_own_order_stays_where_none_is_better() -> None:
    tensors = {name: tensor_record(name, 64) for name in "abc"}
    steps = [call(name, list(name), [name]) for name in "abc"]
    assert reorder(tensors, steps, set()) == steps
