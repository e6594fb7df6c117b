"""Statistics of times: medians of rounds, their spread, ratios paired by round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Times:
    """Times of one contender on one model: a median for every round, in seconds, and sums over all runs."""

    rounds: list[float] = field(default_factory=list)
    runs: int = 0
    best: float = math.inf
    wall: float = 0.0  # all runs together
    cpu: float = 0.0  # of the whole process; less than `wall` on one thread: it was interrupted

    def add(self, wall: Sequence[float], cpu: Sequence[float], clock: str) -> None:
        """One round's runs; `clock` ("wall" or "cpu") says which of the two times counts."""
        chosen = cpu if clock == "cpu" else wall
        self.rounds.append(median(chosen))
        self.best = min(self.best, *chosen)
        self.runs += len(chosen)
        self.wall += sum(wall)
        self.cpu += sum(cpu)

    @property
    def median(self) -> float:
        """Median of the rounds' medians, in seconds."""
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """Half the range of the rounds' medians, as a share of their median: what ± stands for."""
        return (max(self.rounds) - min(self.rounds)) / 2 / self.median


def paired_ratio(slower: Times, faster: Times) -> float:
    """The speed of `faster` relative to `slower`: the median of the ratios of their times in each round.

    Both had their turns one after the other, so a machine that slows down for a while slows both.
    """
    return median(a / b for a, b in zip(slower.rounds, faster.rounds, strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
