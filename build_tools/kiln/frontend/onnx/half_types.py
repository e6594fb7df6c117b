"""Graphs of float16 and bfloat16 tensors as graphs that compute in float32.

All kernels, patterns and external libraries expect float32; processors without 16-bit arithmetic gain nothing
from 16-bit tensors. So weights and constants are widened, which is exact, and every tensor between two nodes
is float32. Inputs and outputs keep their types: a Cast follows an input and precedes an output. Casts to
other types round as in the file (kiln.frontend.onnx.half_casts). With `precision: fp16`, GPUs narrow weights
and tensors again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kiln.frontend.onnx.attributes import graphs_in
from kiln.frontend.onnx.half_casts import HALVES, round_before, rounding_casts
from kiln.onnx_domains import NARROW

_TYPE_ATTRIBUTES = frozenset(("to", "dtype", "output_dtype", "softmax_precision"))


def compute_in_float32(model: onnx.ModelProto) -> dict[str, str]:
    """Replace float16 and bfloat16 by float32 in the whole graph, except in its inputs and outputs, in place.

    The functions of the model must have been inlined. Returns, by name of each 16-bit input and output, the
    name of the float32 tensor that replaces it.
    """
    if not half_types(model):
        return {}
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights and _is_half(value)]
    input_names = {value.name for value in graph.input}
    outputs = [value for value in graph.output if _is_half(value) and value.name not in input_names - weights]
    rounding = rounding_casts(model)
    del graph.value_info[:]
    names_in_use = (
        {name for node in graph.node for name in (*node.input, *node.output)} | input_names | weights
    )
    renamed = {
        value.name: _unused_name(f"{value.name}.float32", names_in_use) for value in (*inputs, *outputs)
    }
    _widen(graph, renamed)
    round_before(rounding)
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for value in graph.input:
        if value.name in weights:
            value.type.tensor_type.elem_type = _float32_for(value.type.tensor_type.elem_type)
            value.name = renamed.get(value.name, value.name)
    nodes = [*graph.node]
    del graph.node[:]
    graph.node.extend(
        _widened(value.name, renamed[value.name], value.type.tensor_type.elem_type) for value in inputs
    )
    graph.node.extend(nodes)
    graph.node.extend(
        _narrowed(renamed[value.name], value.name, value.type.tensor_type.elem_type) for value in outputs
    )
    for value in (*inputs, *outputs):
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.UINT16
    if any(node.domain == NARROW for node in graph.node):
        model.opset_import.append(helper.make_opsetid(NARROW, 1))
    return renamed


def _widened(source: str, target: str, kind: int) -> onnx.NodeProto:
    """The node that makes a tensor of a 16-bit type float32; TVM compiles no bfloat16 for CPUs."""
    if kind == TensorProto.BFLOAT16:
        return helper.make_node("Decode", [source], [target], f"{source}.widen", domain=NARROW, of=kind)
    return helper.make_node("Cast", [source], [target], f"{source}.widen", to=TensorProto.FLOAT)


def _narrowed(source: str, target: str, kind: int) -> onnx.NodeProto:
    """The node that makes a float32 tensor one of the 16-bit type `kind`."""
    if kind == TensorProto.BFLOAT16:
        return helper.make_node("Encode", [source], [target], f"{target}.narrow", domain=NARROW, to=kind)
    return helper.make_node("Cast", [source], [target], f"{target}.narrow", to=kind)


def half_types(model: onnx.ModelProto) -> list[str]:
    """The 16-bit float types (fp16, bf16) of weights, constants, inputs, outputs or casts; sorted."""
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    for graph in (model.graph, *_nested_graphs(model.graph)):
        kinds |= {tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute:
                kinds |= {tensor.data_type for tensor in (attribute.t, *attribute.tensors)}
                if attribute.name in _TYPE_ATTRIBUTES:
                    kinds.add(attribute.i)
    return sorted(HALVES[kind] for kind in kinds & HALVES.keys())


def _nested_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """All graphs nested in the attributes of a graph's nodes."""
    for node in graph.node:
        for inner in graphs_in(node):
            yield inner
            yield from _nested_graphs(inner)


def _widen(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    """Widen weights, constants and type attributes of a graph and its nested graphs; rename tensors."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = renamed.get(name, name)
        for attribute in node.attribute:
            for tensor in (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors:
                _widen_tensor(tensor)
            if attribute.HasField("sparse_tensor"):
                _widen_tensor(attribute.sparse_tensor.values)
            if attribute.name in _TYPE_ATTRIBUTES:
                attribute.i = _float32_for(attribute.i)
        for inner in graphs_in(node):
            _widen(inner, renamed)
            del inner.value_info[:]
            for value in (*inner.input, *inner.output):
                _widen_type(value.type)
                value.name = renamed.get(value.name, value.name)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALVES:
        value = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def _widen_type(kind: onnx.TypeProto) -> None:
    """Make 16-bit floats float32 in the type of a tensor, a sequence of tensors or an optional value."""
    if kind.HasField("sequence_type") or kind.HasField("optional_type"):
        _widen_type((kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type).elem_type)
    elif kind.tensor_type.elem_type in HALVES:  # a value without a type must not get one that is undefined
        kind.tensor_type.elem_type = TensorProto.FLOAT


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in HALVES


def _float32_for(kind: int) -> int:
    return int(TensorProto.FLOAT) if kind in HALVES else kind


def _unused_name(name: str, names_in_use: set[str]) -> str:
    while name in names_in_use:
        name += "_"
    names_in_use.add(name)
    return name
