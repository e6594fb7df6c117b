"""A random ONNX graph under construction: its values with type, shape, and bounds of their contents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .drawing import BOOL, FLOAT, INT32, INT64, Array, Drawing

OPSET = 20
MOST = 1e3  # of a magnitude: beyond, rounding of functions shows


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    most: a bound of its magnitude. exact: computed without rounding, so that a comparison of it cannot
    depend on how others round.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    most: float
    exact: bool = True

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=int))


class Graph(Drawing):
    """Nodes, constants and inputs so far; every choice is `choice`'s, which its seed determines."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.values: list[Value] = []
        self.inputs: list[tuple[Value, Array]] = []
        self.nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, shape: tuple[int, ...], dtype: str) -> Value:
        """A new input of the graph."""
        most = 2.0 if dtype == FLOAT else 1.0 if dtype == BOOL else 9.0
        value = Value(self.name("x"), dtype, shape, most)
        self.inputs.append((value, self.array(shape, dtype, most)))
        self.values.append(value)
        return value

    def constant(self, content: Any, dtype: str | None = None) -> Value:
        """A constant of the file."""
        array = np.asarray(content, dtype=dtype)
        name = self.name("c")
        self._constants.append(numpy_helper.from_array(array, name))
        most = float(np.abs(array.astype("float64")).max(initial=0.0))
        return Value(name, str(array.dtype), array.shape, most)

    def operand(self, shape: tuple[int, ...], dtype: str, most: float = 2.0) -> Value:
        """A value of a shape: one of the graph, a constant or a new input."""
        candidates = [v for v in self.values if v.shape == shape and v.dtype == dtype and v.most <= most]
        how = self.choice.random()
        if candidates and how < 0.5:
            return self.choice.choice(candidates)
        if how < 0.9:
            return self.constant(self.array(shape, dtype, most))
        return self.input(shape, dtype) if most >= 2.0 else self.constant(self.array(shape, dtype, most))

    def add(
        self,
        op: str,
        inputs: list[Value | None],
        results: list[tuple[str, tuple[int, ...], float, bool]],
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Append a node; `results`: data type, shape, greatest magnitude and exactness of each output."""
        outputs = [Value(self.name("t"), *result) for result in results]
        outputs = [v if v.dtype != FLOAT or v.most <= MOST else self._tamed(v) for v in outputs]
        names = [value.name if value is not None else "" for value in inputs]
        while names and not names[-1]:
            names.pop()
        inner = [v.name.removesuffix("_") + "_raw" if v.name.endswith("_") else v.name for v in outputs]
        self.nodes.append(helper.make_node(op, names, inner, domain=domain, **attributes))
        for raw, value in zip(inner, outputs, strict=True):
            if raw != value.name:
                self.nodes.append(helper.make_node("Tanh", [raw], [value.name]))
        self.values += outputs
        return outputs

    @staticmethod
    def _tamed(value: Value) -> Value:
        """A value that a tanh after it keeps small."""
        return replace(value, name=value.name + "_", most=1.0, exact=False)

    def model(self) -> onnx.ModelProto:
        """The file: outputs are the values that nothing reads."""
        read = {name for node in self.nodes for name in node.input}
        computed = {name for node in self.nodes for name in node.output}
        ends = [v for v in self.values if v.name in computed and v.name not in read]
        used = [(value, array) for value, array in self.inputs if value.name in read]
        self.inputs = used
        graph = helper.make_graph(
            self.nodes,
            "random",
            [self._info(value) for value, _ in used],
            [self._info(value) for value in ends],
            [constant for constant in self._constants if constant.name in read],
        )
        made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        onnx.checker.check_model(made_model)
        return made_model

    @staticmethod
    def _info(value: Value) -> onnx.ValueInfoProto:
        types = {FLOAT: TensorProto.FLOAT, INT32: TensorProto.INT32, INT64: TensorProto.INT64}
        return helper.make_tensor_value_info(
            value.name, types.get(value.dtype, TensorProto.BOOL), value.shape
        )
