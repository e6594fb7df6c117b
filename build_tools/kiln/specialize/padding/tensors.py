"""Abstract state of a padded tensor: axes as products of atoms, and the values of each region.

An axis is a list of atoms (factors of its size), outermost first, as a reshape merges and splits them:
[batch, seq] reshaped to [batch * seq] is one axis with the atoms batch and seq. An atom is padded if its size
depends on a padded dimension. Its leading elements, as many as the graph of the exact size has, are the kept
part, and equal the elements of that graph; the elements after them are the padded part. A region is a set of
padded atoms: all elements in the padded part of these atoms and in the kept part of all other atoms. The
empty set is the region of the kept part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kiln.specialize.padding.values import ValueRange

Region = frozenset[int]
KEPT: Region = frozenset()
MOST_ATOMS = 6  # padded atoms of one tensor; regions are their subsets


class NotNeutralError(Exception):
    """An operator lets padded elements change the kept part, or no rule proves that it does not."""


@dataclass(frozen=True)
class Atom:
    """A factor of an axis. size: int or TIR expression. key: identifies a padded atom; None: not padded."""

    size: Any
    key: int | None = None

    @property
    def padded(self) -> bool:
        """Whether the size of the atom depends on a padded dimension."""
        return self.key is not None


Axis = tuple[Atom, ...]


@dataclass(frozen=True)
class Padded:
    """Abstract state of a tensor in the padded graph: its axes, and the possible values of each region.

    An axis of size 1 has no atoms.
    """

    axes: tuple[Axis, ...]
    values: Mapping[Region, ValueRange]

    @property
    def keys(self) -> list[int]:
        """The keys of the padded atoms, in order of the axes."""
        return keys_of(self.axes)

    @property
    def kept(self) -> ValueRange:
        """The possible values of the kept part."""
        return self.values[KEPT]

    def at(self, region: Iterable[int]) -> ValueRange:
        """The possible values of a region; keys that do not belong to this tensor are ignored."""
        return self.values[frozenset(region) & frozenset(self.keys)]


def keys_of(axes: Iterable[Axis]) -> list[int]:
    """The keys of the padded atoms of `axes`, in order."""
    return [atom.key for axis in axes for atom in axis if atom.key is not None]


def subsets(keys: Iterable[int]) -> list[Region]:
    """All subsets of `keys`, by size, starting with the empty set."""
    items = sorted(set(keys))
    return [
        frozenset(chosen)
        for count in range(len(items) + 1)
        for chosen in itertools.combinations(items, count)
    ]


def tensor_state(axes: Iterable[Axis], value: Callable[[Region], ValueRange]) -> Padded:
    """The state of a tensor with these axes; `value`: called for each region.

    Raises NotNeutralError for more than MOST_ATOMS padded atoms.
    """
    axes_tuple = tuple(axes)
    keys = keys_of(axes_tuple)
    if len(keys) > MOST_ATOMS:
        raise NotNeutralError(f"its result has {len(keys)} padded factors, at most {MOST_ATOMS} are followed")
    return Padded(axes_tuple, {region: value(region) for region in subsets(keys)})


def without_axis(state: Padded, axis: int) -> Padded:
    """The state with `axis` replaced by an axis of size 1, which stands for the kept part of `axis`."""
    return tensor_state((*state.axes[:axis], (), *state.axes[axis + 1 :]), state.at)
