"""The order of steps that keeps the fewest bytes alive.

Any order in which producers come before consumers is correct; where a model has branches, such orders differ
in peak memory. A list scheduler picks, among the steps that are ready, the one after which the fewest bytes
are alive (Ahn et al., "Ordering Chaos", 2020, discusses why greedy is close). The scheduler's order is used
only where it has a lower peak than the order in which the model was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.lower.counts import counting
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import lifetimes, lower_bound, root_of


def _dependencies(
    tensors: Mapping[str, TensorRecord], steps: Sequence[Step], replaced: Mapping[str, str]
) -> list[set[int]]:
    """The earlier steps that wrote a tensor or counted a size among the arguments of each step, by index.

    A step that writes a tensor of `replaced` also depends on the earlier steps that read the tensor which it
    replaces.
    """
    counters = counting(steps)
    writers: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    needs: list[set[int]] = []
    for index, step in enumerate(steps):
        roots = {root_of(tensors, name) for name in step.tensors}
        needs.append({writers[root] for root in roots if root in writers})
        needs[-1].update(counters[dim] for dim in step.dims if dim in counters)
        for name in step.writes:
            old = replaced.get(root_of(tensors, name))
            needs[-1].update(readers.get(old, []) if old is not None else [])
        for root in roots:
            readers.setdefault(root, []).append(index)
        for name in step.writes:
            writers[root_of(tensors, name)] = index
    return needs


def _greedy(
    tensors: Mapping[str, TensorRecord], steps: Sequence[Step], placed: set[str], replaced: Mapping[str, str]
) -> list[int]:
    """Indices of `steps` in the order of the list scheduler; of equal steps the first comes first."""
    needs = _dependencies(tensors, steps, replaced)
    uses: dict[str, int] = {}
    roots_of = [{root_of(tensors, name) for name in step.tensors} - placed for step in steps]
    for roots in roots_of:
        for root in roots:
            uses[root] = uses.get(root, 0) + 1
    written: set[str] = set()
    done: set[int] = set()
    order: list[int] = []
    while len(order) < len(steps):
        ready = [i for i in range(len(steps)) if i not in done and needs[i] <= done]

        def cost(index: int) -> tuple[int, int]:
            """Change of the bytes that are alive by step `index`, then `index` to break ties."""
            roots = roots_of[index]
            born = sum(tensors[root].bytes for root in roots - written)
            dead = sum(tensors[root].bytes for root in roots if uses[root] == 1)
            return born - dead, index

        chosen = min(ready, key=cost)
        for root in roots_of[chosen]:
            written.add(root)
            uses[root] -= 1
        done.add(chosen)
        order.append(chosen)
    return order


def reorder(
    tensors: Mapping[str, TensorRecord], steps: Sequence[Step], placed: set[str],
    replaced: Mapping[str, str] | None = None,
) -> list[Step]:  # fmt: skip
    """The steps in the order of the list scheduler if it has a lower peak, else as they are.

    `placed`: tensors outside of the arena. `replaced`: by new value of the state, the old value, which is
    read first if the given order has it so.
    """
    candidate = [steps[index] for index in _greedy(tensors, steps, placed, replaced or {})]
    peaks = [lower_bound(lifetimes(tensors, order, placed), len(order)) for order in (steps, candidate)]
    return candidate if peaks[1] < peaks[0] else list(steps)
