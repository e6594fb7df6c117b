"""Lifetimes, in-place updates and placement: on small plans by hand, and on many random ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import ALIGN, Lifetime, aligned, lifetimes, lower_bound
from kiln.plan.place import place, pressure_of
from plans import tensor_record


def tensors(*items: TensorRecord) -> dict[str, TensorRecord]:
    return {item.name: item for item in items}


def step(args: str, writes: str, in_place: str = "") -> Step:
    """A step whose arguments, written tensors and possible in-place operands are words."""
    names = {"writes": writes.split(), "in_place": in_place.split()}
    return Step(kernel="k", label="", args=list(args.split()), **names)


def spans(items: Sequence[Lifetime]) -> dict[str, tuple[int, int]]:
    return {item.name: (item.first, item.last) for item in items}


def test_aligned() -> None:
    assert [aligned(size) for size in (0, 1, 63, 64, 65, 128)] == [0, 64, 64, 64, 128, 128]


def test_lifetimes_last_from_first_write_to_last_read() -> None:
    tensor_of_name = tensors(*(tensor_record(name) for name in "abcd"), tensor_record("in", kind="input"))
    steps = [step("in a", "a"), step("a b", "b"), step("b c", "c"), step("a c d", "d")]
    assert spans(lifetimes(tensor_of_name, steps, {"in", "d"})) == {"a": (0, 3), "b": (1, 2), "c": (2, 3)}


def test_a_view_keeps_its_tensor_alive() -> None:
    tensor_of_name = tensors(
        tensor_record("a"),
        tensor_record("v", alias="a"),
        tensor_record("w", alias="v"),
        tensor_record("b"),
        tensor_record("c"),
    )
    steps = [step("a", "a"), step("b", "b"), step("w b c", "c")]
    assert spans(lifetimes(tensor_of_name, steps, {"c"})) == {"a": (0, 2), "b": (1, 2)}


def test_workspace_lives_for_one_step_and_empty_tensors_have_a_place() -> None:
    tensor_of_name = tensors(tensor_record("s", 1000, "workspace"), tensor_record("a", 0), tensor_record("b"))
    alive = {
        item.name: item for item in lifetimes(tensor_of_name, [step("a s", "a"), step("a b", "b")], {"b"})
    }
    assert (alive["s"].first, alive["s"].last, alive["s"].kind) == (0, 0, "workspace")
    assert alive["a"].bytes == ALIGN


def owners(known: dict[str, Any], steps: list[Any], placed: set[str]) -> dict[str, tuple[str, ...]]:
    return {item.name: item.shared for item in lifetimes(known, steps, placed)}


def test_an_output_takes_over_the_operand_that_dies() -> None:
    tensor_of_name = tensors(*(tensor_record(name) for name in "abcd"))
    steps = [step("a", "a"), step("a b", "b", "a"), step("b c", "c", "b"), step("c d", "d", "c")]
    assert owners(tensor_of_name, steps, {"d"}) == {"a": ("b", "c")}
    assert spans(lifetimes(tensor_of_name, steps, {"d"})) == {"a": (0, 3)}


@pytest.mark.parametrize(
    ("why", "known", "steps"),
    [
        (
            "is read later",
            tensors(*(tensor_record(name) for name in "abo")),
            [step("a", "a"), step("a b", "b", "a"), step("a b o", "o")],
        ),
        (
            "has another size",
            tensors(tensor_record("a", 64), tensor_record("b", 128), tensor_record("o")),
            [step("a", "a"), step("a b", "b", "a"), step("b o", "o")],
        ),
        (
            "is not offered",
            tensors(*(tensor_record(name) for name in "abo")),
            [step("a", "a"), step("a b", "b"), step("b o", "o")],
        ),
        (
            "is read under another shape by the same step",
            tensors(*(tensor_record(name) for name in "abo"), tensor_record("v", alias="a")),
            [step("a", "a"), step("v a b", "b", "a"), step("b o", "o")],
        ),
        (
            "is read twice by the same step",
            tensors(*(tensor_record(name) for name in "abo")),
            [step("a", "a"), step("a a b", "b", "a"), step("b o", "o")],
        ),
        (
            "is read later through a view",
            tensors(*(tensor_record(name) for name in "abo"), tensor_record("v", alias="a")),
            [step("a", "a"), step("a b", "b", "a"), step("v b o", "o")],
        ),
        (
            "belongs to the caller",
            tensors(tensor_record("in", kind="input"), tensor_record("b"), tensor_record("o")),
            [step("in b", "b", "in"), step("b o", "o")],
        ),
    ],
)
def test_an_operand_stays_where_it(why: str, known: dict[str, Any], steps: list[Any]) -> None:
    assert all(shared == () for shared in owners(known, steps, {"in", "o"}).values()), why


def test_lower_bound_is_the_fullest_step() -> None:
    items = [Lifetime("a", 64, 0, 2, ""), Lifetime("b", 128, 1, 1, ""), Lifetime("c", 192, 2, 3, "")]
    assert lower_bound(items, 4) == 256
    assert lower_bound([], 0) == 0


def random_items(seed: int) -> list[Lifetime]:
    rng = random.Random(seed)
    steps = rng.randint(1, 30)
    items = []
    for index in range(rng.randint(1, 40)):
        first = rng.randrange(steps)
        last = min(steps - 1, first + int(rng.expovariate(0.3)))
        size = aligned(rng.choice([1, 64, 100, 4096, rng.randint(1, 100_000)]))
        items.append(Lifetime(f"t{index}", size, first, last, "activation"))
    return items


@pytest.mark.parametrize("seed", range(200))
def test_tensors_that_live_together_never_overlap(seed: int) -> None:
    items = random_items(seed)
    offsets, size = place(items)
    for item in items:
        assert offsets[item.name] % ALIGN == 0
        assert 0 <= offsets[item.name] <= size - item.bytes
    for a, b in itertools.combinations(items, 2):
        if a.first <= b.last and b.first <= a.last:
            apart = (
                offsets[a.name] + a.bytes <= offsets[b.name] or offsets[b.name] + b.bytes <= offsets[a.name]
            )
            assert apart, f"{a} and {b} share bytes"
    bound = lower_bound(items, max(item.last for item in items) + 1)
    assert bound <= size <= sum(item.bytes for item in items)
    shuffled = list(items)
    random.Random(0).shuffle(shuffled)
    assert place(shuffled) == (offsets, size), "the order in which tensors come must not matter"


def test_arenas_are_close_to_the_lower_bound() -> None:
    ratios = []
    for seed in range(200):
        items = random_items(seed)
        ratios.append(place(items)[1] / lower_bound(items, max(item.last for item in items) + 1))
    print(f"arena / lower bound: mean {sum(ratios) / len(ratios):.3f}, worst {max(ratios):.3f}")
    assert sum(ratios) / len(ratios) < 1.05


@pytest.mark.parametrize(
    ("seed", "needs"),
    [
        (14, "largest first"),
        (113, "widest step first"),
        (37, "bytes times steps"),
        (30, "longest-lived first"),
        (197, "order of time"),
        (2, "a second round"),
    ],
)
def test_each_order_of_placement_is_of_use(seed: int, needs: str) -> None:
    """Without the order that `needs` names, or without rounds, the arena is larger than the lower bound."""
    rng, items = random.Random(seed), []
    for index in range(25):
        first = rng.randrange(15)
        last = min(14, first + int(rng.expovariate(0.2)))
        size = aligned(rng.randint(1, 100_000))
        items.append(Lifetime(f"t{index}", size, first, last, "activation"))
    assert place(items)[1] == lower_bound(items, 15), needs


def test_the_pressure_of_a_tensor_is_that_of_its_fullest_step() -> None:
    items = [Lifetime("a", 64, 0, 1, ""), Lifetime("b", 128, 1, 2, ""), Lifetime("c", 32, 2, 2, "")]
    assert pressure_of(items) == {"a": 192, "b": 192, "c": 160}


def test_a_chain_needs_two_tensors() -> None:
    items = [Lifetime(f"t{i}", 640, i, i + 1, "activation") for i in range(20)]
    assert place(items)[1] == lower_bound(items, 21) == 1280
    growing = [Lifetime(f"t{i}", 64 * (i + 1), i, i + 1, "activation") for i in range(20)]
    assert place(growing)[1] == lower_bound(growing, 21) == 64 * 39
