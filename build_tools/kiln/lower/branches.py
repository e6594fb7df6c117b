"""Branches of a graph: the calls that run only if the condition of a `choose` selects them, and their order.

A call belongs to a branch if nothing else needs its results: neither the other branch, nor calls outside, nor
the model's outputs. Calls of a loop stay in their loop, and calls from before a loop stay before it, where
they run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.callbacks import mutator, structural_walk
from kiln.frontend import added_operators, branches, loops
from kiln.frontend.counted.sizes import COUNT
from kiln.graph.bindings import constant, operator, variables
from kiln.opinfo.attributes import BROADCAST

op = relax.op

# With at most so many calls in a branch, all of them cheap, both branches are computed and selected from:
# they become one kernel with what reads the result.
_MOST_CHEAP = 4
_CHEAP = {f"relax.{name}" for name in BROADCAST} | {
    f"relax.{name}"
    for name in (
        "abs", "astype", "broadcast_to", "ceil", "clip", "exp", "expand_dims", "floor", "full", "full_like",
        "isinf", "isnan", "logical_not", "negative", "nn.leakyrelu", "nn.relu", "ones", "reshape", "round",
        "sigmoid", "sign", "sqrt", "square", "squeeze", "tanh", "zeros",
    )
}  # fmt: skip


@dataclass(eq=False)
class RunRegion:
    """A part of a graph that runs as a whole: the graph itself, the iterations of a loop, or a branch.

    `loop`: number of the loop. `items`: positions of the calls in it, and of the first call of a loop.
    """

    parent: RunRegion | None = None
    loop: int | None = None
    items: list[tuple[int, RunRegion | None]] = field(default_factory=list)

    @property
    def path(self) -> list[RunRegion]:
        """This region and all that contain it, the whole graph first."""
        return [*(self.parent.path if self.parent else ()), self]


@dataclass(frozen=True)
class Item:
    """A binding of a graph at its place in the order; a `choose` has three places, each with its mark.

    "first" and "second": the calls of this branch follow. "end": the branches have ended.
    """

    binding: Any
    mark: Literal["", "first", "second", "end"] = ""


class RunRegions:
    """The regions of `function`.

    `region_of`: the region of each binding, by its position. `sides`: the regions of both branches, by the
    position of the choice.
    """

    def __init__(self, function: relax.Function) -> None:
        self.bindings = _in_order([binding for block in function.body.blocks for binding in block.bindings])
        self.graph = RunRegion()
        count = len(self.bindings)
        # The last element is the region of what the graph returns.
        self.region_of: list[RunRegion] = [self.graph] * (count + 1)
        self.sides: dict[int, tuple[RunRegion, RunRegion]] = {}
        self._loops: dict[int, RunRegion] = {}
        self._spans = _spans(self.bindings)
        users = _users(self.bindings, function.body.body)
        for position in reversed(range(count)):
            self._place(position, users)
        for position, region in enumerate(self.region_of[:-1]):
            region.items.append((position, None))
        for number, (first, _) in self._spans.items():
            outside = self._loops[number].parent
            assert outside is not None
            outside.items.append((first, self._loops[number]))

    def order(self) -> list[Item]:
        """The bindings in the order in which they run."""
        return list(self._order(self.graph))

    def _order(self, region: RunRegion) -> Iterator[Item]:
        for position, inner in sorted(region.items, key=lambda item: (item[0], item[1] is None)):
            if inner is not None:
                yield from self._order(inner)
                continue
            binding = self.bindings[position]
            if position not in self.sides:
                yield Item(binding)
                continue
            for mark, side in zip(("first", "second"), self.sides[position], strict=True):
                yield Item(binding, mark)  # type: ignore[arg-type]
                yield from self._order(side)
            yield Item(binding, "end")

    def inside(self, choice: int) -> tuple[list[int], list[int]]:
        """The positions of the calls in either branch of the choice at position `choice`."""
        first, second = (
            [
                position
                for position, region in enumerate(self.region_of)
                if any(side is around for around in region.path)
            ]
            for side in self.sides[choice]
        )
        return first, second

    def _place(self, position: int, users: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Find the region of the binding at `position`; the regions of all its users must be known."""
        for number, (first, last) in self._spans.items():
            if position == last:
                inner = range(first, last + 1)
                outer = [user for index in inner for user in users[index] if user[0] > last]
                self._loops[number] = RunRegion(self._common(outer, self._around(position, number)), number)
        region = self._common(users[position], self._around(position))
        self.region_of[position] = region
        if branches.is_choice(self.bindings[position].value):
            self.sides[position] = RunRegion(region), RunRegion(region)

    def _around(self, position: int, left_out: int | None = None) -> list[int]:
        """Numbers of the loops around the binding at `position`, outermost first, without loop `left_out`."""
        numbered = [
            (first, number) for number, (first, last) in self._spans.items() if first <= position <= last
        ]
        return [number for _, number in sorted(numbered) if number != left_out]

    def _common(self, users: Sequence[tuple[int, int]], around: Sequence[int]) -> RunRegion:
        """The innermost region with all `users`, for a binding that is in exactly the loops `around`."""
        paths = []
        for user, side in users:
            path = self.region_of[user].path if side < 0 else self.sides[user][side].path
            paths.append(list(takewhile(lambda region: region.loop in (None, *around), path)))
        shared = reduce(_shared, paths) if paths else [self.graph]
        if around and not any(region.loop == around[-1] for region in shared):
            return self._loops[around[-1]]
        return shared[-1]


def _shared(first: Sequence[RunRegion], second: Sequence[RunRegion]) -> list[RunRegion]:
    """The beginning that two paths have in common."""
    return [a for a, b in zip(first, second, strict=False) if a is b]


def _spans(bindings: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """The positions of the beginning and the end of each loop, by its number."""
    spans: dict[int, tuple[int, int]] = {}
    for position, binding in enumerate(bindings):
        name = added_operators.name_of(binding.value)
        if name in (loops.BEGIN, loops.END):
            number = int(added_operators.attributes_of(binding.value)["loop"])
            spans[number] = (spans.get(number, (position, position))[0], position)
    return spans


def _sizes(binding: Any) -> list[Any]:
    """The variables in the sizes of a binding's result, operands and attributes."""
    types = [binding.var.ty, *(variable.ty for variable in variables(binding.value))]
    size_variables = [variable for ty in types for variable in relax.analysis.tir_vars_in_type(ty)]
    structural_walk(binding.value, ((tirx.Var, size_variables.append),))
    return size_variables


def _counters(bindings: Sequence[Any]) -> dict[Any, list[int]]:
    """The positions of the calls that count each counted size, by its variable."""
    counters: dict[Any, list[int]] = {}
    for position, binding in enumerate(bindings):
        called = binding.value.args[0] if operator(binding.value) == "relax.call_dps_packed" else None
        if called is not None and str(called.global_symbol).startswith(COUNT):
            counters.setdefault(binding.var.ty.shape[0], []).append(position)
    return counters


def _in_order(bindings: list[Any]) -> list[Any]:
    """The bindings in order, but each after the bindings that count its sizes."""
    counters = _counters(bindings)
    if not counters:
        return bindings
    makers = {binding.var: position for position, binding in enumerate(bindings)}
    placed: dict[int, None] = {}

    def needed(position: int) -> list[int]:
        binding = bindings[position]
        positions = {makers[variable] for variable in variables(binding.value) if variable in makers}
        positions |= {
            counters[variable][0]
            for variable in _sizes(binding)
            if variable in counters and position not in counters[variable]
        }
        return sorted(positions - placed.keys())

    for index in range(len(bindings)):
        stack = [index]
        while stack:
            left = needed(stack[-1])
            if left and stack[-1] not in placed:
                stack.extend(reversed(left))
            else:
                placed.setdefault(stack.pop())
    return [bindings[position] for position in placed]


def _users(bindings: Sequence[Any], result: Any) -> list[list[tuple[int, int]]]:
    """The readers of each binding: positions, each with the branch, 0 or 1, of a choice, or -1.

    The results of the graph are read at the position after the last binding.
    """
    makers = {binding.var: position for position, binding in enumerate(bindings)}
    counters = _counters(bindings)
    users: list[list[tuple[int, int]]] = [[] for _ in bindings]

    def note(value: Any, user: int, side: int) -> None:
        for variable in variables(value):
            if variable in makers:
                users[makers[variable]].append((user, side))

    for position, binding in enumerate(bindings):
        if branches.is_choice(binding.value):
            condition, *sides = branches.parts(binding.value)
            note(condition, position, -1)
            for number, values in enumerate(sides):
                note(relax.Tuple(values), position, number)
        else:
            note(binding.value, position, -1)
        for size in _sizes(binding) if counters else ():
            for counter in counters.get(size, ()):
                if counter != position:
                    users[counter].append((position, -1))
    last = len(bindings)
    note(result, last, -1)
    for variable in variables(result) if counters else ():
        for size in relax.analysis.tir_vars_in_type(variable.ty):
            for counter in counters.get(size, ()):
                users[counter].append((last, -1))
    return users


def ordered(function: relax.Function) -> list[Item]:
    """The bindings of `function` in the order in which they run, with the places of its branches."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if not any(branches.is_choice(binding.value) for binding in bindings):
        return [Item(binding) for binding in bindings]
    return RunRegions(function).order()


def cheap_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute both sides of a choice, and select, where branches cost more; known conditions are resolved."""
    return _rewritten(mod, everything=False)


def no_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute both sides of every choice, and select: for targets whose runs have no branches."""
    return _rewritten(mod, everything=True)


def _rewritten(mod: tvm.IRModule, *, everything: bool) -> tvm.IRModule:
    main = mod["main"]
    chosen = [
        binding
        for block in main.body.blocks
        for binding in block.bindings
        if branches.is_choice(binding.value)
    ]
    if not chosen:
        return mod
    selected = set(range(len(chosen))) if everything else _cheap(main)
    rewriter = _Select(mod, selected)
    rewriter.builder_.update_func(mod.get_global_var("main"), rewriter.visit_expr(main))
    return relax.transform.CanonicalizeBindings()(rewriter.builder_.get())


def _cheap(main: Any) -> set[int]:
    """The numbers, in order, of the choices whose branches are both cheap."""
    cheap, regions = set(), RunRegions(main)
    for number, position in enumerate(sorted(regions.sides)):
        sides = [[regions.bindings[index] for index in side] for side in regions.inside(position)]
        calls = [[item.value for item in side if isinstance(item.value, relax.Call)] for side in sides]
        if all(len(side) <= _MOST_CHEAP and all(operator(call) in _CHEAP for call in side) for side in calls):
            cheap.add(number)
    return cheap


@mutator
class _Select(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Replaces the choices whose number, in order, is in `selected`, and those with a known condition."""

    def __init__(self, mod: tvm.IRModule, selected: set[int]) -> None:
        super().__init__(mod)
        self._selected, self._number = selected, -1

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not branches.is_choice(call):
            return call
        self._number += 1
        condition, *sides = branches.parts(call)
        value = constant(condition)
        if value is not None:
            results = sides[0] if bool(np.reshape(value, -1)[0]) else sides[1]
        elif self._number in self._selected:
            results = [self._where(condition, *pair) for pair in zip(*sides, strict=True)]
        else:
            return call
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _where(self, condition: Any, first: Any, second: Any) -> Any:
        rank = len(first.ty.shape)
        flag = condition if rank == 1 else op.reshape(condition, relax.ShapeExpr([1] * rank))
        return self.builder_.emit(op.where(self.builder_.emit(flag), first, second))
