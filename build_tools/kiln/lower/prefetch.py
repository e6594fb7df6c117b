"""Which parameters each step fetches for later ones, so that memory is read while arithmetic takes the time.

Some layers read more bytes than memory brings while they compute, others far fewer; each by itself takes as
long as the slower of the two, and the more cores compute, the more layers wait for memory. So steps that
compute fetch what later ones read. Parameters lie in the order of steps: a stream of prefetches runs ahead of
them, through the cache that cores share, by a distance that grows in some steps and shrinks in others.

    room[i]   bytes that memory brings while step i computes
    need[i]   how far ahead the stream has to be when step i begins, from the last step backwards:
              need[i] = need[i + 1] + bytes[i] - room[i], at least 0 and at most what the cache holds
    ahead[i]  how far it is, from the first step on: as far as needed, or as room has allowed

Step i fetches from ahead[i] behind the beginning of its parameters to ahead[i + 1] behind their end, besides
the next panel of its own. Steps that cannot fetch leave the distance to the others; among them are Winograd's
that read each weight once: fetching more made them 15 % slower. Parameters that all fit the shared cache stay
there from run to run: then nothing is fetched (MobileNet-v2 took 9 % longer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kiln.lower.fused_steps import Groups, Made

# What memory brings for all cores together, at the least.
BYTES_A_CYCLE = 8
# A part of the shared cache is for what is fetched ahead: one in so many. Measured on a Zen 5 with 32 MiB: of
# a half some is gone before it is read, since all that a core's own cache gives up passes through.
SHARE = 4
# Bytes that are not worth a kernel of its own.
LEAST = 128 << 10


@dataclass(frozen=True)
class Cost:
    """Of one step: bytes of parameters, cycles of its arithmetic on all cores, and whether it can fetch."""

    bytes: int
    cycles: float
    fetches: bool


def regions(costs: Sequence[Cost], most: int) -> list[tuple[int, int] | None]:
    """The bytes that each step fetches, from the beginning of its parameters; None: its own panels only."""
    room = [cost.cycles * BYTES_A_CYCLE if cost.fetches else 0.0 for cost in costs]
    need = [0.0] * (len(costs) + 1)
    for i in reversed(range(len(costs))):
        need[i] = min(most, max(0.0, need[i + 1] + costs[i].bytes - room[i]))
    ahead = 0.0
    found: list[tuple[int, int] | None] = []
    for i, cost in enumerate(costs):
        after = max(0.0, min(need[i + 1], ahead + room[i] - cost.bytes))
        first, end = (ahead or cost.bytes), cost.bytes + after
        found.append((int(first), int(end)) if cost.fetches and end - first >= LEAST else None)
        ahead = after
    return found


def look_ahead(groups: Groups) -> None:
    """Make the kernels of steps that fetch for others anew; one of several steps as the furthest needs it."""
    machine, steps = groups.machine, groups.steps.steps
    wanted: dict[str, tuple[int, int]] = {}
    makers: dict[str, Made] = {}
    costs = [_cost(groups, number) for number in range(len(steps))]
    if not machine.shared_bytes or sum(cost.bytes for cost in costs) <= machine.shared_bytes:
        return
    for number, region in enumerate(regions(costs, machine.shared_bytes // SHARE)):
        symbol = steps[number]["kernel"]
        if region is not None and region[1] > wanted.get(symbol, (0, 0))[1]:
            wanted[symbol], makers[symbol] = region, groups.made[number]
    renamed = {
        symbol: made.again(replace(machine, upcoming=wanted[symbol])) for symbol, made in makers.items()
    }
    groups.replace(renamed)


def _cost(groups: Groups, number: int) -> Cost:
    names = {name for name in groups.steps.steps[number]["args"] if isinstance(name, str)}
    params = [groups.steps.params[name] for name in names if name in groups.steps.params]
    read = sum(value.nbytes for value in params)
    made, machine = groups.made.get(number), groups.machine
    if made is None:
        return Cost(read, 0.0, False)
    kernel = made.part.kernel
    cores = machine.cores if machine.parallel and kernel.tasks is not None else 1
    cycles = made.part.macs / kernel.saving / (2 * machine.lanes("float32")) / cores
    return Cost(read, cycles, kernel.fetches)
