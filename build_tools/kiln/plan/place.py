"""Offsets in the arena for tensors with known lifetimes.

Offline dynamic storage allocation, which is NP-hard (Garey and Johnson, SR2). First fit in several orders
is close to the lower bound in practice (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference", 2020): largest first, longest-lived first, widest step first, in order of time. Each order is
then refined: items that ended at the top of the arena move to the front, and all items are placed again. The
best placement is kept; ties go to the first, so that the result is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiln.plan.lifetimes import Lifetime, lower_bound

_ROUNDS = 32  # placements for each order, at most


def _first_fit(items: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Place items one by one in the lowest gap that is free during their whole life.

    Returns the offset of each item in bytes, by name, and the size of the arena.
    """
    placed: list[tuple[Lifetime, int]] = []
    offsets: dict[str, int] = {}
    size = 0
    for item in items:
        position = 0
        rivals = sorted(
            (offset, other.bytes)
            for other, offset in placed
            if not (other.last < item.first or item.last < other.first)
        )
        for offset, occupied in rivals:
            if position + item.bytes <= offset:
                break
            position = max(position, offset + occupied)
        placed.append((item, position))
        offsets[item.name] = position
        size = max(size, position + item.bytes)
    return offsets, size


def place(items: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """The offset of each item in bytes, by name, and the size of the arena."""
    pressure = pressure_of(items)
    orders: list[Callable[[Lifetime], tuple[int, ...]]] = [
        lambda item: (-item.bytes, item.first),
        lambda item: (-pressure[item.name], -item.bytes, item.first),
        lambda item: (-(item.last - item.first + 1) * item.bytes, item.first),
        lambda item: (-(item.last - item.first), -item.bytes, item.first),
        lambda item: (item.first, -item.bytes),
    ]
    bound = lower_bound(items, max((item.last for item in items), default=-1) + 1)
    best: tuple[dict[str, int], int] | None = None
    for order in orders:
        ordered = sorted(items, key=lambda item: (*order(item), item.name))
        for _ in range(_ROUNDS):
            placement = offsets, size = _first_fit(ordered)
            if best is None or size < best[1]:
                best = placement
            if best[1] <= bound:
                return best
            # Items that reach the top did not fit into a gap below: they are first in the next round.
            top = [item for item in ordered if offsets[item.name] + item.bytes == size]
            ordered = top + [item for item in ordered if item not in top]
    assert best is not None
    return best


def pressure_of(items: Sequence[Lifetime]) -> dict[str, int]:
    """The most bytes that are alive at one of the steps of each item."""
    steps = max((item.last for item in items), default=-1) + 1
    alive = [0] * steps
    for item in items:
        for step in range(item.first, item.last + 1):
            alive[step] += item.bytes
    return {item.name: max(alive[item.first : item.last + 1]) for item in items}
