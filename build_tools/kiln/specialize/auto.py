"""Buckets that make the traffic cheapest.

A size costs what the bucket that takes it costs: a pad bucket works on its edge, the least edge that is not
below the size. For one dimension the edges are optimal, by dynamic programming over the sizes that came in.
No other edge can be better as long as a larger size never costs less: lowering an edge to the next size that
came does not change who is taken.

For several dimensions each one's edges are made optimal in turn, with those of the others fixed, until
nothing changes. No single dimension can then do better alone; another combination of all of them might.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kiln.specialize.traffic import Traffic

# Sizes of all dimensions → nanoseconds.
Cost = Callable[[Mapping[str, int]], float]
Matrix = npt.NDArray[np.float64]

# What a function with open sizes takes, over one made for the size: what sizes without an exact bucket cost.
DYNAMIC = 1.25
ROUNDS = 32  # of coordinate descent; it ends long before


@dataclass(frozen=True)
class Wish:
    """What is asked for one dimension. top: there must be an edge, for nothing else takes these sizes."""

    most: int
    kind: str = "pad"
    top: int | None = None


@dataclass(frozen=True)
class Chosen:
    """The edges of each dimension and the mean nanoseconds of a call; and with one bucket fewer, or more.

    None where there is no such number of buckets.
    """

    edges: Mapping[str, tuple[int, ...]]
    cost: float
    fewer: Mapping[str, float | None]
    more: Mapping[str, float | None]


def optimal_edges(table: Matrix, most: int) -> tuple[float, list[int]]:
    """The cheapest choice of at most `most` columns of `table`, by dynamic programming: O(most * n^2).

    table[i, j], i <= j: what all calls of size i cost when edge j takes them; sizes and edges are in order,
    the last edge takes every size, and is always among the chosen. Returns the cost and the columns in order.
    """
    count = table.shape[1]
    # spent[i, j]: what rows below i cost at edge j, so that a range of rows is a difference.
    spent = np.vstack([np.zeros((1, count)), np.cumsum(table, axis=0)])
    best = spent[np.arange(1, count + 1), np.arange(count)]
    before: list[npt.NDArray[np.int64]] = [np.full(count, -1)]
    totals = [best]
    for _ in range(1, min(most, count)):
        following, origin = np.full(count, np.inf), np.full(count, -1)
        for edge in range(1, count):
            options = totals[-1][:edge] + spent[edge + 1, edge] - spent[1 : edge + 1, edge]
            origin[edge] = int(np.argmin(options))
            following[edge] = options[origin[edge]]
        totals.append(following)
        before.append(origin)
    level = int(np.argmin([total[-1] for total in totals]))
    cost, edge, columns = float(totals[level][-1]), count - 1, []
    while edge >= 0:
        columns.append(edge)
        edge, level = int(before[level][edge]), level - 1
    return cost, columns[::-1]


def choose(traffic: Traffic, wishes: Mapping[str, Wish], cost: Cost, others: Mapping[str, int]) -> Chosen:
    """Edges for each dimension of `wishes`; `others`: sizes of dimensions that the traffic does not have.

    Dimensions of the traffic without a wish are served exactly.
    """
    search = _Search(traffic, wishes, cost, others)
    edges, total = search.run({name: wish.most for name, wish in wishes.items()})
    calls = sum(traffic.rows.values())
    fewer: dict[str, float | None] = {}
    more: dict[str, float | None] = {}
    for name in wishes:
        for found, step in ((fewer, -1), (more, 1)):
            number = len(edges[name]) + step
            if number < 1 or number > len(search.candidates(name)):
                found[name] = None
                continue
            found[name] = search.optimum(name, edges, number)[0] / calls
    return Chosen(edges, total / calls, fewer, more)


class _Search:
    """Coordinate descent; one dimension takes one round."""

    def __init__(
        self, traffic: Traffic, wishes: Mapping[str, Wish], cost: Cost, others: Mapping[str, int]
    ) -> None:
        self.traffic, self.wishes, self.others = traffic, wishes, others
        self._cost = cost
        self._known: dict[tuple[int, ...], float] = {}

    def run(self, most: Mapping[str, int]) -> tuple[dict[str, tuple[int, ...]], float]:
        edges = {name: tuple(self.candidates(name)) for name in self.wishes}  # nothing is padded
        total = np.inf
        for _ in range(ROUNDS):
            before = total
            for name in self.wishes:
                total, edges[name] = self.optimum(name, edges, most[name])
            if total >= before:
                break
        return edges, float(total)

    def candidates(self, name: str) -> list[int]:
        """Sizes that an edge may have."""
        sizes = set(self.traffic.of(name))
        top = self.wishes[name].top
        return sorted(sizes if top is None or self.wishes[name].kind == "exact" else sizes | {top})

    def optimum(
        self, name: str, edges: Mapping[str, Sequence[int]], most: int
    ) -> tuple[float, tuple[int, ...]]:
        """The best edges of one dimension while the others' are fixed, and what all calls cost."""
        candidates = self.candidates(name)
        place = {size: index for index, size in enumerate(candidates)}
        at = self.traffic.dims.index(name)
        exact = self.wishes[name].kind == "exact"
        table = np.zeros((len(candidates), len(candidates)))
        for sizes, count in self.traffic.rows.items():
            served, factor = list(sizes), float(count)
            for position, other in enumerate(self.traffic.dims):
                if other == name or other not in edges:
                    continue
                taken = self._taken(other, sizes[position], edges[other])
                served[position] = sizes[position] if taken is None else taken
                factor *= DYNAMIC if taken is None else 1.0
            row = place[sizes[at]]
            for column in [row] if exact else range(row, len(candidates)):
                served[at] = candidates[column]
                table[row, column] += factor * self._price(tuple(served))
        if not exact:
            total, columns = optimal_edges(table, most)
            return total, tuple(candidates[column] for column in columns)
        own = np.diagonal(table)
        best = sorted(np.argsort(-own, kind="stable")[:most])
        total = float(own.sum() * DYNAMIC - own[best].sum() * (DYNAMIC - 1.0))
        return total, tuple(candidates[column] for column in best)

    def _taken(self, name: str, size: int, edges: Sequence[int]) -> int | None:
        if self.wishes[name].kind == "exact":
            return size if size in edges else None
        return next(edge for edge in edges if edge >= size)

    def _price(self, sizes: tuple[int, ...]) -> float:
        if sizes not in self._known:
            named = {**self.others, **dict(zip(self.traffic.dims, sizes, strict=True))}
            self._known[sizes] = self._cost(named)
        return self._known[sizes]


def table_text(traffic: Traffic, wishes: Mapping[str, Wish], chosen: Chosen) -> str:
    """What was chosen, for people: a row for each number of buckets."""
    lines = [f"{'dimension':<12} {'buckets':>7} {'expected us':>12}  edges"]
    for name, edges in chosen.edges.items():
        shown = ", ".join(f"{wishes[name].kind} {edge}" for edge in edges)
        for count, cost, text in (
            (len(edges) - 1, chosen.fewer[name], "one fewer"),
            (len(edges), chosen.cost, shown),
            (len(edges) + 1, chosen.more[name], "one more"),
        ):
            if cost is not None:
                change = "" if count == len(edges) else f" ({cost / chosen.cost - 1:+.1%})"
                lines.append(f"{name:<12} {count:>7} {cost / 1000:>12.3f}  {text}{change}")
    calls = sum(traffic.rows.values())
    return "\n".join([*lines, f"{calls} calls, {len(traffic.rows)} different shapes"])
