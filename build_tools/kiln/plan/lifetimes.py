"""When each tensor of the arena is alive, and the fewest bytes that any placement needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALIGN = 64


def aligned(size: int, align: int = ALIGN) -> int:
    """`size` rounded up to a multiple of `align`."""
    return -(-size // align) * align


@dataclass(frozen=True)
class Lifetime:
    """A tensor of `bytes` bytes that is alive from the start of step `first` to the end of step `last`."""

    name: str
    bytes: int
    first: int
    last: int
    kind: str


def root_of(tensors: Mapping[str, dict[str, Any]], name: str) -> str:
    """The tensor that owns the memory behind `name`."""
    while tensors[name]["alias"] is not None:
        name = tensors[name]["alias"]
    return name


def lifetimes(
    tensors: Mapping[str, dict[str, Any]], steps: Sequence[dict[str, Any]], placed: set[str]
) -> list[Lifetime]:
    """Lifetimes of every tensor that a step uses and that is not `placed` elsewhere (inputs, parameters)."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in step["args"]:
            root = root_of(tensors, name)
            first.setdefault(root, index)
            last[root] = index
    return [
        Lifetime(name, aligned(max(1, tensors[name]["bytes"])), first[name], last[name], tensors[name]["kind"])
        for name in first
        if name not in placed
    ]


def lower_bound(alive: Sequence[Lifetime], steps: int) -> int:
    """The most bytes that are alive during one step: no placement can do with less."""
    change = [0] * (steps + 1)
    for item in alive:
        change[item.first] += item.bytes
        change[item.last + 1] -= item.bytes
    most = total = 0
    for delta in change:
        total += delta
        most = max(most, total)
    return most
