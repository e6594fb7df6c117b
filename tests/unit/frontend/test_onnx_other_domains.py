"""Operators of ai.onnx.ml and ai.onnx.preview.training against ONNX Runtime and ONNX's evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from onnx import TensorProto, helper

from .test_onnx_ops import check, normal

ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])


def write(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Path:
    sizes = ["rows", "columns"]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3), helper.make_opsetid(TRAINING, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def ml(op: str, result: str, source: str = "x", **attributes: Any) -> Any:
    return helper.make_node(op, [source], [result], f"{op} of {result}", domain=ML, **attributes)


def test_preparation_and_linear_models(tmp_path: Path) -> None:
    nodes = [
        ml("Scaler", "s", offset=[1.0, -2.0, 0.5, 0.0], scale=[2.0, 1.0, 0.25, 3.0]),
        ml("Scaler", "t", offset=[1.0], scale=[2.0]),
        ml("Binarizer", "b", threshold=0.5),
        *(ml("Normalizer", f"n{kind}", norm=kind) for kind in ("MAX", "L1", "L2")),
        ml(
            "LinearRegressor",
            "r",
            coefficients=[float(n) for n in range(8)],
            intercepts=[1.0, -1.0],
            targets=2,
        ),
    ]
    outputs = ["s", "t", "b", "nMAX", "nL1", "nL2", "r"]
    check(write(tmp_path / "m.onnx", nodes, [X], outputs), normal(3, 4))


@pytest.mark.slow
def test_optimisers_at_the_first_and_later_updates(tmp_path: Path) -> None:
    names = ["r", "t", "x", "y", "gx", "gy", "vx", "vy", "hx", "hy"]
    kinds = {"r": (TensorProto.FLOAT, []), "t": (TensorProto.INT64, [])}
    tensor = TensorProto.FLOAT, [2, 3]
    inputs = [helper.make_tensor_value_info(name, *kinds.get(name, tensor)) for name in names]
    asked = {
        "Adam": {"alpha": 0.8, "beta": 0.9, "epsilon": 1e-3, "norm_coefficient_post": 0.02},
        "Adagrad": {"decay_factor": 0.1, "epsilon": 1e-2},
        "Momentum standard": {"alpha": 0.9, "beta": 0.5, "mode": "standard"},
        "Momentum nesterov": {"alpha": 0.9, "beta": 0.5, "mode": "nesterov"},
    }
    nodes = []
    for name, attributes in asked.items():
        given_names = names if name == "Adam" else names[:8]
        made = [f"{name.split()[-1]}{index}" for index in range(len(given_names) - 4)]
        attributes |= {"norm_coefficient": 0.01}
        nodes.append(
            helper.make_node(name.split()[0], given_names, made, name, domain=TRAINING, **attributes)
        )
    outputs = [name for node in nodes for name in node.output]
    path = write(tmp_path / "m.onnx", nodes, inputs, outputs)
    for count in (0, 1, 7):
        tensors = [np.abs(normal(2, 3) + n) for n in range(8)]
        check(path, np.array(0.1, "float32"), np.array(count, "int64"), *tensors)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (ml("Scaler", "y", offset=[1.0, 2.0], scale=[1.0]), "'offset' has 2 numbers, allowed: 1"),
        (ml("LinearRegressor", "y", coefficients=[1.0] * 5), "'coefficients' has 5 numbers, allowed: 4"),
        (
            ml("LinearRegressor", "y", coefficients=[1.0] * 4, post_transform="PROBIT"),
            "'post_transform' is",
        ),
    ],
)
def test_refusals(tmp_path: Path, node: Any, told: str) -> None:
    path = write(tmp_path / "m.onnx", [node], [X], ["y"])
    with pytest.raises(KilnError, match=f"node {node.op_type} of y.*{told}"):
        import_model(path, ImportOptions("m"))
