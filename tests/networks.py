"""Small ONNX networks for tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shapes = Mapping[str, Sequence[int | str]]


def normal(seed: int, scale: float, **shapes: Sequence[int]) -> dict[str, Array]:
    """Weights of these shapes, normally distributed."""
    draw = np.random.default_rng(seed)
    return {name: draw.normal(0, scale, shape).astype("float32") for name, shape in shapes.items()}


def operators_of(path: Path) -> list[str]:
    """The operators of an ONNX file, in the order of its nodes."""
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def save_network(
    path: Path, nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Shapes,
    weights: Mapping[str, Array], int64: Collection[str] = (),
) -> Path:  # fmt: skip
    """Write an ONNX file of opset 17. Inputs and outputs are float32 but for those named in `int64`."""

    def ports(shapes: Shapes) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name in int64 else TensorProto.FLOAT, shape
            )
            for name, shape in shapes.items()
        ]

    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, path.stem, ports(inputs), ports(outputs), tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_two_inputs(path: Path) -> Path:
    """Write tanh(x w) + fixed: x of (batch, 7) with a dynamic batch, and an input `fixed` of (3,)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="dense"),
        helper.make_node("Tanh", ["a"], ["b"], name="tanh"),
        helper.make_node("Add", ["b", "fixed"], ["y"], name="sum"),
    ]
    shapes = {"x": ["batch", 7], "fixed": [3]}
    return save_network(path, nodes, shapes, {"y": ["batch", 3]}, normal(1, 0.5, w=(7, 3)))
