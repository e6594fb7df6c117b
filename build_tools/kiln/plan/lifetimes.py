"""Lifetimes of the tensors in the arena, and the fewest bytes that any placement needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.config.sizes import ceil_div
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.loops import longer_lives
from kiln.plan.roots import root_of as root_of  # read from here, too

ALIGN = 64  # bytes; of the offset of every tensor


def aligned(size: int, align: int = ALIGN) -> int:
    """`size` rounded up to a multiple of `align`."""
    return ceil_div(size, align) * align


@dataclass(frozen=True)
class Lifetime:
    """Memory of `bytes` bytes that is in use from the start of step `first` to the end of step `last`.

    `name`: the first tensor in this memory. `shared`: tensors that reuse the memory later, one after the
    other. `kind`: the kind of the first tensor.
    """

    name: str
    bytes: int
    first: int
    last: int
    kind: str
    shared: tuple[str, ...] = ()


def lifetimes(tensors: Mapping[str, TensorRecord], steps: Sequence[Step], placed: set[str]) -> list[Lifetime]:
    """Lifetimes of every tensor that a step uses and that is not `placed` elsewhere (inputs, parameters)."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in step.tensors:
            root = root_of(tensors, name)
            first.setdefault(root, index)
            last[root] = index
    longer_lives(steps, first, last)
    owner = _in_place(tensors, steps, placed, first, last)
    heirs: dict[str, list[str]] = {}
    for heir in first:
        if heir in owner:
            heirs.setdefault(owner[heir], []).append(heir)
    result = []
    for name in first:
        if name in placed or name in owner:
            continue
        shared = tuple(heirs.get(name, ()))
        end = max([last[name], *(last[heir] for heir in shared)])
        size = aligned(max(1, tensors[name].bytes))
        result.append(Lifetime(name, size, first[name], end, tensors[name].kind, shared))
    return result


def _in_place(
    tensors: Mapping[str, TensorRecord],
    steps: Sequence[Step],
    placed: set[str],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """Map each tensor that is computed in place to the tensor whose memory it reuses.

    The operand that is overwritten is one that the step may overwrite and that no later step reads.
    """
    owner: dict[str, str] = {}
    for index, step in enumerate(steps):
        roots = [root_of(tensors, name) for name in step.tensors]
        outputs = {root_of(tensors, name) for name in step.writes} - placed
        if len(outputs) != 1:
            continue
        output = outputs.pop()
        if first[output] != index or tensors[output].kind != "activation":
            continue
        for name in step.in_place:
            operand = root_of(tensors, name)
            if roots.count(operand) > 1:  # also read at other indices, perhaps with another shape
                continue
            dies = last[operand] == index and first[operand] < index
            if operand in placed or not dies or tensors[operand].bytes != tensors[output].bytes:
                continue
            if owner.get(operand, operand) in placed:
                continue
            owner[output] = owner.get(operand, operand)
            break
    return owner


def lower_bound(alive: Sequence[Lifetime], steps: int) -> int:
    """The most bytes that are alive during one of `steps` steps: no placement can use less."""
    change = [0] * (steps + 1)
    for item in alive:
        change[item.first] += item.bytes
        change[item.last + 1] -= item.bytes
    peak = alive_bytes = 0
    for delta in change:
        alive_bytes += delta
        peak = max(peak, alive_bytes)
    return peak
