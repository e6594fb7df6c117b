"""Random elementwise operators: functions, broadcast arithmetic, comparisons, casts, requantisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..random_graphs.drawing import BOOL, FLOAT, INT32, INT64, MOST_ELEMENTS
from .graph import INT8, INT16, NONE, QUANTISED, RELU, RELU6, RELU_N1_TO_1, UINT8, Activation, TfliteGraph

_Q = (INT8, UINT8, INT16)
# By operator: the types of LiteRT's reference kernels, and the bound of the result for that of the input.
_FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[[float], float]]] = {
    "ABS": ((FLOAT, INT8, INT16), lambda m: m), "NEG": ((FLOAT,), lambda m: m),
    "SIN": ((FLOAT,), lambda m: 1.0), "COS": ((FLOAT,), lambda m: 1.0), "SQUARE": ((FLOAT,), lambda m: m * m),
    "RELU": ((FLOAT, *_Q), lambda m: m), "RELU6": ((FLOAT, *_Q), lambda m: min(m, 6.0)),
    "RELU_N1_TO_1": ((FLOAT, UINT8), lambda m: 1.0), "RELU_0_TO_1": ((FLOAT, UINT8), lambda m: 1.0),
    "ELU": ((FLOAT, INT8), lambda m: m), "HARD_SWISH": ((FLOAT, INT8, UINT8), lambda m: m),
    "GELU": ((FLOAT, INT8, UINT8), lambda m: m), "LEAKY_RELU": ((FLOAT, *_Q), lambda m: m),
}  # fmt: skip
# Those whose quantised results have a scale and zero point of their own.
_FIXED: dict[str, dict[str, tuple[float, int]]] = {
    "LOGISTIC": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0), INT16: (1 / 32768, 0)},
    "TANH": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128), INT16: (1 / 32768, 0)},
}
_TABLES = {"LEAKY_RELU": "LeakyReluOptions", "GELU": "GeluOptions"}
_EXACT = ("ABS", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
_ARITHMETIC = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "MAXIMUM": "", "MINIMUM": ""}
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
MOST_INTEGER = 1e4  # of operands of arithmetic
ACTIVATIONS = (NONE, NONE, RELU, RELU6, RELU_N1_TO_1)
# Levels of int16 that the tables of LiteRT's kernels differ from the function (tests of single operators).
_TABULATED = 48.0


def function(graph: TfliteGraph) -> None:
    """A function of one tensor."""
    dtype = graph.dtype
    name = graph.choice.choice(sorted(n for n, (types, _) in _FUNCTIONS.items() if dtype in types))
    x = graph.pick(dtype)
    most = _FUNCTIONS[name][1](x.most)
    options = {}
    if name == "LEAKY_RELU":
        options["alpha"] = graph.choice.choice([0.1, 0.37, 0.01])
    if name == "GELU":
        options["approximate"] = graph.choice.random() < 0.5
    exact = dtype != FLOAT or (x.exact and name in _EXACT)
    slope = 2 * x.bound if name == "SQUARE" else 1.3
    result = graph.result(dtype, x.shape, most, slope * x.error, exact)
    if dtype != FLOAT and name in ("ELU", "HARD_SWISH", "GELU"):
        result = graph.rounded(replace(result, error=slope * x.error), 2)
    graph.add(name, [x], [result], _TABLES.get(name, ""), **options)


def squashed(graph: TfliteGraph) -> None:
    """LOGISTIC or TANH, whose quantised results have scales of their own."""
    dtype = graph.dtype
    x, name = graph.pick(dtype), graph.choice.choice(["LOGISTIC", "TANH"])
    scale, zero = _FIXED[name].get(dtype, (None, 0))
    result = Activation("", dtype, x.shape, 1.0, dtype != FLOAT, -1, scale, zero, x.error)
    graph.add(name, [x], [graph.rounded(result, _TABULATED if dtype == INT16 else 2)])


def exact_function(graph: TfliteGraph) -> None:
    """Rounding of floats and signs, of values that are known exactly."""
    x = graph.pick(FLOAT, clean=True)
    name = graph.choice.choice(["FLOOR", "CEIL", "ROUND", "SIGN"])
    graph.add(name, [x], [Activation("", FLOAT, x.shape, x.most + 1)])


def of_positive(graph: TfliteGraph) -> None:
    """Roots, logarithms and quotients of floats that an operator before keeps away from 0."""
    x = graph.pick(FLOAT, lambda v: v.most <= 50)
    draft = Activation("", FLOAT, x.shape, x.most, x.exact, error=x.error)
    positive = graph.add("ABS", [x], [draft], "AbsOptions")[0]
    draft = replace(draft, most=x.most + 0.5, exact=False)
    above = graph.add("ADD", [positive, graph.constant(0.5, FLOAT)], [draft], "AddOptions")[0]
    name = graph.choice.choice(["SQRT", "LOG", "RSQRT", "DIV", "POW", "EXP"])
    table = {"DIV": "DivOptions", "POW": "PowOptions", "EXP": "ExpOptions"}.get(name, "")
    if name == "DIV":
        y = graph.operand(graph.partner(x.shape), FLOAT)
        result = replace(draft, most=2 * y.most + 1, error=2 * y.error + 4 * y.most * x.error)
        fused = graph.choice.choice(ACTIVATIONS)
        graph.add(name, [y, above], [result], table, fusedActivationFunction=fused)
    elif name == "POW":
        power = graph.choice.choice([0.5, 2.0, 3.0, -1.0, 1.3])
        most = max(draft.most**power, 4)
        result = replace(draft, most=most, error=x.error * 16 * max(draft.most, 1) ** 2)
        graph.add(name, [above, graph.constant(power, FLOAT)], [result], table)
    elif name == "EXP":
        if x.most < 6:
            most = math.exp(x.most)
            graph.add(name, [x], [replace(draft, most=most, error=x.error * most)], table)
    else:
        graph.add(name, [above], [replace(draft, error=2 * x.error)], table)


def arithmetic(graph: TfliteGraph) -> None:
    """Arithmetic of two tensors, broadcast, with a fused activation."""
    dtype = graph.choice.choice([graph.dtype, graph.dtype, graph.dtype, INT32, INT64])
    x = graph.pick(dtype, lambda v: v.most <= (MOST_INTEGER if dtype in (INT32, INT64) else 1e9))
    name = graph.choice.choice(sorted(_ARITHMETIC))
    same_scale = name in ("MAXIMUM", "MINIMUM")
    y = graph.operand(graph.partner(x.shape), dtype, x if same_scale and dtype in QUANTISED else None)
    shape = np.broadcast_shapes(x.shape, y.shape)
    pair = [x, y] if graph.choice.random() < 0.5 else [y, x]
    if same_scale:
        exact = x.exact and y.exact
        result = replace(x, shape=shape, most=max(x.most, y.most), exact=exact, error=max(x.error, y.error))
        graph.add(name, pair, [result], "MaximumMinimumOptions")
        return
    most = x.most * y.most if name == "MUL" else x.most + y.most
    error = x.error * y.bound + y.error * x.bound if name == "MUL" else x.error + y.error
    fused = graph.choice.choice(ACTIVATIONS) if dtype not in (INT64,) else NONE
    options = {"potScaleInt16": False} if name in ("ADD", "SUB") and dtype == INT16 else {}
    result = graph.result(dtype, shape, most, error, dtype != FLOAT)
    graph.add(name, pair, [result], _ARITHMETIC[name], fusedActivationFunction=fused, **options)


def squared_difference(graph: TfliteGraph) -> None:
    """SQUARED_DIFFERENCE of two tensors, or ADD_N of three."""
    dtype = graph.choice.choice([d for d in (graph.dtype, INT32) if d not in (UINT8, INT16)])
    x = graph.pick(dtype, lambda v: v.most <= 100)
    if dtype in (FLOAT, INT32) and graph.choice.random() < 0.4:
        others = [graph.operand(x.shape, dtype) for _ in range(2)]
        most, error = x.most + sum(v.most for v in others), x.error + sum(v.error for v in others)
        graph.add(
            "ADD_N", [x, *others], [graph.result(dtype, x.shape, most, error, dtype != FLOAT)], "AddNOptions"
        )
        return
    y = graph.operand(graph.partner(x.shape), dtype)
    most, error = (x.most + y.most) ** 2, 2 * (x.bound + y.bound) * (x.error + y.error)
    result = graph.result(dtype, x.shape, most, error, dtype != FLOAT)
    graph.add("SQUARED_DIFFERENCE", [x, y], [result], "SquaredDifferenceOptions")


def parametric(graph: TfliteGraph) -> None:
    """PRELU with slopes that broadcast."""
    dtype = graph.dtype
    if dtype == INT16:
        return
    x = graph.pick(dtype, lambda v: 1 <= v.rank <= 4)
    slopes = graph.choice.choice([x.shape[-1:], x.shape, (1,) * (x.rank - 1), graph.partner(x.shape)])
    if len(slopes) == x.rank - 1 and x.rank > 1:
        slopes = (*slopes[:-1], x.shape[-1])
    scale, zero = graph.grid(dtype, 1.0)
    slope = graph.constant(graph.contents(dtype, slopes, 1.0), dtype, scale, zero)
    result = graph.result(
        dtype, x.shape, x.most * max(slope.most, 1), x.error * max(slope.bound, 1), dtype != FLOAT
    )
    graph.add("PRELU", [x, slope], [result])


def comparison(graph: TfliteGraph) -> None:
    """A comparison of values that are known exactly, and what it chooses."""
    dtype = graph.choice.choice([*graph.dtypes, INT32, INT64])
    x = graph.pick(dtype, lambda v: v.rank <= 4, clean=True)
    y = graph.constant(
        graph.contents(dtype, graph.partner(x.shape), 2.0 if dtype == FLOAT else 9.0),
        dtype,
        *graph.grid(dtype, 2.0),
    )
    if dtype in QUANTISED and graph.choice.random() < 0.5:
        y = graph.constant(graph.contents(dtype, y.shape, 2.0), dtype, x.scale, x.zero)
    name = graph.choice.choice(_COMPARISONS)
    table = "".join(part.capitalize() for part in name.split("_")) + "Options"
    flags = Activation("", BOOL, x.shape, 1.0)
    condition = graph.add(name, [x, y], [flags], table)[0]
    if graph.choice.random() < 0.3:
        condition = graph.add("LOGICAL_NOT", [condition], [flags], "LogicalNotOptions")[0]
    if graph.choice.random() < 0.3:
        other = graph.operand(graph.partner(x.shape), BOOL)
        name = graph.choice.choice(["LOGICAL_AND", "LOGICAL_OR"])
        table = "LogicalAndOptions" if name == "LOGICAL_AND" else "LogicalOrOptions"
        condition = graph.add(name, [condition, other], [flags], table)[0]
    kind = graph.dtype
    is_v2 = graph.choice.random() < 0.6
    a = graph.operand(graph.partner(x.shape) if is_v2 else x.shape, kind)
    b = graph.operand(graph.partner(x.shape) if is_v2 else x.shape, kind, a if kind in QUANTISED else None)
    result = replace(
        a, shape=x.shape, most=max(a.most, b.most), exact=a.exact and b.exact, error=max(a.error, b.error)
    )
    graph.add(
        "SELECT_V2" if is_v2 else "SELECT",
        [condition, a, b],
        [result],
        "SelectV2Options" if is_v2 else "SelectOptions",
    )


def cast(graph: TfliteGraph) -> None:
    """A cast between types; floats become integers only where they are known exactly."""
    to = graph.choice.choice([FLOAT, INT32, INT64, BOOL])
    x = graph.pick(graph.choice.choice([d for d in (FLOAT, INT32, INT64, BOOL) if d != to]), clean=True)
    graph.add("CAST", [x], [Activation("", to, x.shape, 1.0 if to == BOOL else x.most)], "CastOptions")


def integers(graph: TfliteGraph) -> None:
    """Division, remainder and magnitude of integers."""
    dtype = graph.choice.choice([INT32, INT64])
    x = graph.pick(dtype)
    name = graph.choice.choice(
        ["FLOOR_DIV", "FLOOR_MOD", "ABS", "NEG"] if dtype == INT32 else ["FLOOR_MOD", "NEG"]
    )
    result = Activation("", dtype, x.shape, x.most + 8)
    if name in ("ABS", "NEG"):
        graph.add(name, [x], [result])
        return
    divisor = graph.constant(graph.choice.choice([-3, 2, 4, 5, 7]), dtype)
    graph.add(name, [x, divisor], [result], "FloorDivOptions" if name == "FLOOR_DIV" else "FloorModOptions")


def requantised(graph: TfliteGraph) -> None:
    """QUANTIZE of floats, of integers to another scale or type, and DEQUANTIZE."""
    x = graph.pick(graph.dtype, lambda v: v.most <= 100)
    if x.dtype != FLOAT and graph.choice.random() < 0.3 and len(graph.dtypes) > 1:
        draft = Activation("", FLOAT, x.shape, x.most, x.exact and not x.error, error=x.error)
        graph.add("DEQUANTIZE", [x], [draft], "DequantizeOptions")
        return
    # LiteRT makes no uint8 of int16.
    to = graph.choice.choice(
        [d for d in graph.dtypes if d != FLOAT and (x.dtype, d) != (INT16, UINT8)] or [None]
    )
    if to is not None:
        graph.add("QUANTIZE", [x], [graph.result(to, x.shape, x.most, x.error, True)], "QuantizeOptions")


def fits_memory(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a shape is not too large."""
    return int(np.prod(shape, dtype=int)) <= MOST_ELEMENTS


ALL = (
    function, function, squashed, of_positive, exact_function, arithmetic, arithmetic, arithmetic,
    squared_difference, parametric, comparison, cast, integers, requantised, requantised,
)  # fmt: skip
