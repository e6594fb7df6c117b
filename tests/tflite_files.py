"""Writes small TFLite files for tests, with the schema that ai-edge-litert carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema
from kiln.frontend.tflite.files import packed

_TYPES = {
    name.lower(): code
    for name, code in vars(schema.TensorType).items()
    if name[0].isupper() and name != "STRING"
}


@dataclass
class Tensor:
    """A tensor of a TFLite file.

    name: None for a tensor without one. scale: one number, or one per channel of `axis`. data: values of a
    constant. signature: the shape with -1 for dynamic axes; None if no axis is dynamic. variable: whether
    LiteRT keeps the values between runs.
    """

    name: str | None
    shape: Sequence[int]
    dtype: str = "float32"
    scale: float | Sequence[float] | npt.NDArray[np.float64] | None = None
    zero_point: int = 0
    axis: int = 0
    data: npt.NDArray[Any] | None = None
    signature: Sequence[int] | None = None
    variable: bool = False


@dataclass
class Node:
    """An operator: `code` is builtin, or the name of a custom one, whose `options` are bytes.

    intermediates: tensors of which only the quantisation is read. version: 0 for 2 where the graph has int8,
    else 1.
    """

    code: int | str
    options: Any
    inputs: Sequence[int]
    outputs: Sequence[int]
    intermediates: Sequence[int] = ()
    version: int = 0


def write(
    path: Path,
    tensors: Sequence[Tensor],
    code: int | str,
    options: Any,
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Path:
    """Write a file with one operator over `tensors`; a `code` that is text is the name of a custom operator.

    `options`: the operator's options, bytes for a custom one. The graph's inputs are the operator's inputs
    that are not constant.
    """
    graph_inputs = [index for index in inputs if index >= 0 and tensors[index].data is None]
    return write_graph(path, tensors, [Node(code, options, inputs, outputs)], graph_inputs, outputs)


def write_graph(
    path: Path,
    tensors: Sequence[Tensor],
    nodes: Sequence[Node],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Path:
    """Write a file with a graph of `nodes`, in their order; `inputs` and `outputs` are the graph's."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version = 3
    model.buffers, model.operatorCodes = [schema.BufferT()], []
    graph.tensors = [_tensor(model, tensor) for tensor in tensors]
    graph.inputs, graph.outputs = list(inputs), list(outputs)
    has_int8 = any(tensor.dtype == "int8" for tensor in tensors)
    graph.operators = [_operator(model, node, node.version or (2 if has_int8 else 1)) for node in nodes]
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def _operator(model: Any, node: Node, version: int) -> Any:
    opcode, operator = schema.OperatorCodeT(), schema.OperatorT()
    if isinstance(node.code, str):
        opcode.builtinCode, opcode.customCode = schema.BuiltinOperator.CUSTOM, node.code
    else:
        opcode.builtinCode = node.code
    opcode.deprecatedBuiltinCode = min(int(opcode.builtinCode), 127)
    opcode.version = version
    operator.opcodeIndex = len(model.operatorCodes)
    model.operatorCodes.append(opcode)
    operator.inputs, operator.outputs = list(node.inputs), list(node.outputs)
    operator.intermediates = list(node.intermediates) or None
    options = node.options
    if isinstance(options, bytes):
        operator.customOptions = np.frombuffer(options, np.uint8)
    elif options is not None:
        set_options(operator, options)
    return operator


def set_options(operator: Any, options: Any) -> None:
    """Give an operator its options, in the one of the schema's two unions that has their table."""
    kind = type(options).__name__.removesuffix("T")
    if hasattr(schema.BuiltinOptions, kind):
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        operator.builtinOptions = options
    else:
        operator.builtinOptions2Type = getattr(schema.BuiltinOptions2, kind)
        operator.builtinOptions2 = options


def _stored(tensor: Tensor) -> npt.NDArray[Any]:
    """The data of a constant; of int4 and int2 several elements in a byte, from the lowest bits on."""
    data = np.ascontiguousarray(tensor.data)
    bits = {"int4": 4, "uint4": 4, "int2": 2}.get(tensor.dtype)
    if bits is None:
        return data
    flat = data.reshape(-1).astype(np.uint8) & (2**bits - 1)
    flat = np.pad(flat, (0, -flat.size % (8 // bits))).reshape(-1, 8 // bits)
    return np.bitwise_or.reduce(flat << np.arange(0, 8, bits, dtype=np.uint8), axis=1).astype(np.uint8)


def _tensor(model: Any, tensor: Tensor) -> Any:
    result = schema.TensorT()
    result.name, result.shape, result.type = tensor.name, list(tensor.shape), _TYPES[tensor.dtype]
    result.isVariable = tensor.variable
    if tensor.signature is not None:
        result.shapeSignature = list(tensor.signature)
    if tensor.scale is not None:
        quant = schema.QuantizationParametersT()
        scales = np.atleast_1d(np.asarray(tensor.scale, np.float32))
        quant.scale, quant.quantizedDimension = scales.tolist(), tensor.axis
        quant.zeroPoint = [tensor.zero_point] * len(scales)
        result.quantization = quant
    if tensor.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(_stored(tensor).tobytes(), np.uint8)
        model.buffers.append(buffer)
        result.buffer = len(model.buffers) - 1
    return result


def pool(path: Path, signature: tuple[int, ...] | None = (-1, 6, 6, 3)) -> Path:
    """Windows of 3 x 3 with a stride of 2 over an image of 6 x 6, batch first; `signature`: -1 is dynamic."""
    options = schema.Pool2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, 2, 2
    options.filterHeight = options.filterWidth = 3
    result = None if signature is None else (-1, 3, 3, 3)
    tensors = [
        Tensor("x", (1, 6, 6, 3), signature=signature),
        Tensor("y", (1, 3, 3, 3), signature=result),
    ]
    return write(path, tensors, schema.BuiltinOperator.MAX_POOL_2D, options, [0], [1])


def flattened(path: Path, index: int) -> Path:
    """The file with the elements of tensor `index` as a vector, its only output."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    graph, flat = model.subgraphs[0], schema.TensorT()
    flat.name, flat.shape, flat.type = "flat", [24], schema.TensorType.FLOAT32
    graph.tensors.append(flat)
    options, code, node = schema.ReshapeOptionsT(), schema.OperatorCodeT(), schema.OperatorT()
    options.newShape, code.builtinCode = [-1], schema.BuiltinOperator.RESHAPE
    model.operatorCodes.append(code)
    node.inputs, node.outputs = [index], [len(graph.tensors) - 1]
    node.opcodeIndex = len(model.operatorCodes) - 1
    set_options(node, options)
    graph.operators.append(node)
    graph.outputs = [len(graph.tensors) - 1]
    path.write_bytes(packed(model))
    return path
