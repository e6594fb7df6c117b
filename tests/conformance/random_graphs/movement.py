"""Random nodes that move elements: reshapes, transposes, slices, concatenations, gathers, scatters."""

from __future__ import annotations

import numpy as np

from .drawing import FLOAT, INT32, INT64, MOST_ELEMENTS
from .elementwise import pick
from .graph import Graph, Value


def _any(graph: Graph, rank: int = 0) -> Value:
    """A value of any type with at least `rank` axes."""
    dtype = graph.choice.choice([FLOAT, FLOAT, FLOAT, FLOAT, INT32, INT64])
    for _ in range(8):
        value = pick(graph, dtype)
        if value.rank >= rank:
            return value
    while True:
        shape = graph.shape()
        if len(shape) >= rank:
            return graph.input(shape, dtype)


def _like(x: Value, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float, bool]:
    return x.dtype, shape, x.most, x.exact


def reshape(graph: Graph) -> None:
    """Reshape: axes joined or split, with a -1 or a 0 where one can be."""
    x = _any(graph)
    shape = graph.regrouped(x.shape)
    written = list(shape)
    if shape and x.size and graph.choice.random() < 0.5:
        written[graph.choice.randrange(len(shape))] = -1
    for axis, size in enumerate(shape):
        if written[axis] > 0 and axis < x.rank and x.shape[axis] == size and graph.choice.random() < 0.5:
            written[axis] = 0
    graph.add("Reshape", [x, graph.constant(written, INT64)], [_like(x, shape)])


def transpose(graph: Graph) -> None:
    """Transpose by a random permutation."""
    x = _any(graph, 2)
    perm = list(range(x.rank))
    graph.choice.shuffle(perm)
    graph.add("Transpose", [x], [_like(x, tuple(x.shape[a] for a in perm))], perm=perm)


def axes_of_one(graph: Graph) -> None:
    """Squeeze, Unsqueeze or Flatten."""
    x = _any(graph)
    if x.rank and graph.choice.random() < 0.4:
        axis = graph.choice.randint(-x.rank, x.rank)
        at = axis + x.rank if axis < 0 else axis
        shape = (int(np.prod(x.shape[:at], dtype=int)), int(np.prod(x.shape[at:], dtype=int)))
        graph.add("Flatten", [x], [_like(x, shape)], axis=axis)
    elif 1 in x.shape:
        axis = x.shape.index(1)
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        written = axis - x.rank if graph.choice.random() < 0.5 else axis
        graph.add("Squeeze", [x, graph.constant([written], INT64)], [_like(x, shape)])
    elif x.rank < 5:
        axis = graph.choice.randint(0, x.rank)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        graph.add("Unsqueeze", [x, graph.constant([axis - len(shape)], INT64)], [_like(x, shape)])


def cut(graph: Graph) -> None:
    """Slice, also backwards and beyond the ends."""
    x = _any(graph, 1)
    axes = graph.choice.sample(range(x.rank), graph.choice.randint(1, min(x.rank, 2)))
    shape = list(x.shape)
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    for axis in axes:
        begin, end, step, count = graph.section(x.shape[axis])
        shape[axis] = count
        for found, value in zip((starts, ends, steps), (begin, end, step), strict=True):
            found.append(value)
    written = [axis - x.rank if graph.choice.random() < 0.5 else axis for axis in axes]
    constants = [graph.constant(values, INT64) for values in (starts, ends, written, steps)]
    if all(shape):
        graph.add("Slice", [x, *constants], [_like(x, tuple(shape))])


def concat(graph: Graph) -> None:
    """Concat of parts that other nodes made, of constants, and of one tensor twice."""
    x = _any(graph, 1)
    axis = graph.choice.randrange(x.rank)
    more_operands = [x] if graph.choice.random() < 0.2 else []
    for _ in range(graph.choice.randint(1, 2)):
        candidates = [
            v for v in graph.values
            if v.dtype == x.dtype and v.rank == x.rank
            and v.shape[:axis] == x.shape[:axis] and v.shape[axis + 1 :] == x.shape[axis + 1 :]
        ]  # fmt: skip
        size = graph.choice.choice([1, 2, x.shape[axis]])
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        as_output = graph.choice.random() < 0.5
        more_operands.append(
            graph.choice.choice(candidates) if as_output else graph.operand(shape, x.dtype, 9.0)
        )
    parts = [x, *more_operands]
    graph.choice.shuffle(parts)
    shape = (*x.shape[:axis], sum(v.shape[axis] for v in parts), *x.shape[axis + 1 :])
    if np.prod(shape) <= MOST_ELEMENTS:
        most = max(v.most for v in parts)
        graph.add(
            "Concat", [*parts], [(x.dtype, shape, most, all(v.exact for v in parts))],
            axis=axis - x.rank if graph.choice.random() < 0.3 else axis,
        )  # fmt: skip


def split(graph: Graph) -> None:
    """Split into two or three parts."""
    x = _any(graph, 1)
    axis = graph.choice.randrange(x.rank)
    size = x.shape[axis]
    if size < 2:
        return
    first = graph.choice.randint(1, size - 1)
    shapes = [(*x.shape[:axis], part, *x.shape[axis + 1 :]) for part in (first, size - first)]
    sizes = graph.constant([first, size - first], INT64)
    graph.add("Split", [x, sizes], [_like(x, shape) for shape in shapes], axis=axis)


def pad(graph: Graph) -> None:
    """Pad, in all modes, also by negative amounts with constants."""
    x = _any(graph, 1)
    mode = graph.choice.choice(["constant", "constant", "edge", "reflect", "wrap"])
    before, after = [], []
    for size in x.shape:
        most = {"reflect": size - 1, "wrap": size}.get(mode, 3)
        before.append(graph.choice.choice([0, 0, min(1, most), min(2, most)]))
        after.append(graph.choice.choice([0, 0, min(1, most), min(2, most)]))
        if mode == "constant" and size > 2 and graph.choice.random() < 0.15:
            before[-1] = -1
    shape = tuple(size + a + b for size, a, b in zip(x.shape, before, after, strict=True))
    if np.prod(shape) > MOST_ELEMENTS:
        return
    operands: list[Value | None] = [x, graph.constant([*before, *after], INT64)]
    if mode == "constant" and graph.choice.random() < 0.5:
        operands.append(graph.constant(1.5 if x.dtype == FLOAT else 3, x.dtype))
    graph.add("Pad", operands, [(x.dtype, shape, max(x.most, 3.0), x.exact)], mode=mode)


def enlarge(graph: Graph) -> None:
    """Expand or Tile."""
    x = _any(graph)
    if graph.choice.random() < 0.5 and x.rank:
        counts = [graph.choice.choice([1, 1, 2, 3]) for _ in x.shape]
        shape = tuple(size * count for size, count in zip(x.shape, counts, strict=True))
        name, operands = "Tile", counts
    else:
        grown = [graph.choice.choice([1, 2, 5]) if size == 1 else size for size in x.shape]
        lead = [graph.choice.choice([1, 2, 3])] if graph.choice.random() < 0.3 and x.rank < 5 else []
        shape = (*lead, *grown)
        # A 1 keeps the size of the tensor: written where the tensor has an odd number of axes.
        aligned = (0,) * len(lead) + x.shape
        operands = [1 if x.rank % 2 and size == aligned[at] else size for at, size in enumerate(shape)]
        name = "Expand"
    if np.prod(shape) <= MOST_ELEMENTS:
        graph.add(name, [x, graph.constant(operands, INT64)], [_like(x, shape)])


def gather(graph: Graph) -> None:
    """Gather, GatherElements or GatherND, by constants or inputs."""
    x = _any(graph, 1)
    axis = graph.choice.randrange(x.rank)
    size = x.shape[axis]
    name = graph.choice.choice(["Gather", "Gather", "GatherElements", "GatherND"])
    if name == "Gather":
        shape = graph.choice.choice([(), (1,), (3,), (2, 3)])
        indices = graph.data.integers(-size, size, shape)
        result = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
        options = {"axis": axis}
    elif name == "GatherElements":
        result = tuple(graph.choice.randint(1, s) if a != axis else 3 for a, s in enumerate(x.shape))
        indices, options = graph.data.integers(-size, size, result), {"axis": axis}
    else:
        depth = graph.choice.randint(1, x.rank)
        columns = [graph.data.integers(-s, s, (4,)) for s in x.shape[:depth]]
        indices, options, result = np.stack(columns, -1), {}, (4, *x.shape[depth:])
    if np.prod(result) <= MOST_ELEMENTS:
        dtype = INT64 if name == "GatherND" else graph.choice.choice([INT32, INT64])
        graph.add(name, [x, graph.constant(indices, dtype)], [_like(x, result)], **options)


def scatter(graph: Graph) -> None:
    """ScatterElements or ScatterND."""
    x = _any(graph, 1)
    if graph.choice.random() < 0.5:
        axis = graph.choice.randrange(x.rank)
        shape = tuple(1 if a == axis else graph.choice.randint(1, s) for a, s in enumerate(x.shape))
        indices = graph.data.integers(-x.shape[axis], x.shape[axis], shape)
        given, name = {"axis": axis}, "ScatterElements"
        updates = graph.operand(shape, x.dtype, 9.0)
    else:
        size = x.shape[0]
        count = graph.choice.randint(1, size)
        rows = graph.data.permutation(size)[:count]
        indices, given, name = rows[:, None], {}, "ScatterND"
        updates = graph.operand((count, *x.shape[1:]), x.dtype, 9.0)
    if graph.choice.random() < 0.4:
        given["reduction"] = graph.choice.choice(["add", "max", "min"])
    exact = (x.exact and updates.exact and given.get("reduction") != "add") or x.dtype != FLOAT
    graph.add(
        name,
        [x, graph.constant(indices, INT64), updates],
        [(x.dtype, x.shape, x.most + updates.most, exact)],
        **given,
    )


def space(graph: Graph) -> None:
    """DepthToSpace or SpaceToDepth."""
    n, c, h, w = graph.choice.choice([(1, 8, 3, 4), (2, 4, 2, 6), (1, 16, 4, 2)])
    x = graph.operand((n, c, h, w), FLOAT)
    if graph.choice.random() < 0.5:
        mode = graph.choice.choice(["DCR", "CRD"])
        graph.add("DepthToSpace", [x], [_like(x, (n, c // 4, 2 * h, 2 * w))], blocksize=2, mode=mode)
    elif h % 2 == 0:
        graph.add("SpaceToDepth", [x], [_like(x, (n, 4 * c, h // 2, w // 2))], blocksize=2)


def triangle(graph: Graph) -> None:
    """Trilu."""
    x = _any(graph, 2)
    k = graph.constant(graph.choice.randint(-2, 2), INT64)
    graph.add("Trilu", [x, k], [_like(x, x.shape)], upper=graph.choice.randint(0, 1))


def resize(graph: Graph) -> None:
    """Resize by scales or to sizes, nearest, linear and cubic, of one to three spatial axes."""
    x = pick(graph, most=100)
    if not 3 <= x.rank <= 4:
        x = graph.operand(graph.choice.choice([(1, 3, 5, 4), (2, 2, 7), (1, 2, 8, 8)]), FLOAT)
    mode = graph.choice.choice(["nearest", "linear", "cubic"] if x.rank == 4 else ["nearest", "linear"])
    coordinates = graph.choice.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    spatial = x.shape[2:]
    if graph.choice.random() < 0.5:
        scale = graph.choice.choice([0.5, 2.0, 1.5, 3.0])
        sizes = tuple(int(np.floor(s * scale)) for s in spatial)
        if coordinates == "align_corners" and any(s * scale % 1 for s in spatial):
            return  # ONNX divides by the size before rounding down, ONNX Runtime by the size after it
        operands = [x, None, graph.constant([1, 1, *[scale] * len(spatial)], FLOAT)]
    else:
        sizes = tuple(graph.choice.choice([2, s, 2 * s, s + 1]) for s in spatial)
        operands = [x, None, None, graph.constant([*x.shape[:2], *sizes], INT64)]
    shape = (*x.shape[:2], *sizes)
    if not all(sizes) or np.prod(shape) > MOST_ELEMENTS:
        return
    options = (
        {"nearest_mode": graph.choice.choice(["floor", "round_prefer_floor"])} if mode == "nearest" else {}
    )
    graph.add(
        "Resize", operands, [(FLOAT, shape, 2 * x.most, False)],
        mode=mode, coordinate_transformation_mode=coordinates, **options,
    )  # fmt: skip


ALL = (
    reshape, reshape, transpose, transpose, axes_of_one, cut, cut, concat, concat, split, pad, enlarge,
    gather, scatter, space, triangle, resize,
)  # fmt: skip
