"""The arena of a function in several regions of memory: the most used tensors go into the cheapest regions.

Each region has a size and a cost of an access. Tensors are considered in order of the accesses to each of
their bytes; each goes into the cheapest region that has room left for it. Where something is left over, other
orders are tried, in which large tensors and those of full steps come first; of the placements that fit, the
one with the least cost is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kiln.config.memory import Region
from kiln.errors import KilnError
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import Lifetime, root_of
from kiln.plan.place import place, pressure_of
from kiln.plan.schema import PlacedRegion, PlannedBucket

Places = dict[str, tuple[int, int]]  # by name of a tensor: index of the region, offset in it


def uses(tensors: Mapping[str, TensorRecord], steps: Sequence[Step]) -> dict[str, int]:
    """Bytes that all steps read and write of each tensor; operands of a multiply-add count each time."""
    count: dict[str, int] = {}
    for step in steps:
        written = {root_of(tensors, name) for name in step.writes}
        for root in {root_of(tensors, name) for name in step.tensors}:
            once = tensors[root].bytes
            moved = once if root in written else max(once, step.macs or 0)
            count[root] = count.get(root, 0) + moved
    return count


def place_in_regions(
    alive: Sequence[Lifetime], used: Mapping[str, int], regions: Sequence[Region]
) -> tuple[Places, list[int]]:
    """The place of each tensor, and the bytes that are used of each region.

    `used`: accesses to each tensor and its heirs. Raises KilnError with the nearest placement where the
    regions are too small.
    """
    bytes_used = {item.name: sum(used.get(name, 0) for name in (item.name, *item.shared)) for item in alive}
    pressure = pressure_of(alive)
    orders: list[Callable[[Lifetime], tuple[float, ...]]] = [
        lambda item: (-bytes_used[item.name] / item.bytes, -item.bytes),
        lambda item: (-pressure[item.name], -bytes_used[item.name] / item.bytes),
        lambda item: (-item.bytes, -bytes_used[item.name] / item.bytes),
    ]
    best: tuple[float, list[list[Lifetime]]] | None = None
    nearest: list[list[Lifetime]] | None = None
    for order in orders:
        held, unplaced = _fill(sorted(alive, key=lambda item: (*order(item), item.name)), regions)
        if unplaced:
            nearest = nearest or [*held[:-1], held[-1] + unplaced]
            continue
        cost = sum(
            region.cost * bytes_used[item.name]
            for region, items in zip(regions, held, strict=True)
            for item in items
        )
        if best is None or cost < best[0]:
            best = cost, held
    if best is None:
        assert nearest is not None
        shown = ", ".join(
            f"{region.name} {place(items)[1] if items else 0} of {region.room}"
            for region, items in zip(regions, nearest, strict=True)
        )
        raise KilnError(
            f"memory: the arena does not fit into the target's regions that hold it; the nearest plan needs "
            f"{shown} bytes: add or enlarge a region"
        )
    locations: Places = {}
    sizes = []
    for index, items in enumerate(best[1]):
        offsets, size = place(items) if items else ({}, 0)
        locations |= {name: (index, offset) for name, offset in offsets.items()}
        sizes.append(size)
    return locations, sizes


def _fill(
    ordered: Sequence[Lifetime], regions: Sequence[Region]
) -> tuple[list[list[Lifetime]], list[Lifetime]]:
    """The tensors of each region, and the tensors that fit into no region."""
    held: list[list[Lifetime]] = [[] for _ in regions]
    unplaced = []
    for item in ordered:
        for region, items in zip(regions, held, strict=True):
            if item.bytes <= region.room and place([*items, item])[1] <= region.room:
                items.append(item)
                break
        else:
            unplaced.append(item)
    return held, unplaced


def placed_regions(buckets: Sequence[PlannedBucket], regions: Sequence[Region]) -> list[PlacedRegion]:
    """The regions that hold the arena, with the bytes that the largest bucket needs of each."""
    greatest = [
        max((bucket.arena_bytes, *bucket.more_arenas)[index] for bucket in buckets)
        for index in range(len(regions))
    ]
    return [
        PlacedRegion(name=region.name, bytes=size, section=region.section or f".bss.{region.name}")
        for region, size in zip(regions, greatest, strict=True)
    ]
