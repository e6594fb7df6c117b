"""Types of all tensors of an ONNX graph, also behind operators that ONNX's own inference does not know.

ONNX infers types of its own operators only, and stops at the first other one. Here a node of the user's own
(kiln.operators) has the types that its shape rule returns, and one of another domain those of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.frontend.onnx.own_nodes import attributes_of, own_operators
from kiln.frontend.onnx.plain_session import plain_session
from kiln.frontend.onnx.schema_functions import domain_of
from kiln.operators.declaration import OwnTensor
from kiln.operators.registry import LoadedOperator, by_key, typed_attributes

_MOST_BYTES = 1 << 16  # of a constant that may be a size or an axis; a greater one is given by its type alone

Values = Mapping[str, onnx.ValueInfoProto]


def with_value_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` in whose value_info all tensors stand whose types can be inferred.

    Raises what onnx.shape_inference raises for a graph that is not valid.
    """
    result = onnx.shape_inference.infer_shapes(model, data_prop=True)
    tried: set[str] = set()
    while True:
        values = _values(result.graph)
        added = []
        for node in _untyped(result.graph, values):
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
        result = onnx.shape_inference.infer_shapes(result, data_prop=True)


def _values(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The tensors with a known element type and rank, by name."""
    given = [*graph.input, *graph.value_info, *graph.output]
    found = {
        value.name: value
        for value in given
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape")
    }
    for tensor in graph.initializer:
        found[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    return found


def _untyped(graph: onnx.GraphProto, values: Values) -> Iterator[onnx.NodeProto]:
    """Nodes of which all inputs have types, and an output has none."""
    for node in graph.node:
        names = [name for name in node.output if name]
        typed = all(name in values for name in node.input if name)
        if typed and not all(name in values for name in names):
            yield node


def _types_of(node: onnx.NodeProto, values: Values, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The types of a node's outputs; none where neither a shape rule nor ONNX Runtime knows them."""
    key = domain_of(node), node.op_type
    own = own_operators().get(key) or by_key().get(key)
    try:
        return _of_own(own, node, values, model) if own is not None else _of_runtime(node, values, model)
    except Exception:  # what is wrong with the node is said by the build, which names its file and place
        return []


def _of_own(
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
    made = loaded.call("result", loaded.operator.result, *map(tensor, node.input), **attributes)
    results = made if isinstance(made, (list, tuple)) else [made]
    return [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype)),
            [size if isinstance(size, int) else None for size in result.shape],
        )
        for name, result in zip(node.output, results, strict=False)
        if name
    ]


def _of_runtime(node: onnx.NodeProto, values: Values, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
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
            found.name,
            TensorProto.DataType.Value(found.type.removeprefix("tensor(").removesuffix(")").upper()),
            [size if isinstance(size, (int, str)) else None for size in found.shape],
        )
        for found in plain_session(alone.SerializeToString(), severity=4).get_outputs()
    ]
