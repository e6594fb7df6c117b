"""One arena for several models: models that run at the same time get disjoint bytes, others overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.plan.lifetimes import aligned
from kiln.plan.schema import Plan


@dataclass(frozen=True)
class SharedArena:
    """A region of the arena: name (empty: the only one), section, bytes, each model's offset and bytes."""

    name: str
    section: str
    bytes: int
    offsets: Mapping[str, int]
    sizes: Mapping[str, int]


def share_arena(plans: Sequence[Plan], groups: Sequence[Sequence[str]]) -> list[SharedArena]:
    """Offsets of the models' arenas in one arena; one entry for each region of the target that holds it.

    Models of a group of `groups` run at the same time, and have no byte in common.
    """
    names = [region.name for region in plans[0].regions] or [""]
    shared = []
    for index, name in enumerate(names):
        sizes = {
            plan.name: max((bucket.arena_bytes, *bucket.more_arenas)[index] for bucket in plan.buckets)
            for plan in plans
        }
        offsets = _offsets(sizes, groups)
        size_of_all = max(offsets[model] + size for model, size in sizes.items())
        section = plans[0].regions[index].section if name else ""
        shared.append(SharedArena(name, section, size_of_all, offsets, sizes))
    return shared


def _offsets(sizes: Mapping[str, int], groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """First fit, the largest model first, without overlap with models that run at the same time."""
    offsets: dict[str, int] = {}
    for model in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rivals = {name for group in groups if model in group for name in group} - {model}
        offset = 0
        for begin, end in sorted((offsets[n], offsets[n] + sizes[n]) for n in rivals if n in offsets):
            if offset + sizes[model] <= begin:
                break
            offset = max(offset, aligned(end))
        offsets[model] = offset
    return offsets
