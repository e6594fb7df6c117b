"""TFLite → Relax: layout stays NHWC, quantised ops become quantize/dequantize around float ops."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tflite
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.errors import KilnError
from kiln.frontend.importer import Imported, finish, looks_like_text, one_line, read_model, result_types
from kiln.frontend.interface import Port
from kiln.frontend.options import ImportOptions
from kiln.frontend.quiet import convert_quietly
from kiln.frontend.tflite_ops import Converter

_IDENTIFIER = b"TFL3"
# What the flatbuffers reader raises when an offset or a length points outside the file.
_DAMAGED = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    AssertionError,
    UnicodeDecodeError,
)


def load(path: Path, options: ImportOptions) -> Imported:
    """Import a TFLite file. Raises KilnError as `kiln.frontend.importer.import_model` says."""
    model = read(path)
    graph = model.Subgraphs(0)
    inputs = [_port(graph, index) for index in graph.InputsAsNumpy()]
    _check_shapes(path, inputs, options)

    module = convert_quietly(lambda: _convert(path, model))
    module = finish(module, "tflite", len(inputs))
    declared = [_port(graph, index) for index in graph.OutputsAsNumpy()]
    outputs = [
        Port(port.name, dtype, shape, None, port.quant)
        for port, (dtype, shape) in zip(declared, result_types(module), strict=True)
    ]
    return Imported(module, inputs, outputs)


def _convert(path: Path, model: Any) -> Any:
    try:
        return tflite_frontend.from_tflite(model, op_converter=lambda *given: Converter(path, *given))
    except KilnError:
        raise
    except Exception as error:  # converters raise every kind of exception
        raise KilnError(f"{path}: cannot import the TFLite graph: {one_line(error)}") from error


def read(path: Path) -> tflite.Model:
    """Parse and check a TFLite file. Raises KilnError when it is empty, truncated, text or not TFLite."""
    content = read_model(path)
    if looks_like_text(content):
        raise KilnError(f"{path}: not a TFLite model: the file is plain text")
    if content[4:8] != _IDENTIFIER:
        raise KilnError(
            f"{path}: not a TFLite model: bytes 4..7 are {content[4:8]!r}, expected {_IDENTIFIER!r}"
        )
    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        _walk(model)
    except _DAMAGED as error:
        raise KilnError(f"{path}: not a complete TFLite model: truncated or damaged") from error
    return model


def _walk(model: Any) -> None:
    """Touch every table of the file, so that damage shows here and not in the middle of the import."""
    sizes = []
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        data = buffer.DataAsNumpy()
        sizes.append(0 if isinstance(data, int) else data.size)
    if model.SubgraphsLength() < 1:
        raise ValueError("no graph")
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        for index in range(graph.TensorsLength()):
            tensor = graph.Tensors(index)
            (tensor.Name() or b"").decode()
            shape, held = tensor.ShapeAsNumpy(), sizes[tensor.Buffer()]
            if held and not isinstance(shape, int) and tensor.Sparsity() is None:
                wanted = _ITEM_BYTES.get(tensor.Type(), 0) * int(np.prod(shape, dtype=np.int64))
                if wanted > held:
                    raise ValueError("a tensor is larger than its buffer")
        for index in range(graph.OperatorsLength()):
            operator = graph.Operators(index)
            model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode()
            operator.InputsAsNumpy(), operator.OutputsAsNumpy()


_DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.BOOL: "bool",
}
_ITEM_BYTES = {code: np.dtype(name).itemsize for code, name in _DTYPES.items()}


def _port(graph: Any, index: int) -> Port:
    tensor = graph.Tensors(index)
    name = tflite_frontend.get_tensor_name(graph, index)
    dtype = _DTYPES.get(tensor.Type())
    if dtype is None:
        raise KilnError(f"tensor '{name}' has a type that cannot be imported (TFLite type {tensor.Type()})")
    shape = tensor.ShapeAsNumpy()
    sizes = () if isinstance(shape, int) else tuple(int(size) for size in shape)
    quant = tensor.Quantization()
    pair = None
    if quant is not None and quant.ScaleLength() == 1:
        pair = (float(quant.Scale(0)), int(quant.ZeroPoint(0)) if quant.ZeroPointLength() else 0)
    return Port(name, dtype, sizes, "NHWC" if len(sizes) == 4 else None, pair)


def _check_shapes(path: Path, inputs: list[Port], options: ImportOptions) -> None:
    """TFLite files hold a size for every axis, open ones too; a configuration may only repeat it."""
    found = {port.name: port.shape for port in inputs}
    for name, given in options.shapes.items():
        if name not in found:
            raise KilnError(f"{path}: inputs.{name}: the model has no such input, it has: {', '.join(found)}")
        sizes = tuple(options.dims[size].minimum if isinstance(size, str) else size for size in given)
        if sizes != found[name]:
            raise KilnError(
                f"{path}: input '{name}' is {list(found[name])} in the file, but inputs.{name}.shape "
                f"says {list(given)}; a TFLite file's sizes cannot be changed"
            )
