"""Prefetch of parameters across steps: memory is read for later steps while a step is bound by arithmetic.

Some layers read more bytes than memory delivers while they compute, others far fewer; each layer alone takes
as long as the slower of the two, and the more cores compute, the more layers wait for memory. So steps that
are bound by arithmetic prefetch what later steps read. Parameters are stored in the order of steps: one
stream of prefetches runs ahead of the steps, into the cache that the cores share, by a distance that grows in
some steps and shrinks in others.

    room[i]   bytes that memory delivers while step i computes
    need[i]   distance in bytes by which the stream must be ahead when step i begins, from the last step
              backwards: need[i] = need[i + 1] + bytes[i] - room[i], at least 0 and at most the cache's share
    ahead[i]  distance by which the stream is ahead, from the first step on: need[i], or what room has allowed

Step i prefetches from ahead[i] bytes after the beginning of its parameters to ahead[i + 1] bytes after their
end, in addition to the next panel of its own. Steps that cannot prefetch leave the distance to the other
steps; among them are Winograd steps that read each weight once: with more prefetches they were 15 % slower.
Parameters that all fit the shared cache stay there from run to run: then no step prefetches for later ones
(with prefetches MobileNet-v2 took 9 % longer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.lower.fused_steps import GroupLowering
from kiln.lower.step_kernels import StepKernel

# Memory bandwidth for all cores together, a lower bound.
BYTES_A_CYCLE = 8
# Prefetched bytes may fill 1 / SHARE of the shared cache. Measured on a Zen 5 with 32 MiB: of a half, some
# lines are evicted before they are read, since all lines evicted from a core's own cache pass through it.
SHARE = 4
# Fewest prefetched bytes that are worth a separate kernel.
LEAST = 128 << 10


@dataclass(frozen=True)
class Cost:
    """Cost of one step: bytes of its parameters, cycles of its arithmetic, and whether it can prefetch."""

    bytes: int
    cycles: float
    prefetches: bool


def regions(costs: Sequence[Cost], limit: int) -> list[tuple[int, int] | None]:
    """For each step the range (first, end) of bytes to prefetch, relative to the start of its parameters.

    None: the step prefetches its own panels only. `limit`: greatest distance of the stream in bytes.
    """
    room = [cost.cycles * BYTES_A_CYCLE if cost.prefetches else 0.0 for cost in costs]
    need = [0.0] * (len(costs) + 1)
    for i in reversed(range(len(costs))):
        need[i] = min(limit, max(0.0, need[i + 1] + costs[i].bytes - room[i]))
    ahead = 0.0
    ranges: list[tuple[int, int] | None] = []
    for i, cost in enumerate(costs):
        after = max(0.0, min(need[i + 1], ahead + room[i] - cost.bytes))
        first, end = (ahead or cost.bytes), cost.bytes + after
        ranges.append((int(first), int(end)) if cost.prefetches and end - first >= LEAST else None)
        ahead = after
    return ranges


def add_prefetches(groups: GroupLowering) -> None:
    """Lower the kernels of steps that prefetch for later ones again, with their ranges.

    A kernel that several steps share gets the range that ends furthest.
    """
    machine, steps = groups.machine, groups.steps.steps
    ranges_of: dict[str, tuple[int, int]] = {}
    makers: dict[str, StepKernel] = {}
    costs = [_cost(groups, number) for number in range(len(steps))]
    if not machine.shared_bytes or sum(cost.bytes for cost in costs) <= machine.shared_bytes:
        return
    for number, region in enumerate(regions(costs, machine.shared_bytes // SHARE)):
        symbol = steps[number].kernel
        if region is not None and region[1] > ranges_of.get(symbol, (0, 0))[1]:
            ranges_of[symbol], makers[symbol] = region, groups.made[number]
    renamed: dict[str, str] = {}
    for symbol, kernel in makers.items():
        renamed |= kernel.again(ranges_of[symbol])
    groups.replace(renamed)


def _cost(groups: GroupLowering, number: int) -> Cost:
    names = set(groups.steps.steps[number].tensors)
    params = [groups.steps.params[name] for name in names if name in groups.steps.params]
    read = sum(value.nbytes for value in params)
    step_kernel, machine = groups.made.get(number), groups.machine
    if step_kernel is None:
        return Cost(read, 0.0, False)
    kernel = step_kernel.part.kernel
    cores = machine.cores if machine.parallel and kernel.tasks is not None else 1
    cycles = step_kernel.part.macs / kernel.saving / (2 * machine.lanes("float32")) / cores
    return Cost(read, cycles, kernel.prefetches)
