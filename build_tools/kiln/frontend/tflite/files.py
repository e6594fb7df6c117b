"""Reads and writes TFLite files as objects of ai-edge-litert's schema, for passes that rewrite files."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import tflite

from kiln.arrays import Array
from kiln.errors import KilnError

# Exceptions of the flatbuffers reader for an offset or a length that points outside the file.
DAMAGED = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    OverflowError,
    AssertionError,
    UnicodeDecodeError,
)


def unpacked(path: Path, content: bytes) -> tuple[Any, Any]:
    """The schema and the model of a file. Raises KilnError for a damaged file."""
    from ai_edge_litert import schema_py_generated as schema

    try:
        return schema, schema.ModelT.InitFromPackedBuf(content, 0)
    except Exception as error:  # the reader raises exceptions of many types
        raise KilnError(f"{path}: not a complete TFLite model: truncated or damaged") from error


def indices(vector: Any) -> list[int]:
    """A list of indices; empty where the file leaves it out."""
    return [] if vector is None else [int(index) for index in vector]


def text_of(name: Any) -> str:
    """The name of a tensor as text."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def elements_of(interpreter: Any, index: int) -> Array:
    """The elements of a tensor of the first graph after a run; LiteRT refuses to read one that has none."""
    try:
        return np.asarray(interpreter.get_tensor(index))
    except ValueError:
        entry = next(one for one in interpreter.get_tensor_details() if one["index"] == index)
        if 0 not in entry["shape"]:
            raise
        return np.zeros(entry["shape"], entry["dtype"])


def packed(model: Any) -> bytes:
    """The content of the TFLite file of `model`."""
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def make_constant(schema: Any, model: Any, tensor: Any, values: Array) -> None:
    """Make `tensor` a constant with the elements of `values`; its shape and type stay."""
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    tensor.buffer = len(model.buffers)
    model.buffers.append(buffer)


class Kinds:
    """Operators, element types and constants of a model, by the names of the schema."""

    def __init__(self, schema: Any, model: Any) -> None:
        self._schema, self._model = schema, model
        self._names = {code: name for name, code in vars(schema.BuiltinOperator).items() if name[0].isupper()}
        self._types = {code: name for name, code in vars(schema.TensorType).items() if name[0].isupper()}

    def of(self, op: Any) -> str:
        """The name of an operator; empty for an operator that the schema does not have."""
        code = self._model.operatorCodes[op.opcodeIndex]
        return str(self._names.get(max(code.builtinCode, code.deprecatedBuiltinCode), ""))

    def refusal(self, path: Path, graph: Any, op: Any, text: str) -> KilnError:
        """The error of an operator of `graph` that cannot be imported, with the reason `text`."""
        outputs = indices(op.outputs)
        name = text_of(graph.tensors[outputs[0]].name) if outputs else "none"
        return KilnError(f"{path}: operators that cannot be imported: {self.of(op)} (output {name}): {text}")

    def dtype(self, tensor: Any) -> np.dtype[Any] | None:
        """The element type of a tensor; None for a type that NumPy does not have."""
        try:
            dtype: np.dtype[Any] = np.dtype(self.type_name(tensor))
            return dtype
        except TypeError:
            return None

    def type_name(self, tensor: Any) -> str:
        """The name of a tensor's element type, in lower case."""
        return str(self._types.get(tensor.type, tensor.type)).lower()

    def constant(self, tensor: Any) -> Array | None:
        """The array of a tensor that the file holds; None if it holds none, or one of no type of NumPy's."""
        data, dtype = self._model.buffers[tensor.buffer].data, self.dtype(tensor)
        if data is None or not len(data) or dtype is None:
            return None
        return np.frombuffer(bytes(bytearray(data)), dtype).reshape(indices(tensor.shape))

    def operator(self, name: str, inputs: list[int], output: int) -> Any:
        """A new builtin operator without options, which no graph has yet."""
        operator = self._schema.OperatorT()
        operator.opcodeIndex = self.code(getattr(self._schema.BuiltinOperator, name))
        operator.inputs, operator.outputs = inputs, [output]
        return operator

    def code(self, builtin: int) -> int:
        """The number of a builtin operator in the model's list, to which it is added if it is missing."""
        codes = self._model.operatorCodes
        for number, code in enumerate(codes):
            if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin:
                return number
        added = self._schema.OperatorCodeT()
        added.builtinCode, added.deprecatedBuiltinCode, added.version = builtin, min(builtin, 127), 1
        codes.append(added)
        return len(codes) - 1


def tensor_name(tensor: Any) -> str:
    """The name of a tensor of the package `tflite`, with replacements for bytes that are not UTF-8.

    Empty where the file gives none.
    """
    name: bytes = tensor.Name() or b""
    return name.decode(errors="replace")


def builtin_of(code: Any) -> int:
    """The number of the builtin operator of an OperatorCode of the package `tflite`.

    Files have it in `builtin_code`, in the older `deprecated_builtin_code` of 8 bits, or in both. For numbers
    below 127 the package reads the older field alone, which new writers leave out: every such operator would
    be 0, an ADD.
    """
    table = code._tab  # the package has no other way to the field
    table_offset = int(table.Offset(10))
    number = (
        int(table.Get(flatbuffers.number_types.Int32Flags, table.Pos + table_offset)) if table_offset else 0
    )
    return max(number, int(code.DeprecatedBuiltinCode()))


_STABLEHLO_CASE = 209  # which the package `tflite` does not know yet


def names_operators(model: tflite.Model, kinds: Collection[str]) -> bool:
    """Whether the list of operators of a file, as the package `tflite` reads it, names one of `kinds`."""
    codes = (model.OperatorCodes(index) for index in range(model.OperatorCodesLength()))
    numbers = {builtin_of(code) for code in codes}
    return bool(numbers & {getattr(tflite.BuiltinOperator, name, _STABLEHLO_CASE) for name in kinds})


def has_stablehlo_control(model: tflite.Model) -> bool:
    """Whether a file has control flow of StableHLO, which LiteRT has no kernels of."""
    return names_operators(model, ("STABLEHLO_WHILE", "STABLEHLO_CASE"))


# Types of 4 and 2 bits in the schema: INT4, and UINT4 and INT2, which the package `tflite` does not know yet.
NARROW_TYPES = frozenset((17, 19, 20))

# Operators of which LiteRT rounds the activations to 8 bits where the weights have 8 bits, and which inputs
# are weights: of an LSTM the first may be left out.
_ONE = ("BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "RNN", "SVDF")
_ONE_OF_SEQUENCES = ("UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN")
_TWO = ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM")
_WEIGHTED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*_ONE, *_ONE_OF_SEQUENCES), (1,)),
    **dict.fromkeys(_TWO, (1, 2)),
}


def rounds_activations(model: tflite.Model) -> bool:
    """Whether a file is dynamic-range quantised: LiteRT computes its float operators in 8 bits.

    Weights of 4 and 2 bits count too.
    """
    weighted = {getattr(tflite.BuiltinOperator, name): inputs for name, inputs in _WEIGHTED.items()}
    narrow = {tflite.TensorType.INT8, tflite.TensorType.UINT8, *NARROW_TYPES}
    for graph in (model.Subgraphs(number) for number in range(model.SubgraphsLength())):
        for op in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            code = model.OperatorCodes(op.OpcodeIndex())
            inputs = weighted.get(builtin_of(code), ())
            places = [int(op.Inputs(index)) for index in (0, *inputs) if index < op.InputsLength()]
            data, *weights = (graph.Tensors(place).Type() if place >= 0 else None for place in places or [-1])
            if data == tflite.TensorType.FLOAT32 and narrow.intersection(weights):
                return True
    return False


def rounds_to_levels(model: tflite.Model) -> bool:
    """Whether an operator of a file writes integers that stand for reals: activations with a scale."""
    narrow = (tflite.TensorType.INT8, tflite.TensorType.UINT8, tflite.TensorType.INT16)
    for graph in (model.Subgraphs(number) for number in range(model.SubgraphsLength())):
        for op in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            output_tensors = [
                graph.Tensors(int(index)) for index in map(op.Outputs, range(op.OutputsLength()))
            ]
            if any(tensor.Type() in narrow and _scale(tensor) is not None for tensor in output_tensors):
                return True
    return False


def input_scales(model: tflite.Model) -> list[float | None]:
    """The scale of each input in the file's order: its own, or that of the QUANTIZE that reads it."""
    graph = model.Subgraphs(0)
    scale_of_quantize: dict[int, float] = {}
    for op in (graph.Operators(index) for index in range(graph.OperatorsLength())):
        code = model.OperatorCodes(op.OpcodeIndex())
        scale = _scale(graph.Tensors(op.Outputs(0))) if op.OutputsLength() else None
        if builtin_of(code) == tflite.BuiltinOperator.QUANTIZE and scale is not None:
            scale_of_quantize.setdefault(int(op.Inputs(0)), scale)
    input_indices = [int(graph.Inputs(number)) for number in range(graph.InputsLength())]
    return [
        scale_of_quantize.get(input_index) or _scale(graph.Tensors(input_index))
        for input_index in input_indices
    ]


def _scale(tensor: Any) -> float | None:
    """The greatest scale of a tensor; None without one."""
    quant = tensor.Quantization()
    if quant is None or not quant.ScaleLength():
        return None
    return max(float(quant.Scale(index)) for index in range(quant.ScaleLength()))
