"""The list of the zoo's models: each a function that returns a PyTorch module with example inputs.

A model's weights are random with a fixed seed. `axes` names the axes of its inputs that are dynamic in the
form `dynamic`, `ranges` their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Made = tuple[Any, dict[str, Any]]  # a torch.nn.Module, and its inputs by name, in order
Axes = Mapping[str, Mapping[int, str]]  # input, axis -> dimension, or an expression such as `past + 1`


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    `axes`: by input and axis, a dimension or an expression; `ranges`: by dimension. `bounds`: by tensor of
    the file, the most elements of one whose size is in the data; names that a file lacks are left out.
    """

    name: str
    group: str
    make: Callable[[], Made]
    axes: Axes = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


ENTRIES: dict[str, Entry] = {}


def entry(
    group: str, axes: Axes | None = None, ranges: Mapping[str, tuple[int, int]] | None = None
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Decorate a function to add it to the zoo under its own name."""

    def added(make: Callable[[], Made]) -> Callable[[], Made]:
        add(Entry(make.__name__, group, make, axes or {}, ranges or {}))
        return make

    return added


def add(one: Entry) -> None:
    """Add an entry. Raises ValueError for a name that is taken."""
    if one.name in ENTRIES:
        raise ValueError(f"{one.name}: there are two models of this name")
    ENTRIES[one.name] = one
