"""WHILE whose iterations are counted in the run, as loops of the plan, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
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
from kiln.lower.pipeline import Lowering, lower
from tflite_graphs import TfliteFile

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute

BUILTIN = schema.BuiltinOperator
SUM, ADD, MUL = schema.ReducerOptionsT(), schema.AddOptionsT(), schema.MulOptionsT()
LESS, SLICE = schema.LessOptionsT(), schema.SliceOptionsT()
RESHAPE = schema.ReshapeOptionsT()


def repeat(condition: int, body: int) -> Any:
    """Options of a WHILE of two graphs."""
    options = schema.WhileOptionsT()
    options.condSubgraphIndex, options.bodySubgraphIndex = condition, body
    return options


# The state of a counted loop, and its value after the loop.
STATE = [("i", "int32", []), ("n", "int32", []), ("x", "float32", [2])]
RESULTS = [("j", "int32", []), ("m", "int32", []), ("y", "float32", [2])]


def up_to_n(outputs: Sequence[int]) -> TfliteFile:
    """A file with a loop while i < n, from i = 0, and its condition; graph 2, its body, is still missing."""
    file = TfliteFile()
    file.graph(
        [*STATE, ("zero", "int32", 0), *RESULTS],
        [(BUILTIN.WHILE, repeat(1, 2), [3, 1, 2], [4, 5, 6])],
        [1, 2],
        outputs,
    )
    file.graph([*STATE, ("c", "bool", [])], [(BUILTIN.LESS, LESS, [0, 1], [3])], range(3), [3])
    return file


def counted(path: Path, rows: int = 2) -> Path:
    """Up to n times: x = x * x + x. `rows`: of the body's result."""
    file = up_to_n([4, 6])
    more = [("s", "float32", [2]), ("t", "float32", [rows])]
    file.graph(
        [*STATE, ("one", "int32", 1), ("after", "int32", []), *more],
        [(BUILTIN.ADD, ADD, [0, 3], [4]), (BUILTIN.MUL, MUL, [2, 2], [5]), (BUILTIN.ADD, ADD, [5, 2], [6])],
        range(3), [4, 1, 6],
    )  # fmt: skip
    return file.write(path)


def until(path: Path) -> Path:
    """Until the sum of x is not below a limit: x = x + x; what ends it is the data."""
    file, state = TfliteFile(), [("x", "float32", [3]), ("limit", "float32", [])]
    file.graph(
        [*state, ("y", "float32", [3]), ("l", "float32", [])],
        [(BUILTIN.WHILE, repeat(1, 2), [0, 1], [2, 3])],
        [0, 1],
        [2],
    )
    file.graph(
        [*state, ("axes", "int32", [0]), ("sum", "float32", []), ("c", "bool", [])],
        [(BUILTIN.SUM, SUM, [0, 2], [3]), (BUILTIN.LESS, LESS, [3, 1], [4])],
        [0, 1],
        [4],
    )
    file.model.subgraphs[1].tensors[2] = held(file, "axes", np.zeros(1, "int32"))
    file.graph([*state, ("z", "float32", [3])], [(BUILTIN.ADD, ADD, [0, 0], [2])], [0, 1], [2, 1])
    return file.write(path)


def held(file: TfliteFile, name: str, value: Any) -> Any:
    """A constant tensor of a file."""
    tensor, buffer = schema.TensorT(), schema.BufferT()
    buffer.data = np.frombuffer(value.tobytes(), np.uint8)
    file.model.buffers.append(buffer)
    tensor.name, tensor.type, tensor.shape = name, schema.TensorType.INT32, list(value.shape)
    tensor.buffer = len(file.model.buffers) - 1
    return tensor


def rows(path: Path) -> Path:
    """For i below n, row i of y is row i of x plus row i - 1 of y: reads and writes at computed places."""
    file = TfliteFile()
    state = [
        ("i", "int32", []),
        ("n", "int32", []),
        ("x", "float32", [5, 2]),
        ("y", "float32", [5, 2]),
        ("last", "float32", [1, 2]),
    ]
    results = [(f"{name}2", kind, shape) for name, kind, shape in state]
    file.graph(
        [*state, ("zero", "int32", 0), *results],
        [(BUILTIN.WHILE, repeat(1, 2), [5, 1, 2, 3, 4], [6, 7, 8, 9, 10])],
        [1, 2, 3, 4],
        [9],
    )
    file.graph([*state, ("c", "bool", [])], [(BUILTIN.LESS, LESS, [0, 1], [5])], range(5), [5])
    tensors = [
        *state,
        ("one", "int32", 1),
        ("after", "int32", []),
        ("at", "int32", [2]),
        ("size", "int32", [1]),
        ("row", "float32", [1, 2]),
        ("sum", "float32", [1, 2]),
        ("written", "float32", [5, 2]),
        ("none", "int32", 0),
    ]
    pack = schema.PackOptionsT()
    pack.valuesCount = 2
    file.graph(
        tensors,
        [(BUILTIN.ADD, ADD, [0, 5], [6]), (BUILTIN.PACK, pack, [0, 12], [7]),
         (BUILTIN.SLICE, SLICE, [2, 7, 8], [9]), (BUILTIN.ADD, ADD, [9, 4], [10]),
         (BUILTIN.DYNAMIC_UPDATE_SLICE, None, [3, 10, 7], [11])],
        range(5), [6, 1, 2, 11, 10],
    )  # fmt: skip
    file.model.subgraphs[2].tensors[8] = held(file, "size", np.array([1, 2], "int32"))
    return file.write(path)


def nested(path: Path) -> Path:
    """Up to n times: up to i times x = x + x; the inner loop's count is the outer one's counter."""
    file = up_to_n([6])
    file.graph(
        [*STATE, ("one", "int32", 1), ("zero", "int32", 0), ("after", "int32", []), *RESULTS],
        [(BUILTIN.WHILE, repeat(4, 3), [4, 0, 2], [6, 7, 8]), (BUILTIN.ADD, ADD, [0, 3], [5])],
        range(3),
        [5, 1, 8],
    )
    file.graph(
        [*STATE, ("one", "int32", 1), ("after", "int32", []), ("s", "float32", [2])],
        [(BUILTIN.ADD, ADD, [0, 3], [4]), (BUILTIN.ADD, ADD, [2, 2], [5])],
        range(3),
        [4, 1, 5],
    )
    less = [(BUILTIN.LESS, LESS, [0, 1], [3])]
    file.graph([*STATE, ("c", "bool", [])], less, range(3), [3])
    return file.write(path)


def twice_from_one(path: Path) -> Path:
    """Up to n times: x = x + first, where x and first begin as one tensor; so TensorFlow writes loops."""
    file, state = TfliteFile(), [*STATE, ("first", "float32", [2])]
    results = [*RESULTS, ("l", "float32", [2])]
    file.graph(
        [*STATE, ("zero", "int32", 0), *results],
        [(BUILTIN.WHILE, repeat(1, 2), [3, 1, 2, 2], [4, 5, 6, 7])],
        [1, 2],
        [6, 7],
    )
    file.graph([*state, ("c", "bool", [])], [(BUILTIN.LESS, LESS, [0, 1], [4])], range(4), [4])
    file.graph(
        [*state, ("one", "int32", 1), ("after", "int32", []), ("s", "float32", [2])],
        [(BUILTIN.ADD, ADD, [0, 4], [5]), (BUILTIN.ADD, ADD, [2, 3], [6])],
        range(4),
        [5, 1, 6, 3],
    )
    return file.write(path)


def test_loops_of_the_plan_compute_what_litert_does(tmp_path: Path) -> None:
    x = np.float32([0.5, -0.25])
    y = np.zeros((5, 2), "float32")
    tests: Sequence[tuple[Path, Sequence[Sequence[Any]]]] = [
        (counted(tmp_path / "counted.tflite"), [[np.int32(n), x] for n in (0, 1, 5)]),
        (until(tmp_path / "until.tflite"), [[np.float32([1, 2, 0.5]), np.float32(n)] for n in (1, 100)]),
        (
            rows(tmp_path / "rows.tflite"),
            [[np.int32(4), y + np.float32([[1], [2], [3], [4], [5]]), y, y[:1]]],
        ),
        (nested(tmp_path / "nested.tflite"), [[np.int32(n), x] for n in (1, 4)]),
        (twice_from_one(tmp_path / "twice.tflite"), [[np.int32(n), x] for n in (1, 4)]),
    ]
    made = []
    for number, (path, runs) in enumerate(tests):
        module, _ = import_model(path, ImportOptions("m"))
        steps = lower(simplify(module), Lowering(f"m{number}", runnable_alone("x86_64"), "pthread"))
        assert any(step.loop is not None for step in steps.steps)
        made.append((path, steps, runs))
    functions = {name: function for _, steps, _ in made for name, function in steps.functions.items()}
    compile_unoptimised(functions, tmp_path / "all.o")
    library = loaded(tmp_path / "all.o")
    for path, steps, runs in made:
        for inputs in runs:
            arrays = [np.asarray(value) for value in inputs]
            want = open_reference(path, "builtin_ref").run(arrays)
            for ours, theirs in zip(execute(steps, library, arrays), want, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=str(path.name))


def test_a_carried_value_that_grows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        KilnError, match=r"WHILE \(output j\): carried value 2 is float32\[2\] before an iteration"
    ):
        import_model(counted(tmp_path / "m.tflite", rows=3), ImportOptions("m"))


def test_one_branch_of_an_if_runs(tmp_path: Path) -> None:
    """Each branch has its own softmax of x, and the sums of its columns."""
    file, options = TfliteFile(), schema.IfOptionsT()
    options.thenSubgraphIndex, options.elseSubgraphIndex = 1, 2
    results = [("y", "float32", [2, 4]), ("s", "float32", [4])]
    file.graph(
        [("c", "bool", []), ("x", "float32", [2, 4]), *results],
        [(BUILTIN.IF, options, [0, 1], [2, 3])], [0, 1], [2, 3],
    )  # fmt: skip
    for operator in (BUILTIN.SOFTMAX, BUILTIN.LOG_SOFTMAX):
        options_of_operator = schema.SoftmaxOptionsT() if operator == BUILTIN.SOFTMAX else None
        if options_of_operator is not None:
            options_of_operator.beta = 1.0
        file.graph(
            [*results[:1], ("p", "float32", [2, 4]), ("axis", "int32", [1]), ("t", "float32", [4])],
            [(operator, options_of_operator, [0], [1]), (BUILTIN.SUM, SUM, [1, 2], [3])], [0], [1, 3],
        )  # fmt: skip
        file.model.subgraphs[-1].tensors[2] = held(file, "axis", np.zeros(1, "int32"))
    path = file.write(tmp_path / "m.tflite")
    steps = lower(
        simplify(import_model(path, ImportOptions("m"))[0]), Lowering("m", runnable_alone("x86_64"), "none")
    )
    compile_unoptimised(steps.functions, tmp_path / "m.o")
    library, ran = loaded(tmp_path / "m.o"), []
    x = np.random.default_rng(1).uniform(-2, 2, (2, 4)).astype("f4")
    for chosen in (True, False):
        calls: list[str] = []
        outputs = execute(steps, library, [np.array(chosen), x], calls=calls)
        for ours, theirs in zip(outputs, open_reference(path).run([np.array(chosen), x]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        ran.append([any(label.startswith(name) for label in calls) for name in ("softmax", "log_softmax")])
    assert ran == [[True, False], [False, True]]
