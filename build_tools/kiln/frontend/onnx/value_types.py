"""Types of all tensors of an ONNX graph, also after operators that ONNX's own inference does not know.

ONNX infers types of its own operators only, and stops at the first operator of another domain. Here the
user's own operators (kiln.operators) have the types that their shape rules return, and other operators the
types that ONNX Runtime infers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.frontend.onnx.inference import infer_shapes
from kiln.frontend.onnx.own_nodes import attributes_of, own_operators
from kiln.frontend.onnx.plain_session import plain_session
from kiln.onnx_domains import domain_of
from kiln.operators.declaration import OwnTensor
from kiln.operators.registry import LoadedOperator, by_key, typed_attributes

_MOST_BYTES = 1 << 16  # of a constant that may be a size or an axis; a greater one is given by its type alone

Values = Mapping[str, onnx.ValueInfoProto]


def with_value_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` whose value_info has all tensors whose types can be inferred.

    Raises the exceptions of onnx.shape_inference for a graph that is not valid.
    """
    result = infer_shapes(model, data_prop=True)
    tried: set[str] = set()
    while True:
        values = _values(result.graph)
        added = []
        for node in _nodes_without_types(result.graph, values):
            if node.output[0] not in tried:
                tried.add(node.output[0])
                added += _types_of(node, values, result)
        if not added:
            return result
        outputs = {value.name: value for value in result.graph.output}
        for value in added:
            if value.name in outputs:  # declared without a type
                outputs[value.name].CopyFrom(value)
            else:
                result.graph.value_info.append(value)
        result = infer_shapes(result, data_prop=True)


def _values(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The tensors with a known element type and rank, by name."""
    declared = [*graph.input, *graph.value_info, *graph.output]
    by_name = {
        value.name: value
        for value in declared
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape")
    }
    for tensor in graph.initializer:
        by_name[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    return by_name


def _nodes_without_types(graph: onnx.GraphProto, values: Values) -> Iterator[onnx.NodeProto]:
    """Nodes whose inputs all have types, with an output that has none."""
    for node in graph.node:
        names = [name for name in node.output if name]
        typed = all(name in values for name in node.input if name)
        if typed and not all(name in values for name in names):
            yield node


def _types_of(node: onnx.NodeProto, values: Values, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The types of a node's outputs; none where neither a shape rule nor ONNX Runtime knows them."""
    key = domain_of(node), node.op_type
    user_operator = own_operators().get(key) or by_key().get(key)
    try:
        return (
            _types_by_shape_rule(user_operator, node, values, model)
            if user_operator is not None
            else _types_by_runtime(node, values, model)
        )
    except Exception:  # the build reports the node's fault, with the file and the node's name
        return []


def _types_by_shape_rule(
    loaded: LoadedOperator, node: onnx.NodeProto, values: Values, model: onnx.ModelProto
) -> list[onnx.ValueInfoProto]:
    from tvm import tirx

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    sizes: dict[str, tirx.Var] = {}

    def tensor(name: str) -> OwnTensor | None:
        if not name:
            return None
        kind = values[name].type.tensor_type
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value")
            else sizes.setdefault(dim.dim_param or f"{name}_{axis}", tirx.Var(f"size_{axis}", "int64"))
            for axis, dim in enumerate(kind.shape.dim)
        )  # fmt: skip
        array = numpy_helper.to_array(constants[name]) if name in constants else None
        return OwnTensor(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, array)

    attributes = typed_attributes(loaded, attributes_of(node))
    returned = loaded.call("result", loaded.operator.result, *map(tensor, node.input), **attributes)
    results = returned if isinstance(returned, (list, tuple)) else [returned]
    return [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype)),
            [size if isinstance(size, int) else None for size in result.shape],
        )
        for name, result in zip(node.output, results, strict=False)
        if name
    ]


def _types_by_runtime(
    node: onnx.NodeProto, values: Values, model: onnx.ModelProto
) -> list[onnx.ValueInfoProto]:
    """The types that ONNX Runtime gives the outputs of a model of this node alone."""
    read = dict.fromkeys(name for name in node.input if name)
    constants = [
        tensor
        for tensor in model.graph.initializer
        if tensor.name in read and tensor.ByteSize() <= _MOST_BYTES
    ]
    stored = {tensor.name for tensor in constants}
    inputs = [values[name] for name in read if name not in stored]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs, constants)
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [
        helper.make_tensor_value_info(
            output.name,
            TensorProto.DataType.Value(output.type.removeprefix("tensor(").removesuffix(")").upper()),
            [size if isinstance(size, (int, str)) else None for size in output.shape],
        )
        for output in plain_session(alone.SerializeToString(), severity=4).get_outputs()
    ]
