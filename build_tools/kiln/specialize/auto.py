"""Buckets that make the traffic cheapest, each of them cheaper than the function of open sizes.

Along one dimension the sizes that came in are cut into intervals. A pad bucket works on the greatest size of
an interval for all of its sizes; a range bucket, and the fallback behind the last bucket, cost what the
function of open sizes costs. The cut is optimal, by dynamic programming: no bucket is chosen where open sizes
cost less.
No other edge can be better as long as a larger size never costs less: lowering an edge to the next size that
came does not change who is taken.

For several dimensions each one's buckets are made optimal in turn, with those of the others fixed, until
nothing changes. No single dimension can then do better alone; another combination of all of them might.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from kiln.specialize.traffic import Traffic

Matrix = npt.NDArray[np.float64]
Serving = Literal["exact", "pad", "open"]

ROUNDS = 32  # of coordinate descent; it ends long before


class Cost(Protocol):
    """Nanoseconds of a run at sizes of all dimensions, as one of three kinds of function.

    exact: made for these sizes; pad: the same with inputs filled up and outputs cut; open: for any size.
    """

    def __call__(self, sizes: Mapping[str, int], serving: Serving) -> float: ...


@dataclass(frozen=True)
class Wish:
    """What is asked for one dimension.

    most: buckets at most. closed: buckets have to take every size up to `top`, for nothing else does. least,
    step: the dimension's least size, and what its sizes are multiples of.
    """

    most: int
    kind: Literal["pad", "exact"] = "pad"
    top: int | None = None
    least: int = 1
    step: int = 1

    @property
    def closed(self) -> bool:
        return self.top is not None


@dataclass(frozen=True)
class Interval:
    """The sizes first..last, and what takes them: "exact", "pad" or "range"."""

    kind: Literal["exact", "pad", "range"]
    first: int
    last: int

    def __str__(self) -> str:
        return f"range {self.first}..{self.last}" if self.kind == "range" else f"{self.kind} {self.last}"

    @property
    def bucket(self) -> dict[str, int | list[int]]:
        """As the YAML would list it."""
        return {self.kind: [self.first, self.last] if self.kind == "range" else self.last}


@dataclass(frozen=True)
class Chosen:
    """The buckets of each dimension, the mean nanoseconds of a call, and those of the function of open sizes.

    fewer, more: the mean with one bucket fewer or more; None where there is no such number of buckets.
    """

    buckets: Mapping[str, tuple[Interval, ...]]
    cost: float
    open: float
    fewer: Mapping[str, float | None]
    more: Mapping[str, float | None]


def optimal_intervals(
    padded: Matrix, ranged: Matrix, rest: Matrix | None, most: int
) -> tuple[float, list[tuple[bool, int, int]]]:
    """The cheapest cut of rows 0..n-1 into at most `most` intervals: O(most * n^2).

    padded[i, j], i <= j: what all calls of row i cost when an interval pads them to row j. ranged[i]: in an
    interval of open sizes. rest[i]: behind the last interval; None: no row may be there. Returns the cost and
    the intervals (whether it pads, first row, last row). The fewest of equally cheap ones.
    """
    count = len(ranged)
    # spent[i, j]: what rows below i cost at edge j, so that an interval is a difference.
    spent = np.vstack([np.zeros((1, count)), np.cumsum(padded, axis=0)])
    open_ = np.concatenate([[0.0], np.cumsum(ranged)])
    left = None if rest is None else np.concatenate([np.cumsum(rest[::-1])[::-1], [0.0]])
    best = [np.full(count + 1, np.inf)]
    best[0][0] = 0.0
    origin: list[list[tuple[bool, int]]] = [[(False, 0)] * (count + 1)]
    for _ in range(min(most, count)):
        following, where = np.full(count + 1, np.inf), [(False, 0)] * (count + 1)
        for last in range(count):
            pads = best[-1][: last + 1] + spent[last + 1, last] - spent[: last + 1, last]
            opens = best[-1][: last + 1] + open_[last + 1] - open_[: last + 1]
            pad, first = min((float(pads.min()), int(pads.argmin())), (np.inf, 0))
            range_, start = float(opens.min()), int(opens.argmin())
            following[last + 1], where[last + 1] = (
                (pad, (True, first)) if pad <= range_ else (range_, (False, start))
            )
        best.append(following)
        origin.append(where)
    ends = [
        row + left if left is not None else np.where(np.arange(count + 1) == count, row, np.inf)
        for row in best
    ]
    costs = [float(row.min()) for row in ends]
    level = next(n for n, cost in enumerate(costs) if cost <= min(costs) * (1 + 1e-9))
    row, found = int(np.argmin(ends[level])), []
    for number in range(level, 0, -1):
        pads_, first = origin[number][row]
        found.append((pads_, first, row - 1))
        row = first
    return costs[level], found[::-1]


def choose(traffic: Traffic, wishes: Mapping[str, Wish], cost: Cost, others: Mapping[str, int]) -> Chosen:
    """Buckets for each dimension of `wishes`; `others`: sizes of dimensions that the traffic does not have.

    Dimensions of the traffic without a wish are served exactly.
    """
    search = _Search(traffic, wishes, cost, others)
    buckets, total = search.run({name: wish.most for name, wish in wishes.items()})
    calls = sum(traffic.rows.values())
    fewer: dict[str, float | None] = {}
    more: dict[str, float | None] = {}
    for name in wishes:
        for found, step in ((fewer, -1), (more, 1)):
            number = len(buckets[name]) + step
            least = 1 if wishes[name].closed else 0
            if number < least or number > len(search.candidates(name)):
                found[name] = None
                continue
            found[name] = search.optimum(name, buckets, number)[0] / calls
    return Chosen(buckets, total / calls, search.open_total() / calls, fewer, more)


class _Search:
    """Coordinate descent; one dimension takes one round."""

    def __init__(
        self, traffic: Traffic, wishes: Mapping[str, Wish], cost: Cost, others: Mapping[str, int]
    ) -> None:
        self.traffic, self.wishes, self.others = traffic, wishes, others
        self._cost = cost
        self._known: dict[tuple[tuple[int, ...], Serving], float] = {}

    def run(self, most: Mapping[str, int]) -> tuple[dict[str, tuple[Interval, ...]], float]:
        buckets = {
            name: tuple(Interval("exact", size, size) for size in self.candidates(name))
            for name in self.wishes
        }
        total = np.inf
        for _ in range(ROUNDS):
            before = total
            for name in self.wishes:
                total, buckets[name] = self.optimum(name, buckets, most[name])
            if total >= before:
                break
        return buckets, float(total)

    def candidates(self, name: str) -> list[int]:
        """Sizes that an edge may have."""
        sizes, wish = set(self.traffic.of(name)), self.wishes[name]
        return sorted(sizes if wish.top is None or wish.kind == "exact" else sizes | {wish.top})

    def open_total(self) -> float:
        """What all calls cost in the function of open sizes."""
        return sum(count * self._price(sizes, "open") for sizes, count in self.traffic.rows.items())

    def optimum(
        self, name: str, buckets: Mapping[str, Sequence[Interval]], most: int
    ) -> tuple[float, tuple[Interval, ...]]:
        """The best buckets of one dimension while the others' are fixed, and what all calls cost."""
        candidates, wish = self.candidates(name), self.wishes[name]
        place = {size: index for index, size in enumerate(candidates)}
        at, count = self.traffic.dims.index(name), len(candidates)
        padded, ranged, rest = np.zeros((count, count)), np.zeros(count), np.zeros(count)
        for sizes, calls in self.traffic.rows.items():
            row = place[sizes[at]]
            others = {other: found for other, found in buckets.items() if other != name}
            rest[row] += calls * self._price(sizes, "open")
            ranged[row] += calls * self._served(sizes, others, {at: ("range", sizes[at])})
            for column in [row] if wish.kind == "exact" else range(row, count):
                edge = candidates[column]
                kind: Literal["exact", "pad"] = (
                    "exact" if wish.kind == "exact" or edge == sizes[at] else "pad"
                )
                padded[row, column] += calls * self._served(sizes, others, {at: (kind, edge)})
        if wish.kind == "exact":
            return self._exact(candidates, np.diagonal(padded), rest, most)
        total, found = optimal_intervals(padded, ranged, None if wish.closed else rest, most)
        return total, self._intervals(candidates, found, wish)

    def _exact(
        self, candidates: Sequence[int], own: Matrix, rest: Matrix, most: int
    ) -> tuple[float, tuple[Interval, ...]]:
        """The sizes where a function of their own saves most."""
        saved = rest - own
        best = sorted(int(row) for row in np.argsort(-saved, kind="stable")[:most] if saved[row] > 0)
        total = float(rest.sum() - saved[best].sum())
        return total, tuple(Interval("exact", candidates[row], candidates[row]) for row in best)

    def _intervals(
        self, candidates: Sequence[int], found: Sequence[tuple[bool, int, int]], wish: Wish
    ) -> tuple[Interval, ...]:
        """Intervals of rows as those of sizes: each begins behind the one before it."""
        result, first = [], wish.least
        for pads, _, last in found:
            result.append(Interval("pad" if pads else "range", first, candidates[last]))
            first = candidates[last] + wish.step
        return tuple(result)

    def _served(
        self,
        sizes: Sequence[int],
        buckets: Mapping[str, Sequence[Interval]],
        given: Mapping[int, tuple[str, int]],
    ) -> float:
        """What one call costs: `given` has the kind and size of an axis, `buckets` those of others."""
        kinds, served = {"exact"}, list(sizes)
        taken = dict(given)
        for name, intervals in buckets.items():
            at = self.traffic.dims.index(name)
            place = next((one for one in intervals if one.first <= sizes[at] <= one.last), None)
            if place is None:
                return self._price(tuple(sizes), "open")  # the fallback takes all dimensions as they are
            taken[at] = (place.kind, sizes[at] if place.kind == "range" else place.last)
        for at, (kind, size) in taken.items():
            served[at] = size
            kinds.add("open" if kind == "range" else "pad" if size != sizes[at] else "exact")
        serving: Serving = "open" if "open" in kinds else "pad" if "pad" in kinds else "exact"
        return self._price(tuple(served), serving)

    def _price(self, sizes: tuple[int, ...], serving: Serving) -> float:
        key = (sizes, serving)
        if key not in self._known:
            named = {**self.others, **dict(zip(self.traffic.dims, sizes, strict=True))}
            self._known[key] = self._cost(named, serving)
        return self._known[key]


def table_text(traffic: Traffic, chosen: Chosen) -> str:
    """What was chosen, for people: a row for each number of buckets, and what was not counted."""
    lines = [f"{'dimension':<12} {'buckets':>7} {'expected us':>12}  buckets"]
    for name, buckets in chosen.buckets.items():
        shown = ", ".join(map(str, buckets)) or "none: the function of open sizes costs no more"
        for count, cost, text in (
            (len(buckets) - 1, chosen.fewer[name], "one fewer"),
            (len(buckets), chosen.cost, shown),
            (len(buckets) + 1, chosen.more[name], "one more"),
        ):
            if cost is not None:
                change = "" if count == len(buckets) else f" ({cost / chosen.cost - 1:+.1%})"
                lines.append(f"{name:<12} {count:>7} {cost / 1000:>12.3f}  {text}{change}")
    calls = sum(traffic.rows.values())
    lines.append(
        f"{calls} calls, {len(traffic.rows)} different shapes; open sizes: {chosen.open / 1000:.3f} us"
    )
    if traffic.missed:
        lines.append(
            f"warning: {traffic.missed} of {calls + traffic.missed} calls found no room when traffic was "
            "recorded; give kiln_traffic_open more rows"
        )
    return "\n".join(lines)
