"""Copies that are made where the original is: steps that the plan leaves out."""

from __future__ import annotations

from kiln.lower.schema import Step
from kiln.plan.copies_in_place import without_copies_in_place
from kiln.plan.lifetimes import lifetimes
from plans import tensor_record


def step(label: str, args: str, writes: str, copies: bool | None = None) -> Step:
    """A step whose result may reuse the memory of its first argument."""
    names = args.split()
    return Step(kernel="k", label=label, args=names, writes=[writes], in_place=names[:1], copies=copies)


def kept(
    steps: list[Step], placed: set[str], sizes: dict[str, int]
) -> tuple[list[str], list[tuple[int, int]]]:
    """The labels of the steps that are left, and from when to when each memory is in use."""
    tensors = {name: tensor_record(name, size) for name, size in sizes.items()}
    left, alive = without_copies_in_place(tensors, steps, lifetimes(tensors, steps, placed))
    return [one.label for one in left], [(item.first, item.last) for item in alive]


def test_a_copy_in_the_memory_of_the_original_is_no_step() -> None:
    """Later steps move forward, and with them the times at which memory is in use."""
    steps = [
        step("make", "a", "a"),
        step("copy", "a b", "b", copies=True),
        step("write", "b", "b"),
        step("read", "b c", "c"),
    ]
    assert kept(steps, {"c"}, {"a": 8, "b": 8, "c": 8}) == (["make", "write", "read"], [(0, 2)])


def test_a_copy_of_what_is_read_later_stays() -> None:
    steps = [
        step("make", "a", "a"),
        step("copy", "a b", "b", copies=True),
        step("read", "b a c", "c"),
    ]
    labels, used = kept(steps, {"c"}, {"a": 8, "b": 8, "c": 8})
    assert labels == ["make", "copy", "read"] and used == [(0, 2), (1, 2)]


def test_a_copy_of_an_input_stays() -> None:
    """The caller's memory is not the arena's."""
    steps = [step("copy", "x a", "a", copies=True), step("read", "a y", "y")]
    assert kept(steps, {"x", "y"}, {"x": 8, "a": 8, "y": 8}) == (["copy", "read"], [(0, 1)])


def test_a_step_in_place_that_computes_stays() -> None:
    steps = [step("make", "a", "a"), step("square", "a b", "b"), step("read", "b c", "c")]
    assert kept(steps, {"c"}, {"a": 8, "b": 8, "c": 8})[0] == ["make", "square", "read"]
