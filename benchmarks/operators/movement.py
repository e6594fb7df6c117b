"""Transposes and other moves, look-ups, and images of other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, sizes_text


def movement() -> Iterator[Case]:
    """Yield the cases."""
    for shape, perm in [
        ((300, 400), (1, 0)), ((1, 3, 160, 200), (0, 2, 3, 1)), ((1, 160, 200, 3), (0, 3, 1, 2)),
        ((1, 64, 40, 40), (0, 2, 3, 1)), ((8, 50, 12, 32), (0, 2, 1, 3)), ((8, 12, 50, 32), (0, 1, 3, 2)),
        ((20, 30, 40, 5), (3, 2, 1, 0)), ((40, 50, 60), (1, 0, 2)), ((33, 65, 17), (2, 0, 1)),
        ((2, 3, 4, 5, 6, 70), (0, 3, 1, 4, 2, 5)), ((1000, 7), (1, 0)),
        ((1, 8, 14, 8, 14, 3), (0, 1, 3, 2, 4, 5)), ((10, 20, 30), (2, 1, 0)), ((4, 16, 32, 8), (0, 2, 3, 1)),
        ((1, 12, 64, 65), (0, 2, 3, 1)), ((1, 50, 3, 8, 24), (2, 0, 3, 1, 4)),
    ]:  # fmt: skip
        case = Case(f"transpose {sizes_text(*shape)} by {sizes_text(*perm)}")
        case.node("Transpose", case.input(shape), perm=perm)
        yield case
    joined: list[tuple[list[tuple[int, ...]], int]] = [
        ([(1, 64, 40, 40), (1, 32, 40, 40)], 1), ([(200, 30), (200, 33), (200, 1)], 1),
        ([(50, 40, 7), (50, 40, 9)], 2), ([(30, 10, 200), (30, 5, 200)], 1), ([(100, 100), (50, 100)], 0),
        ([(300, 1)] * 4, 1), ([(1, 3, 60, 60), (1, 5, 60, 60)], 1), ([(20, 30, 5), (20, 1, 5)], 1),
    ]  # fmt: skip
    for shapes, axis in joined:
        case = Case(f"concat {' '.join(sizes_text(*shape) for shape in shapes)} axis {axis}")
        case.node("Concat", *[case.input(shape) for shape in shapes], axis=axis)
        yield case
    for shape, axis, counts in [((200, 96), 1, [32] * 3), ((1, 64, 40, 40), 1, [32] * 2),
                                ((50, 40, 17), 2, [5, 12]), ((1000, 4), 1, [1] * 4)]:  # fmt: skip
        case = Case(f"split {sizes_text(*shape)} axis {axis}")
        case.node("Split", case.input(shape), case.constant(counts, "int64"), axis=axis, count=len(counts))
        yield case
    for shape, starts, ends, steps in [
        ((100, 200, 10), [1, 2, 0], [99, 180, 10], [1, 1, 1]), ((300, 400), [0, 0], [300, 400], [2, 3]),
        ((200, 300), [-1, -1], [-999, -999], [-1, -1]), ((64, 56, 56), [0, 0, 0], [64, 56, 56], [1, 2, 2]),
        ((60, 40, 30), [0, 0, 1], [60, 40, 28], [1, 1, 1]), ((1000, 5), [0, 0], [1000, 3], [1, 1]),
    ]:  # fmt: skip
        case = Case(f"slice {sizes_text(*shape)} steps {sizes_text(*steps)}")
        operands = [case.constant(one, "int64") for one in (starts, ends, list(range(len(shape))), steps)]
        case.node("Slice", case.input(shape), *operands)
        yield case
    for shape, pads, mode in [((1, 32, 40, 40), [0, 0, 1, 1, 0, 0, 1, 1], "constant"),
                              ((1, 16, 50, 50), [0, 0, 3, 3, 0, 0, 3, 3], "reflect"),
                              ((100, 100), [0, 5, 0, 6], "edge"),
                              ((1, 20, 30, 30), [0, 4, 0, 0, 0, 4, 0, 0], "constant"),
                              ((1000, 50), [0, 3, 0, 0], "constant"),
                              ((1, 8, 40, 40), [0, 0, 2, 2, 0, 0, 2, 2], "edge")]:  # fmt: skip
        case = Case(f"pad {mode} {sizes_text(*shape)}")
        case.node("Pad", case.input(shape), case.constant(pads, "int64"), mode=mode)
        yield case
    for shape, counts in [((30, 1, 50), [1, 20, 3]), ((100, 7), [3, 4]), ((200, 1), [1, 64]),
                          ((1, 8, 20, 20), [1, 3, 2, 2])]:  # fmt: skip
        case = Case(f"tile {sizes_text(*shape)} by {sizes_text(*counts)}")
        case.node("Tile", case.input(shape), case.constant(counts, "int64"))
        yield case
    case = Case("expand 1x40x1x50 to 8x40x20x50")
    case.node("Expand", case.input([1, 40, 1, 50]), case.constant([8, 40, 20, 50], "int64"))
    yield case
    for mode in ["DCR", "CRD"]:
        case = Case(f"depth_to_space {mode} 1x64x30x30")
        case.node("DepthToSpace", case.input([1, 64, 30, 30]), blocksize=2, mode=mode)
        yield case
    case = Case("space_to_depth 1x3x160x160")
    case.node("SpaceToDepth", case.input([1, 3, 160, 160]), blocksize=2)
    yield case


def gathers() -> Iterator[Case]:
    """Yield the cases."""
    for shape, count, axis in [((30000, 64), 100, 0), ((200, 300), 150, 1), ((50, 64, 40), 30, 1),
                               ((5000, 1), 3000, 0), ((1, 300, 768), 1, 1), ((64, 1000), 10, 1)]:  # fmt: skip
        case = Case(f"gather {sizes_text(*shape)} {count} along {axis}")
        table = case.input(shape)
        case.inputs["i"] = case.indices(shape[axis], count)
        case.node("Gather", table, "i", axis=axis)
        yield case
    case = Case("gather_elements 100x200")
    table = case.input([100, 200])
    case.inputs["i"] = case.indices(200, 100, 200)
    case.node("GatherElements", table, "i", axis=1)
    yield case
    case = Case("gather_nd 60x70x32")
    table = case.input([60, 70, 32])
    case.inputs["i"] = case.indices(60, 500, 2)
    case.node("GatherND", table, "i")
    yield case
    for reduction in ["none", "add"]:
        case = Case(f"scatter_elements {reduction} 200x64")
        table, updates = case.input([200, 64]), case.input([300, 64])
        case.inputs["i"] = np.repeat(case.indices(200, 300, 1), 64, 1)
        if reduction == "none":
            case.inputs["i"] = np.repeat(np.arange(200)[:, None], 64, 1)
            case.inputs[updates] = case.inputs[updates][:200]
        case.node("ScatterElements", table, "i", updates, axis=0, reduction=reduction)
        yield case
    case = Case("scatter_nd add 400x32")
    table, updates = case.input([400, 32]), case.input([900, 32])
    case.inputs["i"] = case.indices(400, 900, 1)
    case.node("ScatterND", table, "i", updates, reduction="add")
    yield case
    case = Case("one_hot 2000 of 50")
    case.inputs["i"] = case.indices(50, 2000)
    case.node("OneHot", "i", case.constant([50], "int64"), case.constant([0, 1], "float32"))
    yield case


def images() -> Iterator[Case]:
    """Yield the cases."""
    half, pixel, corners = "half_pixel", "asymmetric", "align_corners"
    for mode, coordinates, shape, size in [
        ("linear", half, (1, 64, 20, 20), (40, 40)), ("linear", corners, (1, 21, 33, 33), (129, 129)),
        ("nearest", pixel, (1, 64, 20, 20), (40, 40)), ("cubic", half, (1, 16, 24, 24), (50, 70)),
        ("linear", half, (1, 3, 120, 160), (224, 224)), ("nearest", half, (1, 7, 50, 50), (81, 33)),
        ("linear", half, (1, 32, 200), (500,)), ("linear", half, (1, 8, 8, 16, 16), (16, 32, 32)),
        ("linear", pixel, (1, 24, 19, 19), (38, 38)), ("nearest", pixel, (1, 1, 64, 64), (256, 256)),
        ("cubic", half, (1, 3, 64, 64), (128, 128)), ("linear", half, (1, 3, 480, 640), (224, 224)),
        ("nearest", pixel, (1, 5, 30, 30), (90, 90)), ("nearest", pixel, (1, 32, 400), (800,)),
    ]:  # fmt: skip
        case = Case(f"resize {mode} {coordinates} {sizes_text(*shape)} to {sizes_text(*size)}")
        sizes = case.constant([*shape[:2], *size], "int64")
        how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
        how |= {"nearest_mode": "floor"} if mode == "nearest" else {}
        case.node("Resize", case.input(shape), "", "", sizes, **how)
        yield case
    for mode in ["linear", "nearest"]:
        case = Case(f"grid_sample {mode} 1x32x40x40")
        image = case.input([1, 32, 40, 40])
        case.inputs["grid"] = np.clip(case.indices(1000, 1, 40, 40, 2) / 500 - 1, -1, 1).astype("float32")
        case.node("GridSample", image, "grid", mode=mode)
        yield case
