"""Operators of the user's own: the tutorial as a reader follows it, and custom operators of TFLite files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from kiln.config import load_target
from kiln.device.check.host_cpu import obstacle
from kiln.files import read_json
from onnx import helper
from tflite_files import Node, Tensor, write_graph

from .building import Project
from .pages import follow, page


@pytest.fixture
def alone(tmp_path: Path) -> Project:
    """A project that no other test builds in; the test is skipped if this machine cannot run x86_64 code."""
    reason = obstacle(load_target("x86_64"))
    if reason is not None:
        pytest.skip(f"x86_64: {reason}")
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder)


def errors(project: Project, target: str, model: str) -> list[dict[str, Any]]:
    results = read_json(project.build / f".stages/{target}/{model}/test.json")
    return [output for vector in results["vectors"] for output in vector["outputs"]]


def test_the_tutorial(alone: Project) -> None:
    follow(alone, page("own-operator.md"))
    vector_errors = errors(alone, "host", "mine")
    assert len(vector_errors) == 3 * 4 and all(o["error"] <= o["limit"] for o in vector_errors)
    plan = read_json(alone.build / ".stages/host/mine/plan/plan.json")
    assert [step["label"] for step in plan["buckets"][1]["steps"]].count("LeakyCube") == 1
    own_kernels = [kernel for kernel in plan["kernels"] if kernel["family"] == "own operator"]
    assert [len(kernel["args"]) for kernel in own_kernels] == [
        2,
        3,
    ]  # only the bucket of many rows passes a size
    names = {path.name for path in (alone.build / "host/mine/src").iterdir()}
    assert {f"{kernel['symbol']}.c" for kernel in own_kernels} < names


# Scaled and clipped integers and the index of the greatest of each row, with a table and scratch memory.
PYTHON = """
import numpy as np
from kiln.operators import OwnOperator, OwnTensor


def reference(x, table, gain, names, quants):
    real = (x.astype(np.float32) - quants[0].zero_point[0]) * np.float32(quants[0].scale[0])
    whole = np.floor(real * np.float32(gain) / np.float32(quants[2].scale[0]) + np.float32(0.5))
    y = np.clip(whole + quants[2].zero_point[0] + table, -128, 127).astype(np.int8)
    return y, x[:, ::-1].argmax(1).astype(np.int32)


OPERATOR = OwnOperator(
    name="Rescale",
    attributes={"gain": float, "names": [str]},
    result=lambda x, table, gain, names: (
        OwnTensor(x.shape, x.dtype), OwnTensor((x.shape[0],), "int32")
    ),
    reference=reference,
    c="rescale.c",
    arguments=lambda x, table, y, place, gain, names: [
        *x.shape, x.quant.zero_point[0], y.quant.zero_point[0], gain * x.quant.scale[0] / y.quant.scale[0],
        [3, 2, 1], names[0],
    ],
    scratch=lambda x, *rest, gain, names: x.shape[1],
)
"""
C = r"""
#include <string.h>

static int32_t rounded(float v) {
    float whole = (float)(int32_t)(v + 0.5f);
    return (int32_t)(whole > v + 0.5f ? whole - 1 : whole);
}

void rescale(const int8_t *x, const int8_t *table, int8_t *y, int32_t *place, uint8_t *scratch, int32_t rows,
             int32_t columns, int32_t zero, int32_t zero_out, float factor, const int32_t *three,
             const char *name) {
    if (three[0] != 3 || name[0] != 'a' || name[1] != '"')
        return;
    for (int32_t i = 0; i < rows; i++) {
        memcpy(scratch, x + i * columns, (unsigned)columns);
        const int8_t *row = (const int8_t *)scratch;
        int32_t best = 0;
        for (int32_t j = 0; j < columns; j++) {
            int32_t v = rounded((float)(row[j] - zero) * factor) + zero_out + table[j];
            y[i * columns + j] = (int8_t)(v < -128 ? -128 : v > 127 ? 127 : v);
            if (row[columns - 1 - j] > row[columns - 1 - best])
                best = j;
        }
        place[i] = best;
    }
}
"""


def test_a_quantised_tflite_operator_in_c(alone: Project) -> None:
    """Two outputs, a constant operand, scratch memory, options of each kind, between LiteRT's operators."""
    folder = alone.folder / "operators"
    folder.mkdir()
    (folder / "rescale.py").write_text(PYTHON, encoding="utf-8")
    (folder / "rescale.c").write_text(C, encoding="utf-8")
    options = flexbuffers.Dumps({"gain": 0.75, "names": ['a"b', "c"]})
    table = np.arange(-3, 3).astype(np.int8)
    tensors = [
        Tensor("x", (4, 6), "int8", 0.05, 3),
        Tensor("a", (4, 6), "int8", 0.05, 3),
        Tensor("table", (6,), "int8", data=table),
        Tensor("b", (4, 6), "int8", 0.03, -4),
        Tensor("place", (4,), "int32"),
        Tensor("y", (4, 6), "int8", 0.03, -4),
    ]
    kinds = schema.BuiltinOperator
    nodes = [
        Node(kinds.RELU, None, [0], [1]),
        Node("Rescale", bytes(options), [1, 2], [3, 4]),
        Node(kinds.RELU, None, [3], [5]),
    ]
    write_graph(alone.folder / "net.tflite", tensors, nodes, [0], [5, 4])
    alone.make("target=x86_64", "model=net.tflite", "test")
    vector_errors = errors(alone, "x86_64", "net")
    assert len(vector_errors) == 2 * 3 and all(o["error"] <= o["limit"] for o in vector_errors)
    assert [o["error"] for o in vector_errors if o["name"] == "place"] == [0, 0, 0]


LIBRARY = """
from kiln.operators import OwnOperator
from tvm.script import tirx as T


def lengths(x):
    @T.prim_func(s_tir=True)
    def function(a: T.handle, b: T.handle):
        x = T.match_buffer(a, (4,), "float32")
        y = T.match_buffer(b, (4,), "float32")
        for i in range(4):
            y[i] = T.hypot(x[i], T.float32(1))

    return function


OPERATOR = OwnOperator(
    name="Length", domain="my.company", result=lambda x: x, reference=lambda x: x, tir=lengths
)
"""


@pytest.mark.heavy
def test_a_function_that_only_a_library_has(alone: Project) -> None:
    (alone.folder / "operators").mkdir()
    (alone.folder / "operators" / "length.py").write_text(LIBRARY, encoding="utf-8")
    node = helper.make_node("Length", ["x"], ["y"], "last", domain="my.company")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.company", 1)]
    graph = helper.make_graph([node], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), alone.folder / "net.onnx")
    done = alone.scons("target=x86_64", "model=net.onnx")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    expected = (
        "kiln: error: net: operator 'Length' cannot be compiled: it needs hypotf, which a device without"
    )
    assert done.stderr.startswith(expected)
    assert not (alone.build / "x86_64" / "net").exists()
