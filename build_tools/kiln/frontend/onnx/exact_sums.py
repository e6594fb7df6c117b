"""Products of uint8 by int8, rewritten so that ONNX Runtime's sums are exact on every CPU.

On x86 CPUs without VNNI, ONNX Runtime 1.31 adds two products of uint8 and int8 in 16 bits, and saturates: a
MatMulInteger of 8 terms is off by up to 32512. Its kernels for other types are exact. The second operand of
such a product becomes uint8 here, with 128 added to it and to its zero point, which leaves the product as it
is. In ConvInteger the weights are the first operand, and the data the second.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.frontend.onnx.attributes import graphs_in, set_nodes

_OFFSET = 128


@dataclass(frozen=True)
class _IntegerProduct:
    """Positions of an operator's inputs: second operands of products, and the first one, with zero points.

    `first`: None where the operator quantises it to uint8 itself.
    """

    second: tuple[tuple[int, int], ...]
    first: int | None = 0
    first_point: int | None = None


_PRODUCTS = {
    "MatMulInteger": _IntegerProduct(((1, 3),), first_point=2),
    "ConvInteger": _IntegerProduct(((0, 2),), first=1, first_point=3),
    "QLinearMatMul": _IntegerProduct(((3, 5),), first_point=2),
    "QLinearConv": _IntegerProduct(((3, 5),), first_point=2),
    "QGemm": _IntegerProduct(((3, 5),), first_point=2),
    "MatMulIntegerToFloat": _IntegerProduct(((1, 5),), first_point=4),
    "QAttention": _IntegerProduct(((1, 7),), first_point=6),
    "DynamicQuantizeMatMul": _IntegerProduct(((1, 3),), first=None),
    "DynamicQuantizeLSTM": _IntegerProduct(((1, 9), (2, 11)), first=None),
}


def may_saturate(model: str | bytes) -> bool:
    """Whether a file or its content names one of the operators: a search of its bytes, without parsing."""
    names = [name.encode() for name in _PRODUCTS]
    if isinstance(model, bytes):
        return any(name in model for name in names)
    with Path(model).open("rb") as file:
        if not file.read(1):  # which mmap refuses
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in names)


def make_exact(model: onnx.ModelProto) -> bool:
    """Rewrite the products of uint8 by int8 in the graphs of `model`; whether there were any.

    A product whose operands have types that cannot be told stays as it is.
    """
    if not any(node.op_type in _PRODUCTS for graph in _nested(model.graph) for node in graph.node):
        return False
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # of a wrong model, which the caller's session will name; of one of 2 GiB and more
        inferred = model
    types: dict[str, int] = {}  # a name has one type in a model: inner graphs hide none of the outer ones
    for graph in _nested(inferred.graph):
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            types[value.name] = value.type.tensor_type.elem_type
    graphs = enumerate([*_nested(model.graph)][::-1])  # inner ones first: nodes are replaced by their copies
    changed = [_Rewriting(graph, types, f"unsigned{number}").run() for number, graph in graphs]
    return any(changed)


def _nested(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the graphs in its nodes."""
    yield graph
    for node in graph.node:
        for inner in graphs_in(node):
            yield from _nested(inner)


@dataclass
class _Rewriting:
    """The rewriting of a graph.

    `types`: element types by the names of tensors; 0 or missing: unknown. `suffix`: of new names, for this
    graph alone.
    """

    graph: onnx.GraphProto
    types: dict[str, int]
    suffix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    raised: dict[str, str] = field(default_factory=dict)  # names of tensors, and of those that are 128 more

    def run(self) -> bool:
        """Rewrite the products; whether there were any."""
        inputs = {value.name for value in self.graph.input}  # which may replace an initialiser
        self.stored = {each.name: each for each in self.graph.initializer if each.name not in inputs}
        for node in self.graph.node:
            if node.op_type in _PRODUCTS:
                self._rewrite(node, _PRODUCTS[node.op_type])
            self.nodes.append(node)
        if self.raised:
            set_nodes(self.graph, self.nodes)
            self._remove_unused()
        return bool(self.raised)

    def _remove_unused(self) -> None:
        """Remove the initialisers that no node reads any more, of which ONNX Runtime would warn."""
        used = {name for graph in _nested(self.graph) for node in graph.node for name in node.input}
        used |= {value.name for value in self.graph.output}
        for name in self.raised.keys() - used:
            if name in self.stored:
                self.graph.initializer.remove(self.stored[name])

    def _rewrite(self, node: onnx.NodeProto, product: _IntegerProduct) -> None:
        types = [TensorProto.UINT8] if product.first is None else []
        for position in (product.first, product.first_point):
            if position is not None:
                types.append(self._type(node, position))
        if TensorProto.UINT8 not in types:
            return
        for second, point in product.second:
            if TensorProto.INT8 not in (self._type(node, second), self._type(node, point)):
                continue
            node.input.extend([""] * (point + 1 - len(node.input)))
            node.input[second] = self._raise(node.input[second])
            node.input[point] = self._raise(node.input[point]) if node.input[point] else self._constant()

    def _type(self, node: onnx.NodeProto, position: int) -> int:
        name = node.input[position] if position < len(node.input) else ""
        return self.types.get(name, int(TensorProto.UNDEFINED))

    def _constant(self) -> str:
        """The name of the zero point 128, which takes the place of an absent one."""
        name = f"kiln/zero_point/{self.suffix}"
        if name not in self.raised:
            self.raised[name] = name
            self.graph.initializer.append(numpy_helper.from_array(np.array(_OFFSET, np.uint8), name))
        return name

    def _raise(self, name: str) -> str:
        """The name of the uint8 tensor whose elements are 128 more than those of int8 tensor `name`."""
        if name in self.raised:
            return self.raised[name]
        result = self.raised[name] = f"{name}/{self.suffix}"
        tensor = self.stored.get(name)
        if tensor is not None and tensor.data_location != TensorProto.EXTERNAL:
            values = numpy_helper.to_array(tensor).view(np.uint8) ^ np.uint8(_OFFSET)
            self.graph.initializer.append(numpy_helper.from_array(values, result))
            return result
        wide, sums, offset = f"{result}/int32", f"{result}/sums", f"{result}/offset"
        self.graph.initializer.append(numpy_helper.from_array(np.array(_OFFSET, np.int32), offset))
        self.nodes += [
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, offset], [sums]),
            helper.make_node("Cast", [sums], [result], to=TensorProto.UINT8),
        ]
        return result
