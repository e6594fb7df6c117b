"""STABLEHLO_SCATTER: windows of the updates at places of the run, against LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from tflite_graphs import TfliteFile

from .lowered import Compiled, runnable_alone

BUILTIN = schema.BuiltinOperator
FUNCTIONS = ["UPDATE", "STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM"]
SHAPE = (3, 4, 5)
ALL = 2  # the case that has all functions


def options(function: int, window: Any, inserted: Any, indexed: Any, at: int) -> Any:
    made = schema.StablehloScatterOptionsT()
    made.updateWindowDims, made.insertedWindowDims = list(window), list(inserted)
    made.scatterDimsToOperandDims, made.indexVectorDim = list(indexed), at
    made.updateComputationSubgraphIndex = function + 1
    return made


# The shapes of the indices and the updates, and the options but the function.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = [
    ((6, 3), (6,), ((), (0, 1, 2), (0, 1, 2), 1)),  # elements
    ((6, 3), (6,), ((), (0, 1, 2), (2, 0, 1), 1)),
    ((2, 2), (2, 5), ((1,), (0, 1), (0, 1), 1)),  # rows, as those of index_put
    ((2, 2), (5, 2), ((0,), (0, 1), (1, 0), 1)),
    ((2,), (2, 4, 5), ((1, 2), (0,), (0,), 1)),  # slices, each index a number
    ((2, 1), (3, 2, 5), ((0, 2), (1,), (1,), 1)),
    ((2, 2), (2, 2, 3), ((0, 2), (1,), (0, 2), 0)),  # parts, with the numbers of a tuple along the first axis
    ((3,), (2, 3, 2), ((0, 1, 2), (), (0, 1, 2), 0)),  # one window, as of dynamic_update_slice
]


def scatters(path: Path) -> Path:
    """A file with all cases and functions: inputs are the operand, then indices and updates of each case."""
    tensors: list[tuple[str, str, Any]] = [("x", "float32", list(SHAPE))]
    steps, inputs, outputs = [], [0], []
    for number, (index_shape, update_shape, how) in enumerate(CASES):
        tensors += [(f"i{number}", "int32", list(index_shape)), (f"u{number}", "float32", list(update_shape))]
        updates = len(tensors) - 1
        inputs += [updates - 1, updates]
        for function in range(len(FUNCTIONS) if number == ALL else 1):
            tensors.append((f"y{number}.{function}", "float32", list(SHAPE)))
            outputs.append(len(tensors) - 1)
            given = [0, updates - 1, updates]
            steps.append((BUILTIN.STABLEHLO_SCATTER, options(function, *how), given, outputs[-1:]))
    file = TfliteFile()
    file.graph(tensors, steps, inputs, outputs)
    for name in FUNCTIONS:
        values: list[tuple[str, str, Any]] = [(one, "float32", []) for one in "abr"]
        step = [] if name == "UPDATE" else [(getattr(BUILTIN, name), None, [0, 1], [2])]
        file.graph(values, step, [0, 1], [2 if step else 1])
    return file.write(path)


def test_windows_of_every_kind(tmp_path: Path) -> None:
    path = scatters(tmp_path / "m.tflite")
    rng = np.random.default_rng(2)
    inputs = [rng.normal(size=SHAPE).astype(np.float32)]
    for index_shape, update_shape, _ in CASES:
        inputs.append(rng.integers(-1, 5, index_shape).astype(np.int32))  # some windows reach beyond an end
        inputs.append(rng.normal(size=update_shape).astype(np.float32))
    module = simplify(import_model(path, ImportOptions("m"))[0])
    found = Compiled(module, runnable_alone("x86_64"), tmp_path).load().run(inputs)
    for number, (ours, theirs) in enumerate(zip(found, open_reference(path).run(inputs), strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=str(number))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (((1, 1), (0, 1), (0, 1), 1), "update_window_dims [1, 1], allowed: different axes of 0..1"),
        (((1,), (0, 3), (0, 1), 1), "inserted_window_dims [0, 3], allowed: different axes of 0..2"),
        (((1,), (0,), (0, 1), 1), "do not fit its options"),
        (((1,), (0, 1), (0,), 1), "do not fit its options"),
        (((1,), (0, 1), (0, 1), 3), "index_vector_dim [3], allowed: different axes of 0..1"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, how: Any, told: str) -> None:
    file = TfliteFile()
    file.graph(
        [("x", "float32", list(SHAPE)), ("i", "int32", [2, 2]), ("u", "float32", [2, 5]),
         ("y", "float32", list(SHAPE))],
        [(BUILTIN.STABLEHLO_SCATTER, options(0, *how), [0, 1, 2], [3])], [0, 1, 2], [3],
    )  # fmt: skip
    file.graph([(one, "float32", []) for one in "ab"], [], [0, 1], [1])
    with pytest.raises(KilnError) as caught:
        import_model(file.write(tmp_path / "m.tflite"), ImportOptions("m"))
    assert told in str(caught.value)
