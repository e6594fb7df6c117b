"""Copies that are made where the original is: steps with nothing to do.

An operator that changes some elements of a tensor, such as a scatter, copies the tensor and changes the
copy. Where nothing reads the original any more, the copy takes its place in the arena; in a loop it is the
memory of a carried value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import Lifetime
from kiln.plan.roots import root_of


def without_copies_in_place(
    tensors: Mapping[str, TensorRecord], steps: Sequence[Step], alive: Sequence[Lifetime]
) -> tuple[list[Step], list[Lifetime]]:
    """The steps without copies in place, and the lifetimes `alive` of tensors in these steps."""
    memory = {name: item.name for item in alive for name in (item.name, *item.shared)}
    kept = [not _is_in_place(tensors, step, memory) for step in steps]
    if all(kept):
        return list(steps), list(alive)
    before = [0, *accumulate(map(int, kept))]  # by step, how many of the steps before it are kept
    return (
        [step for step, is_kept in zip(steps, kept, strict=True) if is_kept],
        [replace(item, first=before[item.first], last=before[item.last + 1] - 1) for item in alive],
    )


def _is_in_place(tensors: Mapping[str, TensorRecord], step: Step, memory: Mapping[str, str]) -> bool:
    """Whether `step` only copies a tensor to where it is; `memory`: by tensor, the first in its memory."""
    if not step.copies:
        return False
    source, copy = (root_of(tensors, name) for name in step.tensors[:2])
    is_whole = tensors[source].bytes == tensors[copy].bytes
    return is_whole and source in memory and memory[source] == memory.get(copy)
