"""Loops that fill lists, as TensorFlow's converter writes Keras's recurrent layers, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from symbolic import imported
from tflite_graphs import TfliteFile

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute

BUILTIN = schema.BuiltinOperator
ADD, LESS, SLICE, GATHER = (
    schema.AddOptionsT(),
    schema.LessOptionsT(),
    schema.SliceOptionsT(),
    schema.GatherOptionsT(),
)
CONCAT, RESHAPE = schema.ConcatenationOptionsT(), schema.ReshapeOptionsT()
MANY, FEW = 60, 9  # iterations: too many to be unrolled, and not


def ints(*values: int) -> Any:
    return np.array(values, "int32")


def running_sums(path: Path, steps: int, *, signed: bool) -> Path:
    """y[i] = x[0] + … + x[i], row by row; the list's row i is between slices to i and from i + 1.

    signed: the number of rows is dynamic, and the graph computes it from the shape of x.
    """
    file, options = TfliteFile(), schema.WhileOptionsT()
    options.condSubgraphIndex, options.bodySubgraphIndex = 1, 2
    cut = schema.StridedSliceOptionsT()
    cut.shrinkAxisMask = 1
    shape_of = schema.ShapeOptionsT()
    shape_of.outType = schema.TensorType.INT32
    state = [
        ("i", "int32", []), ("list", "float32", [steps, 2]), ("sum", "float32", [1, 2]),
        ("count", "int32", []), ("rows", "float32", [steps, 2]),
    ]  # fmt: skip
    results = [(f"{name}_after", dtype, shape) for name, dtype, shape in state]
    limit = [
        ("shape", "int32", [2]), ("from", "int32", ints(0)), ("to", "int32", ints(1)), ("n", "int32", []),
        ("ns", "int32", [1]), ("two", "int32", ints(2)), ("sizes", "int32", [2]), ("empty", "float32", 0.0),
        ("zeros", "float32", [steps, 2]),
    ]  # fmt: skip
    measured = [
        (BUILTIN.SHAPE, shape_of, [0], [8]),
        (BUILTIN.STRIDED_SLICE, cut, [8, 9, 10, 10], [11]),
        (BUILTIN.RESHAPE, RESHAPE, [11, 10], [12]),
        (BUILTIN.CONCATENATION, CONCAT, [12, 13], [14]),
        (BUILTIN.FILL, schema.FillOptionsT(), [14, 15], [16]),
    ]
    if not signed:
        limit[3], limit[8] = ("n", "int32", steps), ("zeros", "float32", np.zeros((steps, 2)))
    file.graph(
        [("x", "float32", [steps, 2]), ("zero", "int32", 0), ("none", "float32", np.zeros((1, 2))),
         *results, *limit],
        [*(measured if signed else []),
         (BUILTIN.WHILE, options, [1, 16, 2, 11, 0], [3, 4, 5, 6, 7])],
        [0], [4, 5],
    )  # fmt: skip
    file.graph([*state, ("c", "bool", [])], [(BUILTIN.LESS, LESS, [0, 3], [5])], range(5), [5])
    loop_body(file, state, steps)
    main, _, loop = file.model.subgraphs
    dynamic = [(loop, index) for index in (16, 21)]
    dynamic += [(main, index) for index in (0, 4, 7, 16)] if signed else []
    for graph, index in dynamic:
        graph.tensors[index].shapeSignature = [-1, 2]
    return file.write(path)


def loop_body(file: TfliteFile, state: Sequence[tuple[str, str, Any]], steps: int) -> None:
    """Add the graph that adds row i of x to the sum, and writes it as row i of the list."""
    body = [
        ("one", "int32", ints(1)), ("one_row", "int32", 1), ("next", "int32", []), ("row", "float32", [2]),
        ("pair", "int32", ints(1, 2)), ("as_row", "float32", [1, 2]), ("new_sum", "float32", [1, 2]),
        ("place", "int32", [1]), ("rest", "int32", ints(-1)), ("size", "int32", [2]),
        ("begin", "int32", ints(0, 0)), ("head", "float32", [1, 2]), ("after", "int32", [1]),
        ("left", "int32", ints(0)), ("from_there", "int32", [2]), ("to_end", "int32", ints(-1, -1)),
        ("tail", "float32", [1, 2]), ("written", "float32", [steps, 2]), ("next_place", "int32", []),
    ]  # fmt: skip
    file.graph(
        [*state, *body],
        [(BUILTIN.ADD, ADD, [0, 6], [7]), (BUILTIN.GATHER, GATHER, [4, 0], [8]),
         (BUILTIN.RESHAPE, RESHAPE, [8, 9], [10]), (BUILTIN.ADD, ADD, [2, 10], [11]),
         (BUILTIN.RESHAPE, RESHAPE, [0, 5], [12]), (BUILTIN.CONCATENATION, CONCAT, [12, 13], [14]),
         (BUILTIN.SLICE, SLICE, [1, 15, 14], [16]), (BUILTIN.ADD, ADD, [6, 0], [23]),
         (BUILTIN.RESHAPE, RESHAPE, [23, 5], [17]), (BUILTIN.CONCATENATION, CONCAT, [17, 18], [19]),
         (BUILTIN.SLICE, SLICE, [1, 19, 20], [21]), (BUILTIN.CONCATENATION, CONCAT, [16, 11, 21], [22])],
        range(5), [7, 22, 11, 3, 4],
    )  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
def test_rows_are_written_in_place(tmp_path: Path, signed: bool) -> None:
    """A loop of the plan writes one row an iteration; no step copies the list, whatever its size."""
    path = running_sums(tmp_path / "m.tflite", MANY, signed=signed)
    if signed:
        module, _ = imported(path, {"rows": (2, 12)}, {"x": ["rows", 2]})
    else:
        module, _ = import_model(path, ImportOptions("m"))
    steps = lower(simplify(module), Lowering("m", runnable_alone("x86_64"), "none"))
    begin, end = (index for index, step in enumerate(steps.steps) if step.loop is not None)
    inside = steps.steps[begin + 1 : end]
    assert not any(step.label.startswith(("concat", "strided_slice")) for step in inside)
    compile_unoptimised(steps.functions, tmp_path / "m.o")
    library = loaded(tmp_path / "m.o")
    for size in (2, 5, 12) if signed else (MANY,):
        x = np.random.default_rng(size).uniform(-1, 1, (size, 2)).astype("f4")
        want = open_reference(path, "builtin_ref", [x.shape]).run([x])
        ours = execute(steps, library, [x], {"rows": size} if signed else None)
        for one, other in zip(ours, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_short_loops_are_unrolled(tmp_path: Path) -> None:
    """Slices of an iteration have sizes of their own there."""
    path = running_sums(tmp_path / "m.tflite", FEW, signed=False)
    module, _ = import_model(path, ImportOptions("m"))
    steps = lower(simplify(module), Lowering("m", runnable_alone("x86_64"), "none"))
    assert all(step.loop is None for step in steps.steps)
    compile_unoptimised(steps.functions, tmp_path / "m.o")
    x = np.random.default_rng(3).uniform(-1, 1, (FEW, 2)).astype("f4")
    want = open_reference(path, "builtin_ref").run([x])
    for one, other in zip(execute(steps, loaded(tmp_path / "m.o"), [x]), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
