"""All cases: operators of many kinds, with plausible sizes that no schedule was written for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.operators import convolutions, elements, movement, networks, products
from benchmarks.operators.case import Case

_KINDS: tuple[Callable[[], Iterator[Case]], ...] = (
    convolutions.convolutions,
    convolutions.transposed,
    products.products,
    products.contractions,
    products.attention,
    products.recurrent,
    elements.normalisations,
    elements.reductions,
    elements.pooling,
    elements.elementwise,
    movement.movement,
    movement.gathers,
    movement.images,
    products.half,
    products.stored,
    networks.blocks,
    networks.quantised,
)


def cases(words: Sequence[str] = ()) -> list[Case]:
    """All cases, or those whose name contains one of `words`."""
    all_cases = [case for kind in _KINDS for case in kind()]
    return [case for case in all_cases if not words or any(word in case.name for word in words)]
