"""Tensors of a TFLite graph whose values are known before the run: arithmetic on shapes and on constants.

Exporters write sizes as computations (SHAPE, STRIDED_SLICE, PACK, …), also where all sizes are fixed. With
their values as constants, operators that read them (RESHAPE, RANGE, FILL, …) have sizes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import tflite

from kiln.errors import KilnError
from kiln.frontend.tflite.files import Kinds, builtin_of, indices, make_constant

_SIZES = frozenset(("RANK", "SHAPE"))
_ARITHMETIC_NAMES = """
    ABS ADD BROADCAST_ARGS BROADCAST_TO CAST CEIL CONCATENATION CUMSUM DIV EQUAL EXPAND_DIMS FILL FLOOR
    FLOOR_DIV FLOOR_MOD GATHER GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_NOT LOGICAL_OR
    MAXIMUM MINIMUM MUL NEG NOT_EQUAL ONE_HOT PACK PAD PADV2 POW RANGE REDUCE_MAX REDUCE_MIN REDUCE_PROD
    RESHAPE REVERSE_V2 ROUND RSQRT SELECT SELECT_V2 SLICE SPLIT SPLIT_V SQRT SQUARE SQUEEZE STRIDED_SLICE
    SUB SUM TILE TRANSPOSE UNPACK ZEROS_LIKE
"""
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())
# Operators whose results have no size before the run: results for zeros would have another size.
_COUNTED = frozenset(("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "UNIQUE", "WHERE"))
_MOST_BYTES = 1 << 20  # of a value: greater ones are computed weights, which stay as they are stored
_NAMES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if name[0].isupper()}


def has_known_values(model: Any) -> bool:
    """Whether a graph reads its own sizes or computes with constants, by LiteRT's operators of known sizes.

    model: the file as the package `tflite` reads it.
    """
    codes = [model.OperatorCodes(index) for index in range(model.OperatorCodesLength())]
    kinds = [_NAMES.get(builtin_of(code), "CUSTOM") for code in codes]
    if {*_COUNTED, "CUSTOM"} & {*kinds}:
        return False
    return bool(_SIZES & {*kinds}) or _computes_constants(model, kinds)


def _computes_constants(model: Any, kinds: Sequence[str]) -> bool:
    """Whether arithmetic of the first graph reads constants of the file alone, as in unrolled loops."""
    graph = model.Subgraphs(0)

    def is_constant(index: int) -> bool:
        tensor = graph.Tensors(index)
        return bool(model.Buffers(tensor.Buffer()).DataLength()) and not tensor.IsVariable()

    for number in range(graph.OperatorsLength()):
        op = graph.Operators(number)
        read = [int(index) for index in op.InputsAsNumpy() if index >= 0] if op.InputsLength() else []
        if kinds[op.OpcodeIndex()] in _ARITHMETIC and read and all(map(is_constant, read)):
            return True
    return False


def with_known_values(schema: Any, model: Any, value_of: Callable[[int], npt.NDArray[Any]]) -> None:
    """Make constants of the known tensors of the first graph, and remove the operators that compute them.

    schema, model: see `unpacked`. value_of: the value of a tensor after a run with any inputs. Raises
    KilnError for a RANGE whose limits are in the data: other runs have other sizes.
    """
    kinds, graph = Kinds(schema, model), model.subgraphs[0]
    computed = {index for op in graph.operators for index in indices(op.outputs)} | set(indices(graph.inputs))
    computable = {
        index
        for index, tensor in enumerate(graph.tensors)
        if _is_constant(model, tensor) or (index not in computed and 0 in indices(tensor.shape))
    }
    outputs, operators = set(indices(graph.outputs)), []
    for op in graph.operators:
        kind, outputs_of_op = kinds.of(op), indices(op.outputs)
        read = {index for index in indices(op.inputs) if index >= 0}
        if kind not in _SIZES and (kind not in _ARITHMETIC or not read <= computable):
            operators.append(op)
            continue
        computable |= set(outputs_of_op)
        values = [value_of(index) for index in outputs_of_op]
        if outputs & set(outputs_of_op) or sum(value.nbytes for value in values) > _MOST_BYTES:
            operators.append(op)
            continue
        for index, value in zip(outputs_of_op, values, strict=True):
            tensor = graph.tensors[index]
            make_constant(schema, model, tensor, value)
            tensor.shape, tensor.shapeSignature = list(value.shape), None
    if any(kinds.of(op) == "RANGE" and op.outputs[0] not in computable for op in operators):
        raise KilnError(
            "a RANGE has a size that is in the data: make its limits constants, or compute them from shapes"
        )
    graph.operators = operators


def _is_constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0 and not tensor.isVariable
