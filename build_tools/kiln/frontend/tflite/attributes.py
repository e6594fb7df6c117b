"""Range checks of a TFLite file, before the import: options of operators, indices, shapes, quantisation.

The flatbuffer schema has no ranges: a stride of 0 or the index of a missing tensor is read without an error.
Ranges are given by the name of an option, for all operators with this option; 2**31 - 1 is the greatest
amount.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import tflite

from kiln.errors import KilnError
from kiln.frontend.options import MOST_ELEMENTS
from kiln.frontend.tflite.files import builtin_of

_GREATEST = (1 << 31) - 1
_COUNT, _AMOUNT, _AXIS = (1, _GREATEST), (0, _GREATEST), (-8, 7)
_RANGES = {
    "Axis": _AXIS,
    "BatchDim": _AXIS,
    "BatchDims": _AXIS,
    "BlockSize": _COUNT,
    "DepthMultiplier": _AMOUNT,
    "DilationDFactor": _COUNT,
    "DilationHFactor": _COUNT,
    "DilationWFactor": _COUNT,
    "FilterHeight": _COUNT,
    "FilterWidth": _COUNT,
    "FusedActivationFunction": (0, 5),
    "Mode": (0, 1),
    "Num": _AMOUNT,
    "NumBits": (2, 16),
    "NumSplits": _COUNT,
    "Padding": (0, 1),
    "Radius": _AMOUNT,
    "SeqDim": _AXIS,
    "StrideD": _COUNT,
    "StrideH": _COUNT,
    "StrideW": _COUNT,
    "ValuesCount": _COUNT,
    "WeightsFormat": (0, 1),
}
# Options of operators that have any activation, and of operators that have none, whatever the file says.
_RECURRENT = (
    "BidirectionalSequenceLSTMOptions", "BidirectionalSequenceRNNOptions", "LSTMOptions", "RNNOptions",
    "SequenceRNNOptions", "SVDFOptions", "UnidirectionalSequenceLSTMOptions",
)  # fmt: skip
_WITHOUT_ACTIVATION = ("ConcatenationOptions", "L2NormOptions")
_OPTIONS = {code: name for name, code in vars(tflite.BuiltinOptions).items() if name[0].isupper()}


def check_graph(path: Path, model: Any, graph: Any) -> None:
    """Raise KilnError for the first tensor or operator with a number that the format does not allow."""
    count = graph.TensorsLength()
    for index in range(count):
        _check_tensor(path, graph.Tensors(index))
    for kind, tensor_indices in (("inputs", graph.InputsAsNumpy()), ("outputs", graph.OutputsAsNumpy())):
        if isinstance(tensor_indices, int):
            raise KilnError(f"{path}: the graph has no {kind}")
        _check_indices(f"{path}: the graph's {kind}", tensor_indices, count, least=0)
    for index in range(graph.OperatorsLength()):
        operator = graph.Operators(index)
        where = f"{path}: operator {index} ({_name(model, operator)})"
        _check_indices(f"{where}: its inputs", operator.InputsAsNumpy(), count, least=-1)
        _check_indices(f"{where}: its outputs", operator.OutputsAsNumpy(), count, least=0)
        _check_options(where, operator)


def _check_tensor(path: Path, tensor: Any) -> None:
    name = (tensor.Name() or b"").decode()
    _check_quantisation(f"{path}: tensor '{name}'", tensor.Quantization())
    if tensor.ShapeSignatureLength() not in (0, tensor.ShapeLength()):
        raise KilnError(
            f"{path}: tensor '{name}' has {tensor.ShapeLength()} axes, but its signature "
            f"{tensor.ShapeSignatureLength()}"
        )
    tensor.Type(), tensor.IsVariable(), tensor.ShapeSignatureAsNumpy()  # raises if they are outside the file
    elements = 1
    for axis in range(tensor.ShapeLength()):
        size = int(tensor.Shape(axis))
        elements *= size
        if size < 0 or elements > MOST_ELEMENTS:
            shape = [int(axis_size) for axis_size in tensor.ShapeAsNumpy()]
            raise KilnError(
                f"{path}: tensor '{name}' of {shape}, allowed: sizes of 0 and more, and at most "
                f"{MOST_ELEMENTS} elements in one tensor"
            )


def _check_quantisation(where: str, quantisation: Any) -> None:
    if quantisation is None:
        return
    quantisation.ZeroPointAsNumpy(), quantisation.QuantizedDimension()
    if quantisation.DetailsType() not in (0, 2):
        raise KilnError(
            f"{where} is quantised with details of type {quantisation.DetailsType()}, allowed: scales of the "
            "tensor, of one axis, or of blocks"
        )
    for index in range(quantisation.ScaleLength()):
        scale = float(quantisation.Scale(index))
        if not 0 <= scale < math.inf:
            raise KilnError(f"{where} has a scale of {scale}, allowed: finite, 0 and more")


def _check_indices(where: str, tensor_indices: Any, count: int, least: int) -> None:
    for index in [] if isinstance(tensor_indices, int) else tensor_indices:
        if not least <= index < count:
            raise KilnError(f"{where}: tensor {index} is not in the file, allowed: {least}..{count - 1}")


def _check_options(where: str, operator: Any) -> None:
    table = operator.BuiltinOptions()
    reader = getattr(tflite, _OPTIONS.get(operator.BuiltinOptionsType(), ""), None)
    if table is None or reader is None:
        return
    options = reader()
    options.Init(table.Bytes, table.Pos)
    if hasattr(options, "FusedActivationFunction"):
        _check_activation(where, reader.__name__, int(options.FusedActivationFunction()))
    for name, (least, greatest) in _RANGES.items():
        if hasattr(options, name):
            value = int(getattr(options, name)())
            if not least <= value <= greatest:
                raise KilnError(f"{where}: option '{name}' is {value}, allowed: {least}..{greatest}")


def _check_activation(where: str, table: str, code: int) -> None:
    """Raise KilnError for a fused activation that LiteRT reads and does not apply."""
    names = {
        number: name for name, number in vars(tflite.ActivationFunctionType).items() if name[0].isupper()
    }
    if table in _RECURRENT or code not in names:
        return
    allowed = [0] if table in _WITHOUT_ACTIVATION else [0, 1, 2, 3]
    if code not in allowed:
        raise KilnError(
            f"{where}: its fused activation is {names[code]}, which LiteRT does not apply, allowed: "
            f"{', '.join(names[number] for number in allowed)}; make it an operator of its own"
        )


def _name(model: Any, operator: Any) -> str:
    """The name of an operator in the schema, or its number if the schema has no name for it."""
    code = model.OperatorCodes(operator.OpcodeIndex())
    number = builtin_of(code)
    names = {value: name for name, value in vars(tflite.BuiltinOperator).items() if name[0].isupper()}
    return str(names.get(number, f"builtin {number}"))
