"""Recurrent layers on a GPU, whose kernels run on this processor: unrolled, and with a dynamic length."""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scons_real
import tvm
from kiln.config import load_target
from kiln.config.target import Cuda
from kiln.frontend.tflite import gate_functions, gate_quotients
from kiln.kernels.gpu import dlight
from kiln.lower.shared_elements import shared_elements
from networks import normal, save_network
from onnx import helper
from tvm import te

from . import double
from .conftest import TARGET
from .launched import Kernels

CUDA = Cuda(archs=["sm_75"], ptx=False)

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")

_NAME, _BATCH, _WIDTH, _HIDDEN = "layers", 3, 5, 6
_YAML = f"""\
source: {{kind: file, path: ../{_NAME}.onnx}}
format: onnx
inputs:
  x: {{shape: [n, {_BATCH}, {_WIDTH}], dtype: float32}}
dims:
  n: {{min: 1, max: 7, buckets: [{{exact: 4}}]}}
golden:
  inputs:
    - {{kind: normal, seed: 1}}
tolerance: {{absolute: 1e-5, relative: 1e-4}}
"""


def _write(folder: Path) -> None:
    node = helper.make_node
    gru = {"hidden_size": _HIDDEN, "linear_before_reset": 1, "direction": "reverse"}
    nodes = [
        node("LSTM", ["x", "w", "r", "b"], ["y1", "h", "c"], hidden_size=_HIDDEN, direction="bidirectional"),
        node("GRU", ["x", "wg", "rg", "bg"], ["y2"], **gru),
        node("RNN", ["x", "wr", "rr"], ["y3"], hidden_size=_HIDDEN, activations=["Relu"]),
    ]
    constants = normal(
        3, 0.4,
        w=[2, 4 * _HIDDEN, _WIDTH], r=[2, 4 * _HIDDEN, _HIDDEN], b=[2, 8 * _HIDDEN],
        wg=[1, 3 * _HIDDEN, _WIDTH], rg=[1, 3 * _HIDDEN, _HIDDEN], bg=[1, 6 * _HIDDEN],
        wr=[1, _HIDDEN, _WIDTH], rr=[1, _HIDDEN, _HIDDEN],
    )  # fmt: skip
    state = [2, _BATCH, _HIDDEN]
    output_shapes = {"y1": ["n", 2, _BATCH, _HIDDEN], "h": state, "c": state}
    output_shapes |= {name: ["n", 1, _BATCH, _HIDDEN] for name in ("y2", "y3")}
    save_network(folder / f"{_NAME}.onnx", nodes, {"x": ["n", _BATCH, _WIDTH]}, output_shapes, constants)
    (folder / "models" / f"{_NAME}.yaml").write_text(_YAML, encoding="utf-8")


@pytest.mark.heavy
def test_golden_vectors(tmp_path: Path) -> None:
    folder = scons_real.own_project(tmp_path / "project")
    _write(folder)
    words = f"target={TARGET}", f"model={_NAME}"
    scons_real.build_with_tree(folder, *words)
    stages = folder / "build" / ".stages" / TARGET / _NAME
    source = (stages / "objects" / f"{_NAME}.cu").read_text(encoding="utf-8")
    plan = double.read_plan(stages)
    labels = [{step["label"] for step in bucket["steps"]} for bucket in plan["buckets"]]
    assert any("lstm" in names for names in labels) and any("lstm" not in names for names in labels)
    kernels = double.kernels_on_cpu(source, plan, tmp_path / "kernels.so")
    environment = {
        "LD_LIBRARY_PATH": str(double.driver(tmp_path / "driver")),
        "KILN_FAKE_KERNELS": str(kernels),
    }
    printed = scons_real.build_with_tree(folder, *words, "test", **environment)
    assert "checks of repeated runs, guards and wrong arguments ok" in printed
    assert load_target(TARGET).cuda is not None


def test_gates_of_integers(tmp_path: Path) -> None:
    """All 65536 gates, by code in which each value is computed once: within 13 steps of 2^-15."""
    x = np.arange(-(1 << 15), 1 << 15).astype("int32").reshape(8, -1)
    table = gate_quotients.table()
    functions = {"sigmoid": gate_functions.sigmoid, "tanh": partial(gate_functions.tanh, bits=3)}
    expected = {"sigmoid": 1 / (1 + np.exp(-x / 4096)), "tanh": np.tanh(x / 4096)}
    launches = {}
    for name, function in functions.items():
        given = te.placeholder(x.shape, "int32", "x")
        entries = te.placeholder(table.shape, "int16", "entries")
        made = te.create_prim_func([given, entries, function(given, entries)])
        module = shared_elements(tvm.IRModule({name: made}))
        launches[name] = dlight.lower(module[name], dlight.tvm_target(CUDA))
    kernels = Kernels(launches, CUDA, tmp_path)
    for name in functions:
        got = kernels.run(name, [x, table], x.shape)
        assert np.abs(got - expected[name] * (1 << 15)).max() < 13, name
        assert len(kernels.text(f"{name}_0")) < 20_000
