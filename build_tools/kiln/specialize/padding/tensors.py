"""How a padded tensor lies: its axes as products of atoms, and what each of its regions may hold.

An axis is a list of atoms, outermost first, as a Reshape makes and undoes them: [batch, seq] reshaped to
[batch * seq] is one axis of the atoms batch and seq. Where a padded dimension went into the size of an atom,
the atom is padded: its first elements, as many as the graph of the exact size has, are the kept part, and
those equal the elements of the exact graph. A region is a set of padded atoms: all elements that lie beyond
the kept part in these atoms and within it in all others. The region of no atoms is the kept part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kiln.specialize.padding.values import Value

Region = frozenset[int]
KEPT: Region = frozenset()
MOST_ATOMS = 6  # padded atoms of one tensor; regions are their subsets


class NotNeutralError(Exception):
    """An operator lets the padded part reach the kept part, or no rule says that it does not."""


@dataclass(frozen=True)
class Atom:
    """A factor of an axis. size: int, or a TIR expression. key: which padded atom of the tensor it is."""

    size: Any
    key: int | None = None

    @property
    def padded(self) -> bool:
        return self.key is not None


Axis = tuple[Atom, ...]


@dataclass(frozen=True)
class Padded:
    """A tensor in the padded graph: its axes, and what each region may hold.

    An axis of size 1 has no atoms.
    """

    axes: tuple[Axis, ...]
    values: Mapping[Region, Value]

    @property
    def keys(self) -> list[int]:
        """The padded atoms, in order of the axes."""
        return keys_of(self.axes)

    @property
    def kept(self) -> Value:
        """What the kept part may hold."""
        return self.values[KEPT]

    def at(self, region: Iterable[int]) -> Value:
        """What a region may hold; atoms that are not of this tensor are left out."""
        return self.values[frozenset(region) & frozenset(self.keys)]

    def padded_axes(self) -> list[int]:
        """The axes with a padded atom."""
        return [index for index, axis in enumerate(self.axes) if any(atom.padded for atom in axis)]


def keys_of(axes: Iterable[Axis]) -> list[int]:
    """The padded atoms of axes, in order."""
    return [atom.key for axis in axes for atom in axis if atom.key is not None]


def subsets(keys: Iterable[int]) -> list[Region]:
    """All sets of some of `keys`, the empty one first."""
    items = sorted(set(keys))
    return [
        frozenset(chosen)
        for count in range(len(items) + 1)
        for chosen in itertools.combinations(items, count)
    ]


def made(axes: Iterable[Axis], value: Callable[[Region], Value]) -> Padded:
    """A tensor of these axes; `value` gives what each region holds."""
    found = tuple(axes)
    keys = keys_of(found)
    if len(keys) > MOST_ATOMS:
        raise NotNeutralError(f"its result has {len(keys)} padded factors, at most {MOST_ATOMS} are followed")
    return Padded(found, {region: value(region) for region in subsets(keys)})
