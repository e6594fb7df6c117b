"""ONNX models without the elements of their large weights, for what only reads types and sizes.

ONNX's checker and its inference take a model as bytes and give it back as bytes. With its weights, these are
four more copies of a model in memory, and most of the time.
"""

from __future__ import annotations

import onnx
from google.protobuf.message import Message

_LARGE = 1 << 16  # elements
_SIZES = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)  # types of sizes, whose values inference reads


def without_large_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` whose graph's large weights have a name, a type and sizes, and no elements."""
    result = onnx.ModelProto()
    _copy_fields(model, result, "graph")
    _copy_fields(model.graph, result.graph, "initializer")
    for tensor in model.graph.initializer:
        if is_large(tensor):
            result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        else:
            result.graph.initializer.add().CopyFrom(tensor)
    return result


def large_weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with inputs in place of its graph's large weights."""
    result = without_large_weights(model)
    large = {tensor.name: tensor for tensor in model.graph.initializer if is_large(tensor)}
    small = [tensor for tensor in result.graph.initializer if tensor.name not in large]
    del result.graph.initializer[:]
    result.graph.initializer.extend(small)
    inputs = {value.name for value in result.graph.input}
    for name, tensor in large.items():
        if name not in inputs:
            value = onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            result.graph.input.append(value)
    return result


def take_types(model: onnx.ModelProto, typed: onnx.ModelProto) -> None:
    """Give `model` all that `typed` declares, a copy of it without large weights with more types."""
    for field in model.graph.DESCRIPTOR.fields:
        if field.name != "initializer":
            model.graph.ClearField(field.name)
    _copy_fields(typed.graph, model.graph, "initializer")
    del model.functions[:]
    model.functions.extend(typed.functions)


def is_large(tensor: onnx.TensorProto) -> bool:
    """Whether a weight is large, and none of the values that rules of inference read, such as sizes."""
    elements = 1
    for size in tensor.dims:
        elements *= size
    return elements >= _LARGE and (len(tensor.dims) > 1 or tensor.data_type not in _SIZES)


def _copy_fields(message: Message, copy: Message, left_out: str) -> None:
    """Set all fields of `copy`, which is empty but for `left_out`, to those of `message` but `left_out`."""
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
