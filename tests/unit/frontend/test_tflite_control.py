"""TFLite's IF and WHILE: imported graphs against LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from symbolic import runner
from tflite_graphs import TfliteFile

BUILTIN = schema.BuiltinOperator


def branches(path: Path, size: int = 3) -> Path:
    """y = 2 * x where c, else x + 5, and then minus x."""
    options = schema.IfOptionsT()
    options.thenSubgraphIndex, options.elseSubgraphIndex = 1, 2
    file = TfliteFile()
    file.graph(
        [("x", "float32", [3]), ("c", "bool", []), ("r", "float32", [3]), ("y", "float32", [3])],
        [(BUILTIN.IF, options, [1, 0], [2]), (BUILTIN.SUB, schema.SubOptionsT(), [2, 0], [3])],
        [0, 1], [3],
    )  # fmt: skip
    file.graph(
        [("x", "float32", [3]), ("two", "float32", 2.0), ("a", "float32", [3])],
        [(BUILTIN.MUL, schema.MulOptionsT(), [0, 1], [2])], [0], [2],
    )  # fmt: skip
    file.graph(
        [("x", "float32", [3]), ("five", "float32", np.full(3, 5)), ("a", "float32", [size])],
        [(BUILTIN.ADD, schema.AddOptionsT(), [0, 1], [2])], [0], [2],
    )  # fmt: skip
    return file.write(path)


def loop(path: Path, *, counted: bool, stable: bool = False) -> Path:
    """Six iterations of v = v * v - x; the limit of the counter is constant if `counted`, else an input.

    stable: as an operator of StableHLO.
    """
    options = schema.StablehloWhileOptionsT() if stable else schema.WhileOptionsT()
    options.condSubgraphIndex, options.bodySubgraphIndex = 1, 2
    kind = BUILTIN.STABLEHLO_WHILE if stable else BUILTIN.WHILE
    limit: Any = 6 if counted else []
    file = TfliteFile()
    file.graph(
        [("x", "float32", [2]), ("limit", "int32", limit), ("zero", "int32", 0), ("one", "float32", [2]),
         ("n", "int32", []), ("v", "float32", [2]), ("w", "float32", [2]), ("m", "int32", []),
         ("k", "float32", np.float32([0.5, 0.25]))],
        [(BUILTIN.ADD, schema.AddOptionsT(), [0, 8], [3]),
         (kind, options, [2, 3, 0, 1], [4, 5, 6, 7])],
        [0] if counted else [0, 1], [5, 4],
    )  # fmt: skip
    state = [("n", "int32", []), ("v", "float32", [2]), ("x", "float32", [2]), ("limit", "int32", [])]
    file.graph(
        [*state, ("going", "bool", [])], [(BUILTIN.LESS, schema.LessOptionsT(), [0, 3], [4])], range(4), [4]
    )
    file.graph(
        [*state, ("step", "int32", 1), ("after", "int32", []), ("s", "float32", [2]), ("t", "float32", [2])],
        [(BUILTIN.ADD, schema.AddOptionsT(), [0, 4], [5]), (BUILTIN.MUL, schema.MulOptionsT(), [1, 1], [6]),
         (BUILTIN.SUB, schema.SubOptionsT(), [6, 2], [7])],
        range(4), [5, 7, 2, 3],
    )  # fmt: skip
    return file.write(path)


def run(path: Path, *inputs: Any) -> Any:
    return runner(import_model(path, ImportOptions("m"))[0])(inputs, {})


def compare(path: Path, *inputs: Any) -> None:
    want = open_reference(path, "builtin_ref").run(inputs)
    got = run(path, *inputs)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_on_a_value_of_the_run(condition: bool, tmp_path: Path) -> None:
    compare(branches(tmp_path / "m.tflite"), np.float32([1, -2, 3]), np.array(condition))


@pytest.mark.parametrize("name", ["same", ""])
def test_tensors_with_one_name(name: str, tmp_path: Path) -> None:
    """TFLite tells tensors apart by number: y = (x - k) - x, where all tensors have one name."""
    file = TfliteFile()
    tensors = [(name, "float32", [2]), (name, "float32", np.float32([0.5, 3])), *[(name, "float32", [2])] * 2]
    subtract = schema.SubOptionsT()
    steps = [(BUILTIN.SUB, subtract, [0, 1], [2]), (BUILTIN.SUB, subtract, [2, 0], [3])]
    file.graph(tensors, steps, [0], [3])
    compare(file.write(tmp_path / "m.tflite"), np.float32([1, -2]))


def test_a_counted_loop(tmp_path: Path) -> None:
    compare(loop(tmp_path / "m.tflite", counted=True), np.float32([0.5, -0.75]))


def test_a_counted_loop_computes_places_from_its_counters(tmp_path: Path) -> None:
    """A recurrent layer of Keras: in the first iteration, RESHAPE and SLICE read only constants.

    The place is k - 1, from 0, and nothing by which iterations are counted, where k is not known.
    """
    options = schema.WhileOptionsT()
    options.condSubgraphIndex, options.bodySubgraphIndex = 1, 2
    file = TfliteFile()
    state = [("n", "int32", []), ("v", "float32", [1]), ("x", "float32", [3]), ("k", "int32", [])]
    file.graph(
        [("x", "float32", [3]), ("v", "float32", [1]), ("zero", "int32", 0), ("first", "int32", 1),
         ("n", "int32", []), ("w", "float32", [1]), ("y", "float32", [3]), ("l", "int32", [])],
        [(BUILTIN.WHILE, options, [2, 1, 0, 3], [4, 5, 6, 7])], [0, 1], [5],
    )  # fmt: skip
    file.graph(
        [*state, ("limit", "int32", 3), ("going", "bool", [])],
        [(BUILTIN.LESS, schema.LessOptionsT(), [0, 4], [5])], range(4), [5],
    )  # fmt: skip
    file.graph(
        [*state, ("step", "int32", 1), ("after", "int32", []), ("one", "int32", np.array([1])),
         ("place", "int32", [1]), ("row", "float32", [1]), ("sum", "float32", [1]), ("next", "float32", [1]),
         ("before", "int32", []), ("last", "int32", [])],
        [(BUILTIN.ADD, schema.AddOptionsT(), [0, 4], [5]),
         (BUILTIN.SUB, schema.SubOptionsT(), [3, 4], [11]),
         (BUILTIN.RESHAPE, schema.ReshapeOptionsT(), [11, 6], [7]),
         (BUILTIN.SLICE, schema.SliceOptionsT(), [2, 7, 6], [8]),
         (BUILTIN.ADD, schema.AddOptionsT(), [1, 8], [9]),
         (BUILTIN.MUL, schema.MulOptionsT(), [9, 9], [10]),
         (BUILTIN.ADD, schema.AddOptionsT(), [3, 4], [12])],
        range(4), [5, 10, 2, 12],
    )  # fmt: skip
    compare(file.write(tmp_path / "m.tflite"), np.float32([0.5, -0.75, 2]), np.float32([0.25]))


def test_a_loop_of_stablehlo(tmp_path: Path) -> None:
    """The reference runs STABLEHLO_WHILE, for which LiteRT has no kernel, as a WHILE."""
    x = np.float32([0.5, -0.75])
    want = open_reference(loop(tmp_path / "m.tflite", counted=True), "builtin_ref").run([x])
    same = loop(tmp_path / "s.tflite", counted=True, stable=True)
    for found in (run(same, x), open_reference(same, "builtin_ref").run([x])):
        for ours, theirs in zip(found, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    text = str(import_model(loop(tmp_path / "o.tflite", counted=False, stable=True), ImportOptions("m"))[0])
    assert "kiln.operator.loop_end" in text


@pytest.mark.parametrize(
    ("index", "constant"), [(0, False), (1, False), (2, False), (7, False), (-1, False), (1, True)]
)
def test_cases_of_stablehlo(tmp_path: Path, index: int, constant: bool) -> None:
    """Of an index outside of the branches the last one."""
    options, file = schema.StablehloCaseOptionsT(), TfliteFile()
    options.branchSubgraphIndices = [1, 2, 3]
    file.graph(
        [("i", "int32", index if constant else []), ("x", "float32", [3]), ("y", "float32", [3])],
        [(BUILTIN.STABLEHLO_CASE, options, [0, 1], [2])], [1] if constant else [0, 1], [2],
    )  # fmt: skip
    for number in (2, 3, 5):
        file.graph(
            [("x", "float32", [3]), ("factor", "float32", number), ("a", "float32", [3])],
            [(BUILTIN.MUL, schema.MulOptionsT(), [0, 1], [2])], [0], [2],
        )  # fmt: skip
    x = np.float32([1, -2, 3])
    given = [x] if constant else [np.array(index, np.int32), x]
    [got] = run(file.write(tmp_path / "m.tflite"), *given)
    np.testing.assert_array_equal(got, open_reference(tmp_path / "m.tflite").run(given)[0])
    np.testing.assert_array_equal(got, x * {0: 2, 1: 3}.get(index, 5))


def test_a_composite_is_its_decomposition(tmp_path: Path) -> None:
    options, file = schema.StableHLOCompositeOptionsT(), TfliteFile()
    options.name, options.decompositionSubgraphIndex = "odml.own", 1
    options.compositeAttributes = np.frombuffer(bytes(flexbuffers.Dumps({})), np.uint8)
    vectors = [(name, "float32", [3]) for name in "abyz"]
    file.graph(
        vectors,
        [(BUILTIN.STABLEHLO_COMPOSITE, options, pair, [made]) for pair, made in (([0, 1], 2), ([2, 1], 3))],
        [0, 1], [3],
    )  # fmt: skip
    file.graph(vectors[:3], [(BUILTIN.SUB, schema.SubOptionsT(), [0, 1], [2])], [0, 1], [2])
    compare(file.write(tmp_path / "m.tflite"), np.float32([1, -2, 3]), np.float32([5, 1, 0]))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"IF \(output r\): its branches give different types or shapes"):
        import_model(branches(tmp_path / "n.tflite", size=1), ImportOptions("m"))


def test_a_graph_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    options, file = schema.CallOptionsT(), TfliteFile()
    options.subgraph = 7
    file.graph([("x", "float32", [3]), ("y", "float32", [3])], [(BUILTIN.CALL, options, [0], [1])], [0], [1])
    with pytest.raises(KilnError, match="call1: graph 7 is not in the file"):
        import_model(file.write(tmp_path / "m.tflite"), ImportOptions("m"))
    again = schema.WhileOptionsT()
    again.condSubgraphIndex = again.bodySubgraphIndex = 7
    file = TfliteFile()
    file.graph([("x", "float32", [3]), ("y", "float32", [3])], [(BUILTIN.WHILE, again, [0], [1])], [0], [1])
    with pytest.raises(KilnError, match="a graph of its control flow is damaged"):
        import_model(file.write(tmp_path / "n.tflite"), ImportOptions("m"))


def variable_in_a_loop(path: Path, limit: Any) -> Path:
    """y is variable v after three times v = v + x; `limit`: of the counter, a constant or a shape."""
    handle, once, options = schema.VarHandleOptionsT(), schema.CallOnceOptionsT(), schema.WhileOptionsT()
    handle.container, handle.sharedName, once.initSubgraphIndex = "", "v", 3
    options.condSubgraphIndex, options.bodySubgraphIndex = 1, 2
    state = [("i", "int32", []), ("h", "resource", []), ("x", "float32", [2]), ("n", "int32", [])]
    results = [(f"{name}2", dtype, shape) for name, dtype, shape in state]
    opened = (BUILTIN.VAR_HANDLE, handle, [], [1])
    file = TfliteFile()
    file.graph(
        [("zero", "int32", 0), *state[1:3], ("n", "int32", limit), *results, ("y", "float32", [2])],
        [(BUILTIN.CALL_ONCE, once, [], []), opened, (BUILTIN.WHILE, options, [0, 1, 2, 3], [4, 5, 6, 7]),
         (BUILTIN.READ_VARIABLE, None, [1], [8])],
        [2] if isinstance(limit, int) else [2, 3], [8],
    )  # fmt: skip
    file.graph(
        [*state, ("going", "bool", [])], [(BUILTIN.LESS, schema.LessOptionsT(), [0, 3], [4])], range(4), [4]
    )
    file.graph(
        [*state, ("one", "int32", 1), ("after", "int32", []), ("r", "float32", [2]), ("s", "float32", [2])],
        [(BUILTIN.ADD, schema.AddOptionsT(), [0, 4], [5]), (BUILTIN.READ_VARIABLE, None, [1], [6]),
         (BUILTIN.ADD, schema.AddOptionsT(), [6, 2], [7]), (BUILTIN.ASSIGN_VARIABLE, None, [1, 7], [])],
        range(4), [5, 1, 2, 3],
    )  # fmt: skip
    assign = (BUILTIN.ASSIGN_VARIABLE, None, [1, 0], [])
    file.graph([("first", "float32", np.float32([5, 7])), state[1]], [opened, assign], [], [])
    return file.write(path)


def test_a_variable_in_an_unrolled_loop(tmp_path: Path) -> None:
    """Each of its runs adds x three times to the value before, which is an input and an output."""
    x, before = np.float32([0.5, -0.25]), np.float32([5, 7])
    y, after = run(variable_in_a_loop(tmp_path / "m.tflite", 3), x, before)
    np.testing.assert_allclose([y, after], [before + 3 * x] * 2)


def test_a_variable_in_a_loop_counted_by_the_run_is_refused(tmp_path: Path) -> None:
    path = variable_in_a_loop(tmp_path / "m.tflite", [])
    with pytest.raises(
        KilnError, match=r"READ_VARIABLE \(output loop1/body/r\): of a variable in a branch or"
    ):
        import_model(path, ImportOptions("m"))
