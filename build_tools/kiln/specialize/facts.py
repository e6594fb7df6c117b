"""Facts about sizes and contents on one path of a decision tree; they make redundant tests unnecessary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kiln.arrays import Array
from kiln.specialize.conditions import Atom, Equals, InputIs, InRange
from kiln.specialize.symbols import Symbol

# The possible sizes of a dimension are enumerated up to this number; with more, they count as unknown.
MOST = 1 << 20


@dataclass(frozen=True)
class ShapeFacts:
    """Knowledge about sizes and contents that the tests on a path have established.

    sizes: by dimension, the sizes that remain possible, ascending; None: unknown. contents: by input, its
    known content. failed: conjunctions that do not hold.
    """

    sizes: Mapping[str, Array | None]
    contents: Mapping[str, InputIs]
    failed: tuple[tuple[Atom, ...], ...] = ()

    def state(self, atom: Atom) -> bool | None:
        """True if `atom` always holds, False if it never holds, None if it must be tested at run time."""
        if isinstance(atom, InputIs):
            known = self.contents.get(atom.input)
            if known is None:
                return None
            if known == atom:
                return True
            # Two named contents, or two tensors, exclude each other; a tensor may be all zeros or all ones.
            named = [content.value for content in (known, atom) if content.tensor is None]
            return None if len(named) == 1 else False
        sizes = self.sizes[atom.dim]
        if sizes is None:
            return None
        held = atom.holds(sizes)
        return True if held.all() else None if held.any() else False

    def with_held(self, parts: tuple[Atom, ...]) -> ShapeFacts | None:
        """The facts in the branch where all of `parts` hold; None if they cannot all hold."""
        sizes, contents = dict(self.sizes), dict(self.contents)
        for atom in parts:
            if replace(self, sizes=sizes, contents=contents).state(atom) is False:
                return None
            if isinstance(atom, InputIs):
                contents[atom.input] = atom
            else:
                possible = sizes[atom.dim]
                if possible is not None:
                    sizes[atom.dim] = possible[atom.holds(possible)]
                elif isinstance(atom, Equals):
                    sizes[atom.dim] = np.array([atom.value])
                elif isinstance(atom, InRange) and atom.greatest - atom.least < MOST:
                    sizes[atom.dim] = np.arange(atom.least, atom.greatest + 1)
        return ShapeFacts(sizes, contents, self.failed)._without_failed()

    def with_failed(self, parts: tuple[Atom, ...]) -> ShapeFacts | None:
        """The facts in the branch where some of `parts` does not hold; None if all of them always hold."""
        return replace(self, failed=(*self.failed, parts))._without_failed()

    def _without_failed(self) -> ShapeFacts | None:
        """Remove the sizes that would make a failed conjunction true; None if no possibility remains.

        Nothing is removed where the undecided conditions of a conjunction are not all on one dimension.
        """
        facts = self
        for parts in self.failed:
            states = [(atom, facts.state(atom)) for atom in parts]
            if any(state is False for _, state in states):
                continue
            undecided = [atom for atom, state in states if state is None]
            if not undecided:
                return None
            names = {atom.input if isinstance(atom, InputIs) else atom.dim for atom in undecided}
            if len(names) > 1 or isinstance(undecided[0], InputIs):
                continue
            dim = names.pop()
            possible = facts.sizes[dim]
            if possible is None:
                continue
            held = np.ones(len(possible), bool)
            for atom in undecided:
                assert not isinstance(atom, InputIs)
                held &= atom.holds(possible)
            if held.all():
                return None
            facts = replace(facts, sizes={**facts.sizes, dim: possible[~held]})
        return facts


def facts_of(symbols: Mapping[str, Symbol]) -> ShapeFacts:
    """The facts that follow from the ranges of a function's symbols alone.

    A size that a run counts is not known when a case is chosen: no fact is about it.
    """
    sizes: dict[str, Array | None] = {}
    for name, symbol in symbols.items():
        count = None if symbol.greatest is None else symbol.greatest - symbol.least + 1
        if symbol.greatest is None or count is None or count > MOST or symbol.counted:
            sizes[name] = None
        else:
            sizes[name] = np.arange(symbol.least, symbol.greatest + 1) * symbol.divide
    return ShapeFacts(sizes, {})
