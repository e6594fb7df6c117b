"""The data flow of a bucket, and the nodes of a model's file that its steps compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from ai_edge_litert import schema_py_generated as schema
from kiln.command_line.compare import tflite_probes
from kiln.plan.schema import Plan
from kiln.report import graph
from kiln.report.measured import Measured, worst_rows
from kiln.report.origins import SourceNode, StepOrigin, origins, source_nodes
from kiln.tir.tuning_records import HEURISTICS, NotedRecords, TuningRecord
from networks import normal, save_network
from onnx import helper
from plans import plan_of
from tflite_files import Tensor, write

OP = schema.BuiltinOperator

_PORT = {"dtype": "float32", "shape": [1, 8], "bytes": 32}


def arena(offset: int, *shape: int) -> dict[str, Any]:
    return {"at": "arena", "offset": offset, "bytes": 4, "shape": list(shape)}


def port(at: str, *shape: int) -> dict[str, Any]:
    return {"at": at, "index": 0, "bytes": 32, "shape": list(shape)}


def plan(steps: list[tuple[str, list[str], str, list[Any]]], tensors: list[tuple[int, int, int]]) -> Plan:
    """A plan of steps (kernel, operators, r or w for each argument, arguments).

    `tensors`: (offset, first, last) of tensors of 64 bytes.
    """
    kernels = {
        symbol: {
            "symbol": symbol,
            "args": [{"dtype": "float32", "const": letter == "r"} for letter in access],
            "ops": [{"name": name} for name in ops],
        }
        for symbol, ops, access, _ in steps
    }
    placed = [
        {"name": f"t{i}", "offset": o, "bytes": 64, "first": f, "last": la, "kind": "activation"}
        for i, (o, f, la) in enumerate(tensors)
    ]
    return plan_of(
        inputs=[{"name": "x", "c_name": "x", **_PORT}],
        outputs=[{"name": "y", "c_name": "y", **_PORT}],
        kernels=list(kernels.values()),
        buckets=[
            {"steps": [{"kernel": s, "label": s, "args": args} for s, _, _, args in steps], "tensors": placed}
        ],
    )


def edges(given: Plan) -> set[tuple[str, str]]:
    return {(a, b) for a, b in graph._edges(given, given.buckets[0])}


def test_steps_are_joined_by_the_tensor_and_not_by_its_place() -> None:
    """Two tensors use the same bytes one after the other."""
    steps = [
        ("a", ["relu"], "rw", [port("input", 1, 8), arena(0, 8)]),
        ("b", ["relu"], "rw", [arena(0, 8), arena(64, 8)]),
        ("c", ["relu"], "rw", [arena(64, 8), arena(0, 8)]),
        ("d", ["relu"], "rw", [arena(0, 8), port("output", 1, 8)]),
    ]
    plan_of_steps = plan(steps, [(0, 0, 1), (64, 1, 2), (0, 2, 3)])
    assert edges(plan_of_steps) == {
        ("input0", "s0"), ("s0", "s1"), ("s1", "s2"), ("s2", "s3"), ("s3", "output0"),
    }  # fmt: skip


def test_pieces_of_a_tensor_and_changes_in_place() -> None:
    """Two steps write parts of one tensor; a third changes it in place before it is read."""
    steps = [
        ("left", ["relu"], "rw", [port("input", 1, 8), arena(0, 4)]),
        ("right", ["relu"], "rw", [port("input", 1, 8), arena(16, 4)]),
        ("both", ["relu"], "rw", [arena(0, 8), arena(0, 8)]),
        ("end", ["relu"], "rw", [arena(0, 8), port("output", 1, 8)]),
    ]
    assert edges(plan(steps, [(0, 0, 3)])) == {
        ("input0", "s0"), ("input0", "s1"), ("s0", "s2"), ("s1", "s2"), ("s2", "s3"), ("s3", "output0"),
    }  # fmt: skip


def node(name: str, op: str, inputs: str, output: str, elements: int) -> SourceNode:
    return SourceNode(name, op, tuple(inputs.split()), (output,), elements)


def test_steps_get_the_nodes_of_their_kind_and_size_in_order() -> None:
    """The addition after two convolutions belongs to the step that reads a second tensor."""
    nodes = [
        node("c1", "Conv", "x w1", "a", 8), node("c2", "Conv", "a w2 b2", "b", 8),
        node("sum", "Add", "a b", "s", 8), node("r", "Relu", "s", "t", 8), node("c3", "Conv", "t w3", "y", 4),
    ]  # fmt: skip
    steps = [
        ("k1", ["relax.nn.conv2d"], "rw", [port("input", 8), arena(0, 8)]),
        ("k2", ["relax.nn.conv2d", "relax.add", "relax.add", "relax.nn.relu"], "rrw",
         [arena(0, 8), arena(0, 8), arena(64, 8)]),
        ("k3", ["relax.nn.conv2d"], "rw", [arena(64, 8), port("output", 4)]),
    ]  # fmt: skip
    steps[1][3][1] = arena(128, 8)  # the second tensor that it reads
    plan_of_steps = plan(steps, [(0, 0, 1), (64, 1, 2), (128, 0, 1)])
    assert origins(plan_of_steps, plan_of_steps.buckets[0].steps, nodes) == {
        0: StepOrigin(("c1",), "a"), 1: StepOrigin(("c2", "sum", "r"), "t"), 2: StepOrigin(("c3",), "y"),
    }  # fmt: skip


def test_a_residual_inside_a_padded_tensor_is_a_second_tensor() -> None:
    nodes = [
        node("c1", "Conv", "x w1", "a", 8), node("c2", "Conv", "a w2", "b", 8),
        node("sum", "Add", "b a", "y", 8),
    ]  # fmt: skip
    steps = [
        ("k1", ["relax.nn.conv2d"], "rw", [port("input", 8), arena(0, 8)]),
        ("k2", ["relax.nn.conv2d", "relax.add"], "rrw", [arena(0, 10), arena(0, 8), port("output", 8)]),
    ]
    plan_of_steps = plan(steps, [(0, 0, 1)])
    assert origins(plan_of_steps, plan_of_steps.buckets[0].steps, nodes)[1] == StepOrigin(("c2", "sum"), "y")


def test_sizes_that_a_file_does_not_know() -> None:
    """Where one node of a kind has no size, all of that kind are paired by their order."""
    nodes = [node("c1", "Conv", "x w", "a", 8), SourceNode("c2", "Conv", ("a", "w"), ("y",), None)]
    steps = [
        ("k1", ["relax.nn.conv2d"], "rw", [port("input", 16), arena(0, 16)]),
        ("k2", ["relax.nn.conv2d"], "rw", [arena(0, 16), port("output", 4)]),
    ]
    plan_of_steps = plan(steps, [(0, 0, 1)])
    found = origins(plan_of_steps, plan_of_steps.buckets[0].steps, nodes)
    assert found == {0: StepOrigin(("c1",), "a"), 1: StepOrigin(("c2",), "y")}


def test_no_name_where_the_numbers_of_nodes_differ() -> None:
    nodes = [node("c1", "Conv", "x w", "a", 8), node("c2", "Conv", "a w", "b", 8)]
    steps = [("k", ["relax.nn.conv2d"], "rw", [port("input", 8), port("output", 8)])]
    plan_of_steps = plan(steps, [])
    assert origins(plan_of_steps, plan_of_steps.buckets[0].steps, nodes) == {}


def test_of_the_kernels_of_a_group_the_last_has_the_node() -> None:
    nodes = [node("s", "Softmax", "x", "y", 8)]
    steps = [
        ("max", ["relax.nn.softmax"], "rw", [port("input", 8), arena(0, 1)]),
        ("exp", ["relax.nn.softmax"], "rrw", [port("input", 8), arena(0, 1), port("output", 8)]),
    ]
    plan_of_steps = plan(steps, [(0, 0, 1)])
    assert origins(plan_of_steps, plan_of_steps.buckets[0].steps, nodes) == {1: StepOrigin(("s",), "y")}


def test_nodes_of_a_file(tmp_path: Path) -> None:
    layers = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"], name="act"),
    ]
    path = save_network(tmp_path / "n.onnx", layers, {"x": [2, 4]}, {"y": [2, 8]}, normal(1, 1.0, w=[4, 8]))
    assert source_nodes(path) == [
        SourceNode("h", "MatMul", ("x", "w"), ("h",), 16), SourceNode("act", "Relu", ("h",), ("y",), 16),
    ]  # fmt: skip
    onnx.load(path)
    assert source_nodes(tmp_path / "archive.pt2") == []


def test_tensors_of_a_file_without_names(tmp_path: Path) -> None:
    """Files may leave out names of tensors; operators are numbered."""
    tensors = [Tensor(None, (1, 4)), Tensor(None, (1, 4))]
    path = write(tmp_path / "m.tflite", tensors, OP.RELU, None, [0], [1])
    assert source_nodes(path) == [SourceNode("operator 0", "RELU", ("",), ("",), 4)]
    assert [probe.op for probe in tflite_probes.write(path, tmp_path / "probes.tflite")] == ["RELU"]


def test_times_of_another_kernel_are_not_shown() -> None:
    plan_of_steps = plan([("k", ["relu"], "rw", [port("input", 8), port("output", 8)])], [])
    steps = [{"bucket": "bucket0", "index": 0, "kernel": "old", "time": 1.0, "share": 1.0}]
    assert Measured({"steps": steps}, {}, []).times(plan_of_steps.buckets[0]) == {}
    steps[0]["kernel"] = "k"
    assert Measured({"steps": steps}, {}, []).times(plan_of_steps.buckets[0]) == {0: steps[0]}


def test_the_worst_vector_of_a_tensor_is_shown() -> None:
    def row(error: float | None, passed: bool, vector: str) -> dict[str, Any]:
        return {"tensor": "t", "vector": vector, "error": error, "limit": 1.0, "passed": passed}

    rows = [row(0.9, True, "a"), row(None, False, "b"), row(3.0, False, "c")]
    assert worst_rows({"tensors": rows})["t"]["vector"] == "b"
    assert worst_rows({}) == {}


def test_kernels_without_a_tuning_record_are_noted() -> None:
    key, other = "conv2d 1x8x8x16 3x3x16x32 s1x1 d1x1 g1", "conv2d 1x4x4x16 1x1x16x8 s1x1 d1x1 g1"
    records = NotedRecords({key: TuningRecord(part=1)})
    assert records.get(key) == TuningRecord(part=1)
    assert records.get(other, HEURISTICS) is HEURISTICS
    assert records.get("conv2d NxHxWxC of no fixed sizes", HEURISTICS) is HEURISTICS
    assert records.missing == [other]
