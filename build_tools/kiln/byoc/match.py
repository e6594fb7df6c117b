"""Patterns of a backend, and their matches, in the same form for the graph and for fused functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm.tirx import PrimFunc

from kiln.arrays import Array
from kiln.extents import shape_of
from kiln.graph.bindings import constant
from kiln.opinfo.attach import OpInfo, describe


@dataclass(frozen=True)
class Operand:
    """A tensor. Sizes in `shape` are ints, or TIR expressions of dynamic dimensions.

    `value`: the elements of a constant; None for a computed tensor.
    """

    expr: Any
    shape: tuple[Any, ...]
    dtype: str
    value: Array | None = None

    @classmethod
    def of(cls, expr: Any, value: Array | None = None) -> Operand:
        """The operand of a Relax expression; `value`: its elements, if the expression is not a constant."""
        elements = constant(expr) if value is None else value
        return cls(expr, tuple(shape_of(expr)), str(expr.ty.dtype), elements)

    @property
    def is_dynamic(self) -> bool:
        """Whether a size is dynamic, that is known only at run time."""
        return not all(isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        # TIR writes `high // T.int64(2)`.
        sizes = (re.sub(r"T\.int64\((-?\d+)\)| ", r"\1", str(size)) for size in self.shape)
        return "x".join(sizes) or "scalar"


@dataclass(frozen=True)
class Match:
    """One subgraph that a pattern matches.

    `operands`: by the pattern's names; `ops`: op info of the operators in order; `anchor`: op info of the
    main operator, a matmul or convolution; `options`: the variant of the pattern, such as
    `{"bias": True, "activation": "relu"}`; `depth`: multiply-adds for one element of the output, 0 if
    unknown; `limits`: least and greatest result of an activation that was read from op info. `calls`: for a
    match in the graph, its (variable, call) pairs in order.
    """

    pattern: str
    operands: Mapping[str, Operand]
    output: Operand
    ops: Sequence[OpInfo]
    anchor: OpInfo
    options: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0
    limits: tuple[float, float] | None = None
    calls: Sequence[tuple[Any, Any]] = ()

    @property
    def key(self) -> str:
        """The subgraph's name in reports, globs and measurements: `dense 16x384 384x1536 bias relu`."""
        shapes = [str(self.operands[name]) for name in ("x", "w") if name in self.operands]
        shapes = shapes or [str(operand) for operand in self.operands.values()]
        words = [
            name if value is True else str(value) for name, value in self.options.items() if value is not None
        ]
        spatial = {"strides": "s", "dilation": "d", "padding": "p"}
        for name, short in spatial.items():
            numbers = self.anchor["attrs"].get(name)
            if numbers and any(number != (name != "padding") for number in numbers):
                words.insert(0, short + "x".join(map(str, numbers)))
        if self.anchor["attrs"].get("groups", 1) != 1:
            words.insert(0, f"g{self.anchor['attrs']['groups']}")
        return " ".join([self.pattern, *shapes, *[word for word in words if word]])


Check = Callable[[Match], bool]


@dataclass(frozen=True)
class Pattern:
    """A pattern of relax.dpl. `operands` and `anchor` are inside `root`; `check` can reject a match."""

    name: str
    root: Any
    anchor: Any
    operands: Mapping[str, Any]
    check: Check = lambda _match: True
    options: Mapping[str, Any] = field(default_factory=dict)
    depth: Callable[[Match], int] = lambda _match: 0

    def match(
        self, call: Any, definitions: Any, variables: Mapping[Any, Any]
    ) -> tuple[Match, list[Any]] | None:
        """The match that ends in `call`, and all of its calls; None if there is no match.

        `definitions`: the expression of each variable; `variables`: the variable of each expression.
        """
        matched = self.root.extract_matched_expr(call, definitions)
        if matched is None:
            return None
        # Relax matches the expression that a variable is bound to; the call must read the variable.
        exprs = {pattern: variables.get(expr, expr) for pattern, expr in matched.items()}
        inside = _between(call, [exprs[pattern] for pattern in self.operands.values()], definitions)
        operands = {name: Operand.of(exprs[pattern]) for name, pattern in self.operands.items()}
        ops = [{**describe(inner), "kind": "opaque"} for inner in inside]
        anchor = matched[self.anchor]
        match = Match(
            self.name, operands, Operand.of(call), ops, {**describe(anchor), "kind": "opaque"}, self.options
        )
        match = replace(match, calls=[(variables[inner], inner) for inner in inside])
        return (replace(match, depth=self.depth(match)), inside) if self.check(match) else None


def _between(root: Any, operands: Sequence[Any], definitions: Any) -> list[Any]:
    """The calls from operands to `root`, in order of execution."""
    order: list[Any] = []

    def visit(expr: Any) -> None:
        if any(expr.same_as(operand) for operand in operands):
            return
        for element in getattr(expr, "fields", ()):  # of a tuple, such as einsum's operands
            visit(element)
        bound = (
            definitions[expr]
            if type(expr).__name__ in ("Var", "DataflowVar") and expr in definitions
            else expr
        )
        if type(bound).__name__ != "Call" or any(bound.same_as(visited) for visited in order):
            return
        for argument in bound.args:
            visit(argument)
        order.append(bound)

    visit(root)
    return order


@dataclass(frozen=True)
class Group:
    """A pattern for fused functions, matched on their op info and tensors, not on their code.

    `read` receives the function (for its op info) and its tensors, the output last; returns a match or None.
    """

    name: str
    read: Callable[[PrimFunc, Sequence[Operand]], Match | None]
