"""Custom operators of TFLite files: the user's own (kiln.operators) and MediaPipe's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tflite
from flatbuffers import flexbuffers  # type: ignore[import-untyped]
from tvm import relax

from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.size_of import plain_sizes
from kiln.frontend.tflite import mediapipe
from kiln.frontend.tflite.files import builtin_of
from kiln.frontend.tflite.tensors import TensorConverter
from kiln.operators.convert import OwnNode
from kiln.operators.declaration import OwnQuant, OwnTensor
from kiln.operators.registry import WAY, LoadedOperator, by_name

PREFIX = "custom "  # of an operator's name in the converter's table


def known_operators() -> Mapping[str, LoadedOperator]:
    """The operators by custom code: MediaPipe's, and the user's own, which come before them."""
    return {**mediapipe.OPERATORS, **by_name()}


def options_of(loaded: LoadedOperator, raw: bytes) -> dict[str, Any]:
    """The attributes in the custom options of an operator: a map of a flexbuffer, or {"options": the bytes}.

    The bytes are passed on as they are where the operator declares the attribute `options` of type bytes.
    Raises KilnError for options of another form.
    """
    if loaded.operator.attributes.get("options") is bytes:
        return {"options": raw}
    if not raw:
        return {}
    try:
        value = flexbuffers.GetRoot(bytearray(raw)).Value
    except Exception as error:  # damaged bytes raise exceptions of many types
        raise loaded.error(
            "its custom options are not a flexbuffer: declare attributes={'options': bytes}"
        ) from error
    if not isinstance(value, dict):
        raise loaded.error(
            f"its custom options are {value!r}, a map is expected: declare attributes={{'options': bytes}}"
        )
    return value


def custom_name(model: Any, op: Any) -> str:
    """The custom code of an operator; empty for a builtin one."""
    code = model.OperatorCodes(op.OpcodeIndex())
    if builtin_of(code) != tflite.BuiltinOperator.CUSTOM:
        return ""
    return str((code.CustomCode() or b"").decode(errors="replace"))


def quant_of(tensor: Any) -> OwnQuant | None:
    """The quantisation of a tensor of the file; None if it has none."""
    quantisation = tensor.Quantization()
    if quantisation is None or not quantisation.ScaleLength():
        return None
    scales = tuple(float(quantisation.Scale(index)) for index in range(quantisation.ScaleLength()))
    zeros = tuple(int(quantisation.ZeroPoint(index)) for index in range(quantisation.ZeroPointLength()))
    return OwnQuant(scales, zeros or (0,) * len(scales), int(quantisation.QuantizedDimension()))


class OwnConverter(TensorConverter):
    """Converts the custom operators that are declared."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._own = known_operators()
        for name, loaded in self._own.items():
            self.convert_map[PREFIX + name] = self._converter_of(loaded)

    def get_op_code_str(self, op: Any) -> str:
        """The name of an operator in the table of converters."""
        name = custom_name(self.model, op)
        if name in self._own:
            return PREFIX + name
        name_known = self.builtin_op_code.get(builtin_of(self.model.OperatorCodes(op.OpcodeIndex())))
        return str(super().get_op_code_str(op) if name or name_known is None else name_known)

    def _converter_of(self, loaded: LoadedOperator) -> Any:
        def convert(op: Any) -> Any:
            inputs = [int(index) for index in op.InputsAsNumpy()] if op.InputsLength() else []
            outputs = [int(index) for index in op.OutputsAsNumpy()]
            tensors = [self.subgraph.Tensors(index) if index >= 0 else None for index in inputs]
            raw = bytes(op.CustomOptionsAsNumpy()) if op.CustomOptionsLength() else b""
            wrapped = self.get_tensors([index for index in inputs if index >= 0])
            expressions = iter([self.bb.normalize(self.get_tensor_expr(tensor)) for tensor in wrapped])
            results = OwnNode(loaded, self.bb, _number, _number).convert(
                [None if tensor is None else next(expressions) for tensor in tensors],
                options_of(loaded, raw),
                len(outputs),
                [None if tensor is None else quant_of(tensor) for tensor in tensors],
                [self._declared(index) for index in outputs],
            )
            return results[0] if len(outputs) == 1 else relax.Tuple(results)

        return convert

    def _declared(self, index: int) -> OwnTensor:
        tensor = self.subgraph.Tensors(index)
        shape: Sequence[int] = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
        sizes = tuple(int(size) for size in shape)
        return OwnTensor(sizes, self.get_tensor_type_str(tensor.Type()), None, quant_of(tensor))


def _number(size: Any) -> int:
    """A size as an int: in a TFLite graph all sizes are fixed when it is converted."""
    return int(size)


def shown_refusal(model: Any, op: Any) -> str:
    """The name by which errors call an operator that cannot be converted."""
    name = custom_name(model, op)
    return PREFIX + name if name else f"builtin {builtin_of(model.OperatorCodes(op.OpcodeIndex()))}"


def check_fixed(path: Path, model: Any) -> None:
    """Raise KilnError if a graph that is to be resized has a custom operator.

    LiteRT computes the shapes of a resized graph, and does not know the operator.
    """
    graph, known_names = model.Subgraphs(0), known_operators()
    for index in range(graph.OperatorsLength()):
        name = custom_name(model, graph.Operators(index))
        if name in known_names:
            raise KilnError(
                f"{path}: operator {index} (custom {name}) is not one of LiteRT's, which computes the sizes "
                "of a TFLite file: keep the sizes in the file, or use an ONNX file for dynamic sizes"
            )


def shown_reason(error: Exception) -> str:
    """The reason why an operator cannot be converted; messages of libraries are reworded first."""
    text = plain_sizes(one_line(error))
    if isinstance(error, ValueError):
        return text
    return f"its operands do not fit together, or have no conversion ({text}); {WAY}"
