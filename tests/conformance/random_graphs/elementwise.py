"""Random elementwise nodes: functions, arithmetic with broadcasting, comparisons, casts, integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .drawing import BOOL, FLOAT, INT32, INT64
from .graph import Graph, Value

# By operator: attributes, and the bound of the result for a bound of the input.
_FUNCTIONS: dict[str, tuple[dict[str, float], Callable[[float], float]]] = {
    "Sigmoid": ({}, lambda m: 1.0), "Tanh": ({}, lambda m: 1.0), "Erf": ({}, lambda m: 1.0),
    "HardSwish": ({}, lambda m: m), "HardSigmoid": ({"alpha": 0.3, "beta": 0.4}, lambda m: 1.0),
    "Softplus": ({}, lambda m: m + 1), "Elu": ({"alpha": 0.7}, lambda m: max(m, 1)),
    "Celu": ({"alpha": 1.5}, lambda m: max(m, 2)), "Selu": ({}, lambda m: 1.1 * m + 2),
    "Mish": ({}, lambda m: m + 1),
    "Gelu": ({}, lambda m: m + 1), "Softsign": ({}, lambda m: 1.0), "Sin": ({}, lambda m: 1.0),
    "Cos": ({}, lambda m: 1.0), "Atan": ({}, lambda m: 2.0),
}  # fmt: skip
_EXACT = {"Relu", "Abs", "Neg"}
_ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min")
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def pick(graph: Graph, dtype: str = FLOAT, exact: bool = False, most: float = 1e9) -> Value:
    """A value of the graph of a type, or a new input."""
    candidates = [v for v in graph.values if v.dtype == dtype and v.most <= most and (v.exact or not exact)]
    if candidates and graph.choice.random() < 0.85:
        return graph.choice.choice(candidates[-6:])
    return graph.input(graph.shape(), dtype)


def function(graph: Graph) -> None:
    """A function of one tensor of floats."""
    x, name = pick(graph), graph.choice.choice(sorted(_FUNCTIONS))
    attributes, bound = _FUNCTIONS[name]
    if name == "Gelu" and graph.choice.random() < 0.5:
        graph.add(name, [x], [(FLOAT, x.shape, bound(x.most), False)], approximate="tanh")
        return
    graph.add(name, [x], [(FLOAT, x.shape, bound(x.most), False)], **attributes)


def exact_function(graph: Graph) -> None:
    """A function of one tensor of floats that does not round."""
    x, name = pick(graph), graph.choice.choice(["Relu", "Abs", "Neg", "Clip", "ThresholdedRelu", "LeakyRelu"])
    if name == "Clip":
        ends: list[Value | None] = [graph.constant(-0.5, FLOAT), graph.constant(1.25, FLOAT)]
        missing = graph.choice.choice([None, 0, 1])
        if missing is not None:
            ends[missing] = None
        graph.add(name, [x, *ends], [(FLOAT, x.shape, x.most + 1.25, x.exact)])
    elif name == "ThresholdedRelu" and x.exact:
        graph.add(name, [x], [(FLOAT, x.shape, x.most, True)], alpha=0.5)
    elif name == "LeakyRelu":
        graph.add(name, [x], [(FLOAT, x.shape, x.most, False)], alpha=0.1)
    elif name in _EXACT:
        graph.add(name, [x], [(FLOAT, x.shape, x.most, x.exact)])


def of_positive(graph: Graph) -> None:
    """Square roots, logarithms and quotients of values that a node before keeps away from 0."""
    x = pick(graph, most=50)
    positive = graph.add("Abs", [x], [(FLOAT, x.shape, x.most, x.exact)])[0]
    above = graph.add("Add", [positive, graph.constant(0.5, FLOAT)], [(FLOAT, x.shape, x.most + 1, False)])[0]
    name = graph.choice.choice(["Sqrt", "Log", "Reciprocal", "Div", "Pow", "Exp"])
    if name == "Div":
        y = graph.operand(graph.partner(x.shape), FLOAT)
        shape = np.broadcast_shapes(x.shape, y.shape)
        graph.add(name, [y, above], [(FLOAT, shape, 2 * y.most, False)])
    elif name == "Pow":
        power = graph.choice.choice([0.5, 2.0, 3.0, -1.0, 1.3])
        graph.add(
            name,
            [above, graph.constant(power, FLOAT)],
            [(FLOAT, x.shape, max((x.most + 1) ** power, 4), False)],
        )
    elif name == "Exp":
        graph.add(name, [x], [(FLOAT, x.shape, math.exp(min(x.most, 100)), False)])
    else:
        graph.add(name, [above], [(FLOAT, x.shape, x.most + 2, False)])


def arithmetic(graph: Graph) -> None:
    """Arithmetic of two tensors, broadcast."""
    dtype = graph.choice.choice([FLOAT, FLOAT, FLOAT, INT32, INT64])
    x = pick(graph, dtype, most=1e9 if dtype == FLOAT else 1e4)
    y = graph.operand(graph.partner(x.shape), dtype, 2.0 if dtype == FLOAT else 9.0)
    name = graph.choice.choice(_ARITHMETIC)
    most = x.most * y.most if name == "Mul" else x.most + y.most
    exact = dtype != FLOAT or (name in ("Max", "Min") and x.exact and y.exact)
    pair: list[Value | None] = [x, y] if graph.choice.random() < 0.5 else [y, x]
    graph.add(name, pair, [(dtype, np.broadcast_shapes(x.shape, y.shape), most, exact)])


def sums(graph: Graph) -> None:
    """Sum, Mean, Max or Min of three tensors."""
    x = pick(graph)
    more_operands = [graph.operand(graph.partner(x.shape), FLOAT) for _ in range(2)]
    name = graph.choice.choice(["Sum", "Mean", "Max", "Min"])
    graph.add(name, [x, *more_operands], [(FLOAT, x.shape, x.most + 4, False)])


def parametric(graph: Graph) -> None:
    """PRelu with slopes that broadcast."""
    x = pick(graph)
    graph.add(
        "PRelu", [x, graph.operand(graph.partner(x.shape), FLOAT)], [(FLOAT, x.shape, 2 * x.most, False)]
    )


def comparison(graph: Graph) -> None:
    """A comparison of exact values, and a Where that selects by it."""
    dtype = graph.choice.choice([FLOAT, INT32, INT64])
    x = pick(graph, dtype, exact=True)
    y = graph.constant(graph.array(graph.partner(x.shape), dtype))
    condition = graph.add(graph.choice.choice(_COMPARISONS), [x, y], [(BOOL, x.shape, 1.0, True)])[0]
    if graph.choice.random() < 0.3:
        condition = graph.add("Not", [condition], [(BOOL, x.shape, 1.0, True)])[0]
    if graph.choice.random() < 0.3:
        right = graph.operand(graph.partner(x.shape), BOOL)
        name = graph.choice.choice(["And", "Or", "Xor"])
        condition = graph.add(name, [condition, right], [(BOOL, x.shape, 1.0, True)])[0]
    a, b = (graph.operand(graph.partner(x.shape), FLOAT) for _ in range(2))
    graph.add("Where", [condition, a, b], [(FLOAT, x.shape, max(a.most, b.most), a.exact and b.exact)])


def cast(graph: Graph) -> None:
    """A cast between types; floats become integers only where they are exact."""
    to = graph.choice.choice([FLOAT, INT32, INT64, BOOL])
    kinds = [INT32, INT64, BOOL] if to == FLOAT else [FLOAT, INT32, INT64, BOOL]
    x = pick(graph, graph.choice.choice(kinds), exact=True)
    number = {FLOAT: 1, INT32: 6, INT64: 7, BOOL: 9}[to]
    graph.add("Cast", [x], [(to, x.shape, 1.0 if to == BOOL else x.most, True)], to=number)


def rounding(graph: Graph) -> None:
    """Rounding of an exact value."""
    x = pick(graph, exact=True)
    name = graph.choice.choice(["Floor", "Ceil", "Round", "Sign"])
    graph.add(name, [x], [(FLOAT, x.shape, x.most + 1, True)])


def integers(graph: Graph) -> None:
    """Division, remainder and bits of integers."""
    dtype = graph.choice.choice([INT32, INT64])
    x = pick(graph, dtype)
    divisor = graph.constant(graph.choice.choice([-3, 2, 4, 5, 7]), dtype)
    name = graph.choice.choice(["Div", "Mod", "Mod", "BitwiseAnd", "BitwiseXor", "Abs", "Sign"])
    if name in ("Abs", "Sign"):
        graph.add(name, [x], [(dtype, x.shape, x.most, True)])
        return
    options = {"fmod": 1} if name == "Mod" and graph.choice.random() < 0.5 else {}
    graph.add(name, [x, divisor], [(dtype, x.shape, x.most + 8, True)], **options)


ALL = (
    function, function, exact_function, of_positive, arithmetic, arithmetic, sums, parametric, comparison,
    cast, rounding, integers,
)  # fmt: skip
