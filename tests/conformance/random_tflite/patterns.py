"""Random groups of operators as converters write them: shapes, constants, look-ups, updates, norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..random_graphs.drawing import BOOL, FLOAT, INT32, INT64
from .elementwise import ACTIVATIONS, fits_memory
from .graph import INT16, QUANTISED, UINT8, Activation, TfliteGraph


def computed_shape(graph: TfliteGraph) -> None:
    """RESHAPE to a shape of SHAPE, STRIDED_SLICE and PACK: all axes but the first are joined."""
    x = graph.pick(graph.dtype, lambda v: v.rank >= 2)
    sizes = Activation("", INT32, (x.rank,), 9.0)
    shape = graph.add("SHAPE", [x], [sizes], "ShapeOptions", keep=False, outType=2)[0]
    ends = [graph.constant([number], INT32) for number in (0, 1, 1)]
    first = graph.add(
        "STRIDED_SLICE", [shape, *ends], [replace(sizes, shape=())], "StridedSliceOptions", keep=False,
        shrinkAxisMask=1,
    )[0]  # fmt: skip
    rest = math.prod(x.shape[1:])
    other = graph.constant(graph.choice.choice([-1, rest]), INT32)
    both = graph.add(
        "PACK", [first, other], [replace(sizes, shape=(2,))], "PackOptions", False, valuesCount=2
    )[0]
    graph.add("RESHAPE", [x, both], [replace(x, shape=(x.shape[0], rest))])


def constants(graph: TfliteGraph) -> None:
    """A constant that operators without other inputs move, and arithmetic with it."""
    x = graph.pick(graph.dtype, lambda v: v.rank >= 1)
    if x.dtype == UINT8:
        return
    moved = graph.operand(x.shape, x.dtype, x if x.dtype in QUANTISED else None)
    held = graph.constant(graph.contents(x.dtype, x.shape[::-1], 2.0), x.dtype, moved.scale, moved.zero)
    perm = graph.constant(list(range(x.rank))[::-1], INT32)
    turned = graph.add(
        "TRANSPOSE", [held, perm], [replace(held, shape=x.shape)], "TransposeOptions", keep=False
    )[0]
    made = graph.result(x.dtype, x.shape, x.most + turned.most, x.error, x.dtype != FLOAT)
    options = {"potScaleInt16": False} if x.dtype == INT16 else {}
    fused = graph.choice.choice(ACTIVATIONS)
    graph.add("ADD", [x, turned], [made], "AddOptions", fusedActivationFunction=fused, **options)


def product_of_values(graph: TfliteGraph) -> None:
    """FULLY_CONNECTED whose weights are a value of the graph."""
    if graph.dtypes[0] != FLOAT or len(graph.dtypes) > 1 or graph.weights:
        return
    x = graph.pick(FLOAT, lambda v: v.rank >= 1 and v.most <= 100)
    weights = graph.operand((graph.choice.choice([1, 3, 8]), x.shape[-1]), FLOAT)
    rows, units = math.prod(x.shape[:-1]), weights.shape[0]
    if fits_memory((rows, units)):
        most = math.sqrt(x.shape[-1]) * x.most * weights.most
        made = Activation("", FLOAT, (rows, units), most, False)
        graph.add("FULLY_CONNECTED", [x, weights], [made], "FullyConnectedOptions")


def looked_up(graph: TfliteGraph) -> None:
    """EMBEDDING_LOOKUP or ONE_HOT by indices that are an input."""
    count, size = graph.choice.choice([(4, 3), (9, 8), (5, 17)])
    indices = graph.pick(INT32, lambda v: v.rank <= 2 and v.most <= 9, clean=True)
    if graph.choice.random() < 0.5 and indices.rank == 1:
        inside = Activation("", INT32, indices.shape, count - 1.0)
        least, greatest = graph.constant(0, INT32), graph.constant(count - 1, INT32)
        above = graph.add("MAXIMUM", [indices, least], [inside], "MaximumMinimumOptions")[0]
        places = graph.add("MINIMUM", [above, greatest], [inside], "MaximumMinimumOptions")[0]
        table = graph.constant(graph.array((count, size), FLOAT), FLOAT)
        made = Activation("", FLOAT, (*indices.shape, size), 2.0)
        graph.add("EMBEDDING_LOOKUP", [places, table], [made])
        return
    dtype = graph.choice.choice([FLOAT, INT32])
    ends = [graph.constant(value, dtype) for value in (3, -1)]
    shape = (*indices.shape, size)
    axis = graph.choice.choice([-1, len(indices.shape), 0])
    shape = (size, *indices.shape) if axis == 0 else shape
    given = [indices, graph.constant(size, INT32), *ends]
    graph.add("ONE_HOT", given, [Activation("", dtype, shape, 3.0)], "OneHotOptions", axis=axis)


def updated(graph: TfliteGraph) -> None:
    """DYNAMIC_UPDATE_SLICE of a part of a tensor."""
    x = graph.pick(graph.choice.choice([graph.dtype, INT32]), lambda v: v.rank >= 1)
    shape = tuple(graph.choice.randint(1, size) for size in x.shape)
    part = graph.operand(shape, x.dtype, x if x.dtype in QUANTISED else None)
    begins = graph.constant([graph.choice.randint(0, size) for size in x.shape], INT32)
    made = replace(
        x, most=max(x.most, part.most), exact=x.exact and part.exact, error=max(x.error, part.error)
    )
    graph.add("DYNAMIC_UPDATE_SLICE", [x, part, begins], [made])


def flags(graph: TfliteGraph) -> None:
    """REDUCE_ANY or REDUCE_ALL, as a number where it is asked for."""
    x = graph.pick(BOOL, lambda v: v.rank >= 1)
    axis = graph.choice.randrange(x.rank)
    keep = graph.choice.random() < 0.5
    shape = (*x.shape[:axis], *[1] * keep, *x.shape[axis + 1 :])
    name = graph.choice.choice(["REDUCE_ANY", "REDUCE_ALL"])
    given = [x, graph.constant([axis], INT32)]
    found = graph.add(name, given, [replace(x, shape=shape)], "ReducerOptions", keepDims=keep)[0]
    if graph.choice.random() < 0.5:
        to = graph.choice.choice([FLOAT, INT32, INT64])
        graph.add("CAST", [found], [Activation("", to, shape, 1.0)], "CastOptions")


def norm(graph: TfliteGraph) -> None:
    """LayerNorm of floats in the operators of converters: means, differences, RSQRT, products."""
    if FLOAT not in graph.dtypes:
        return
    x = graph.pick(FLOAT, lambda v: v.rank >= 1 and v.shape[-1] > 1 and v.most <= 50)
    axes = graph.constant([x.rank - 1], INT32)
    one = Activation("", FLOAT, (*x.shape[:-1], 1), x.most, False, error=x.error)
    mean = graph.add("MEAN", [x, axes], [one], "ReducerOptions", keep=False, keepDims=True)[0]
    squares = replace(one, shape=x.shape, most=4 * x.most**2, error=4 * x.most * x.error)
    apart = graph.add("SQUARED_DIFFERENCE", [x, mean], [squares], "SquaredDifferenceOptions", keep=False)[0]
    spread = replace(squares, shape=one.shape)
    variance = graph.add("MEAN", [apart, axes], [spread], "ReducerOptions", keep=False, keepDims=True)[0]
    above = graph.add("ADD", [variance, graph.constant(0.05, FLOAT)], [spread], "AddOptions", keep=False)[0]
    steep = replace(one, most=5.0, error=50 * spread.error)
    scale = graph.add("RSQRT", [above], [steep], keep=False)[0]
    moved = replace(one, shape=x.shape, error=2 * x.error)
    centred = graph.add("SUB", [x, mean], [moved], "SubOptions", keep=False)[0]
    error = 5 * moved.error + 2 * x.most * steep.error
    made = replace(moved, most=math.sqrt(x.shape[-1]), error=error)
    graph.add("MUL", [centred, scale], [made], "MulOptions")


ALL: tuple[Callable[[TfliteGraph], None], ...] = (
    computed_shape, constants, constants, product_of_values, looked_up, updated, flags, norm,
)  # fmt: skip
