"""A model of one to three operators.

A case has a seed of its own, so that it stays the same when others are added.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper, shape_inference

Array = npt.NDArray[Any]
OPSET = 20


@dataclass
class Case:
    """A model and its inputs. `name`: kind and sizes, such as `matmul 1x1000x513`."""

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    last: str = ""  # the tensor that the last node writes

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(zlib.crc32(self.name.encode()))

    @property
    def kind(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]

    def input(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """Add a random input; return its name."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self._random.standard_normal(shape).astype(dtype)
        return name

    def weight(self, *shape: int, scale: float = 0.1) -> str:
        """Add random float32 weights; return their name."""
        return self.constant((self._random.standard_normal(shape) * scale).astype("float32"))

    def constant(self, value: Any, dtype: str | None = None) -> str:
        """Add a constant; return its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def indices(self, below: int, *shape: int) -> Array:
        """Random indices from 0 to `below` - 1."""
        return self._random.integers(0, below, shape)

    def node(self, operator: str, *operands: str, count: int = 1, **attributes: Any) -> str:
        """Add a node with `count` results, the case's outputs so far; return the name of the first."""
        results = [f"t{len(self.nodes)}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(operator, list(operands), results, **attributes))
        self.last = results[0]
        return results[0]

    def model(self) -> onnx.ModelProto:
        """The ONNX model: all results of the last node are outputs."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.nodes[-1].output]
        stored = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def sizes_text(*sizes: int) -> str:
    """Sizes with x between them."""
    return "x".join(map(str, sizes))
