"""Bucket selection: the buckets with the least expected cost for the recorded traffic.

Along one dimension the recorded sizes are cut into intervals. A pad bucket runs every size of its interval at
the interval's greatest size. A range bucket, and the fallback for sizes above the last bucket, cost as much
as the function with dynamic shapes. Dynamic programming finds the optimal cut; no bucket is chosen where
dynamic shapes cost less.
Only recorded sizes are candidates for the edge of a bucket. As long as a larger size never costs less, no
other edge is better: lowering an edge to the next recorded size leaves every call in the same bucket.

With several dimensions, coordinate descent: the buckets of one dimension at a time are made optimal while the
buckets of all other dimensions are fixed, until nothing changes. The result is a local optimum: changing a
single dimension cannot improve it, but changing several dimensions together might.
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

ROUNDS = 32  # limit of coordinate descent, which converges long before


class BucketCost(Protocol):
    """Cost model: nanoseconds of one run, given the size of every dimension and the kind of function.

    Kinds: "exact": a function compiled for these sizes; "pad": the exact function, plus padding the inputs
    and cutting the outputs; "open": the function with dynamic shapes, for any size.
    """

    def __call__(self, sizes: Mapping[str, int], serving: Serving) -> float: ...


@dataclass(frozen=True)
class BucketConstraints:
    """Constraints on the buckets of one dimension.

    most: greatest number of buckets. kind: of these buckets. top: greatest size of the dimension if it has no
    fallback, else None. least: least size of the dimension. step: every size is a multiple of it.
    """

    most: int
    kind: Literal["pad", "exact"] = "pad"
    top: int | None = None
    least: int = 1
    step: int = 1

    @property
    def closed(self) -> bool:
        """Whether the buckets must cover every size up to `top`: the dimension has no fallback."""
        return self.top is not None


@dataclass(frozen=True)
class Interval:
    """A bucket of one dimension: the sizes first..last, and the kind of bucket that serves them."""

    kind: Literal["exact", "pad", "range"]
    first: int
    last: int

    def __str__(self) -> str:
        return f"range {self.first}..{self.last}" if self.kind == "range" else f"{self.kind} {self.last}"

    @property
    def bucket(self) -> dict[str, int | list[int]]:
        """The bucket in the form in which the model's YAML lists it, such as {"pad": 64}."""
        return {self.kind: [self.first, self.last] if self.kind == "range" else self.last}


@dataclass(frozen=True)
class ChosenBuckets:
    """Result of bucket selection; all costs are mean nanoseconds per recorded call.

    buckets: by dimension. cost: with these buckets. open: with the dynamic-shape function alone.
    fewer, more: by dimension, the cost with one bucket fewer or more; None where that is not possible.
    """

    buckets: Mapping[str, tuple[Interval, ...]]
    cost: float
    open: float
    fewer: Mapping[str, float | None]
    more: Mapping[str, float | None]


def optimal_intervals(
    padded: Matrix, ranged: Matrix, rest: Matrix | None, most: int
) -> tuple[float, list[tuple[bool, int, int]]]:
    """Cut rows 0..n-1 (the sizes, ascending) into at most `most` intervals of least total cost.

    Dynamic programming, O(most * n^2). Cost of all calls of row i: padded[i, j] where an interval pads them
    to row j >= i, ranged[i] in an interval with dynamic shapes, rest[i] after the last interval. `rest` None:
    the intervals must cover all rows. Returns the total cost and the intervals, each as (whether it pads,
    first row, last row). Of equally cheap cuts, one with the fewest intervals is returned.
    """
    count = len(ranged)
    # spent[i, j]: cost of rows 0..i-1 padded to row j; an interval costs the difference of two entries.
    spent = np.vstack([np.zeros((1, count)), np.cumsum(padded, axis=0)])
    dynamic = np.concatenate([[0.0], np.cumsum(ranged)])
    rest_cost = None if rest is None else np.concatenate([np.cumsum(rest[::-1])[::-1], [0.0]])
    best = [np.full(count + 1, np.inf)]
    best[0][0] = 0.0
    origin: list[list[tuple[bool, int]]] = [[(False, 0)] * (count + 1)]
    for _ in range(min(most, count)):
        next_best, next_origin = np.full(count + 1, np.inf), [(False, 0)] * (count + 1)
        for last in range(count):
            pads = best[-1][: last + 1] + spent[last + 1, last] - spent[: last + 1, last]
            opens = best[-1][: last + 1] + dynamic[last + 1] - dynamic[: last + 1]
            pad, first = min((float(pads.min()), int(pads.argmin())), (np.inf, 0))
            range_, start = float(opens.min()), int(opens.argmin())
            next_best[last + 1], next_origin[last + 1] = (
                (pad, (True, first)) if pad <= range_ else (range_, (False, start))
            )
        best.append(next_best)
        origin.append(next_origin)
    ends = [
        row + rest_cost if rest_cost is not None else np.where(np.arange(count + 1) == count, row, np.inf)
        for row in best
    ]
    costs = [float(row.min()) for row in ends]
    level = next(n for n, cost in enumerate(costs) if cost <= min(costs) * (1 + 1e-9))
    row, intervals = int(np.argmin(ends[level])), []
    for number in range(level, 0, -1):
        pads_, first = origin[number][row]
        intervals.append((pads_, first, row - 1))
        row = first
    return costs[level], intervals[::-1]


def choose(
    traffic: Traffic,
    constraints: Mapping[str, BucketConstraints],
    cost: BucketCost,
    others: Mapping[str, int],
) -> ChosenBuckets:
    """Choose buckets for each dimension of `constraints`.

    `others`: the sizes at which dimensions without a column in the traffic are costed. A dimension that is in
    the traffic but not in `constraints` is costed as if each of its sizes had an exact function.
    """
    search = _Search(traffic, constraints, cost, others)
    buckets, total = search.run({name: constraint.most for name, constraint in constraints.items()})
    calls = sum(traffic.rows.values())
    fewer: dict[str, float | None] = {}
    more: dict[str, float | None] = {}
    for name in constraints:
        for costs, step in ((fewer, -1), (more, 1)):
            number = len(buckets[name]) + step
            least = 1 if constraints[name].closed else 0
            if number < least or number > len(search.candidates(name)):
                costs[name] = None
                continue
            costs[name] = search.optimum(name, buckets, number)[0] / calls
    return ChosenBuckets(buckets, total / calls, search.dynamic_total() / calls, fewer, more)


class _Search:
    """Coordinate descent over the dimensions; costs of single calls are cached."""

    def __init__(
        self,
        traffic: Traffic,
        constraints: Mapping[str, BucketConstraints],
        cost: BucketCost,
        others: Mapping[str, int],
    ) -> None:
        self.traffic, self.constraints, self.others = traffic, constraints, others
        self._cost = cost
        self._prices: dict[tuple[tuple[int, ...], Serving], float] = {}

    def run(self, most: Mapping[str, int]) -> tuple[dict[str, tuple[Interval, ...]], float]:
        """The buckets of each dimension, at most `most` of them, and the total nanoseconds of all calls."""
        buckets = {
            name: tuple(Interval("exact", size, size) for size in self.candidates(name))
            for name in self.constraints
        }
        total = np.inf
        for _ in range(ROUNDS):
            before = total
            for name in self.constraints:
                total, buckets[name] = self.optimum(name, buckets, most[name])
            if total >= before:
                break
        return buckets, float(total)

    def candidates(self, name: str) -> list[int]:
        """The sizes that an edge of a bucket of dimension `name` may have, ascending."""
        sizes, constraint = set(self.traffic.of(name)), self.constraints[name]
        return sorted(
            sizes if constraint.top is None or constraint.kind == "exact" else sizes | {constraint.top}
        )

    def dynamic_total(self) -> float:
        """The total nanoseconds of all calls in the function with dynamic shapes."""
        return sum(count * self._price(sizes, "open") for sizes, count in self.traffic.rows.items())

    def optimum(
        self, name: str, buckets: Mapping[str, Sequence[Interval]], most: int
    ) -> tuple[float, tuple[Interval, ...]]:
        """The total nanoseconds of all calls, and the best buckets of `name` with all other buckets fixed."""
        candidates, constraint = self.candidates(name), self.constraints[name]
        row_of = {size: index for index, size in enumerate(candidates)}
        axis, count = self.traffic.dims.index(name), len(candidates)
        padded, ranged, rest = np.zeros((count, count)), np.zeros(count), np.zeros(count)
        for sizes, calls in self.traffic.rows.items():
            row = row_of[sizes[axis]]
            others = {other: intervals for other, intervals in buckets.items() if other != name}
            rest[row] += calls * self._price(sizes, "open")
            ranged[row] += calls * self._call_cost(sizes, others, {axis: ("range", sizes[axis])})
            for column in [row] if constraint.kind == "exact" else range(row, count):
                edge = candidates[column]
                kind: Literal["exact", "pad"] = (
                    "exact" if constraint.kind == "exact" or edge == sizes[axis] else "pad"
                )
                padded[row, column] += calls * self._call_cost(sizes, others, {axis: (kind, edge)})
        if constraint.kind == "exact":
            return self._best_exact(candidates, np.diagonal(padded), rest, most)
        total, intervals = optimal_intervals(padded, ranged, None if constraint.closed else rest, most)
        return total, self._intervals(candidates, intervals, constraint)

    def _best_exact(
        self, candidates: Sequence[int], exact: Matrix, rest: Matrix, most: int
    ) -> tuple[float, tuple[Interval, ...]]:
        """Exact buckets for the sizes at which an exact function saves most, and the total cost with them.

        exact, rest: cost of all calls of each candidate, with an exact function and with dynamic shapes.
        """
        saved = rest - exact
        best = sorted(int(row) for row in np.argsort(-saved, kind="stable")[:most] if saved[row] > 0)
        total = float(rest.sum() - saved[best].sum())
        return total, tuple(Interval("exact", candidates[row], candidates[row]) for row in best)

    def _intervals(
        self, candidates: Sequence[int], rows: Sequence[tuple[bool, int, int]], constraint: BucketConstraints
    ) -> tuple[Interval, ...]:
        """Convert intervals of rows to intervals of sizes; each starts one step after the previous one."""
        result, first = [], constraint.least
        for pads, _, last in rows:
            result.append(Interval("pad" if pads else "range", first, candidates[last]))
            first = candidates[last] + constraint.step
        return tuple(result)

    def _call_cost(
        self,
        sizes: Sequence[int],
        buckets: Mapping[str, Sequence[Interval]],
        fixed: Mapping[int, tuple[str, int]],
    ) -> float:
        """Nanoseconds of one call at `sizes`.

        fixed: by axis, the kind and size that serve the call. buckets: of other dimensions, by name.
        """
        kinds, served = {"exact"}, list(sizes)
        served_by = dict(fixed)
        for name, intervals in buckets.items():
            axis = self.traffic.dims.index(name)
            interval = next(
                (candidate for candidate in intervals if candidate.first <= sizes[axis] <= candidate.last),
                None,
            )
            if interval is None:
                return self._price(tuple(sizes), "open")  # the fallback pads no dimension
            served_by[axis] = (interval.kind, sizes[axis] if interval.kind == "range" else interval.last)
        for axis, (kind, size) in served_by.items():
            served[axis] = size
            kinds.add("open" if kind == "range" else "pad" if size != sizes[axis] else "exact")
        serving: Serving = "open" if "open" in kinds else "pad" if "pad" in kinds else "exact"
        return self._price(tuple(served), serving)

    def _price(self, sizes: tuple[int, ...], serving: Serving) -> float:
        key = (sizes, serving)
        if key not in self._prices:
            named = {**self.others, **dict(zip(self.traffic.dims, sizes, strict=True))}
            self._prices[key] = self._cost(named, serving)
        return self._prices[key]


def table_text(traffic: Traffic, chosen: ChosenBuckets) -> str:
    """A table of the selection: a row per dimension and number of buckets, the totals, and missed calls."""
    lines = [f"{'dimension':<12} {'buckets':>7} {'expected us':>12}  buckets"]
    for name, buckets in chosen.buckets.items():
        chosen_text = ", ".join(map(str, buckets)) or "none: the dynamic-shape function costs no more"
        for count, cost, text in (
            (len(buckets) - 1, chosen.fewer[name], "one fewer"),
            (len(buckets), chosen.cost, chosen_text),
            (len(buckets) + 1, chosen.more[name], "one more"),
        ):
            if cost is not None:
                change = "" if count == len(buckets) else f" ({cost / chosen.cost - 1:+.1%})"
                lines.append(f"{name:<12} {count:>7} {cost / 1000:>12.3f}  {text}{change}")
    calls = sum(traffic.rows.values())
    lines.append(
        f"{calls} calls, {len(traffic.rows)} different shapes; dynamic shapes: {chosen.open / 1000:.3f} us"
    )
    if traffic.missed:
        lines.append(
            f"warning: {traffic.missed} of {calls + traffic.missed} calls were missed, as the table of "
            "traffic was full; give kiln_traffic_open more rows"
        )
    return "\n".join(lines)
