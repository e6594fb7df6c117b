"""What a kernel costs on a CPU that is not there: an estimate from what it did under QEMU.

    cycles = instructions / ISSUE + L1_MISS * misses of the L1 cache

Instructions and misses are counted by programs/count.c, with caches of the sizes that the target's
YAML names, while the kernel runs on weights that no cache holds. ISSUE is how many instructions a core
issues in a cycle: 2, or 1 where the target issues in order. L1_MISS is the cycles that a line from the L2
cache holds up what else there is to do: 2.

What it cannot see: which instructions wait for each other, the ports that they compete for, how long memory
takes and what hardware prefetches, the effect of prefetch instructions, alignment, address translation.
Misses of the L2 cache are counted, but have no part in the estimate: with any cost of theirs it ranked
measured kernels worse, for those that miss most are those whose weights are fetched ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from kiln.config import Target

ISSUE, ISSUE_IN_ORDER = 2.0, 1.0
L1_MISS = 2.0


@dataclass(frozen=True)
class Counts:
    """What a kernel did; numbers of a whole run."""

    instructions: float
    loads: float
    stores: float
    l1_misses: float
    l2_misses: float

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Counts(*(mine + theirs for mine, theirs in pairs))

    def scaled(self, factor: float) -> Counts:
        """All of them `factor` times."""
        return Counts(*(value * factor for value in vars(self).values()))


def cycles(counts: Counts, target: Target) -> float:
    """The estimate."""
    issue = ISSUE_IN_ORDER if target.vector.in_order else ISSUE
    return counts.instructions / issue + L1_MISS * counts.l1_misses
