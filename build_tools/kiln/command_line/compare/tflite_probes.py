"""Intermediate tensors of a TFLite model as outputs.

A FlatBuffer is changed in place: the new list of outputs is appended to the file, and the field of the first
subgraph that refers to its list of outputs is redirected. Offsets in a FlatBuffer are relative and point
forward, so an appended list is always in reach. Layout: "FlatBuffer Internals", Google.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from kiln.command_line.compare.probe import Probe
from kiln.errors import KilnError
from kiln.frontend.tflite.files import builtin_of, tensor_name

_OUTPUTS_SLOT = 8  # of the table SubGraph: 4 + 2 * the field's number
_NOT_NUMBERS = (tflite.TensorType.STRING, tflite.TensorType.RESOURCE, tflite.TensorType.VARIANT)


def write(source: Path, out: Path) -> list[Probe]:
    """See `kiln.command_line.compare.probes.write_probed`."""
    data = bytearray(source.read_bytes())
    try:
        model = tflite.Model.GetRootAsModel(data, 0)
        graph = model.Subgraphs(0)
        probes, added = _probes(model, graph)
        outputs = [graph.Outputs(index) for index in range(graph.OutputsLength())]
        outputs += [index for index in added if index not in outputs]
        field = graph._tab.Pos + graph._tab.Offset(_OUTPUTS_SLOT)
    except Exception as error:  # struct and the generated classes raise exceptions of several kinds
        raise KilnError(f"{source}: not a valid TFLite model: {error}") from error
    data += b"\0" * (-len(data) % 4)
    data[field : field + 4] = struct.pack("<I", len(data) - field)
    data += struct.pack(f"<I{len(outputs)}i", len(outputs), *outputs)
    out.write_bytes(data)
    return probes


def _probes(model: Any, graph: Any) -> tuple[list[Probe], list[int]]:
    """The probes of a subgraph in the order of its operators, and the numbers of their tensors."""
    constants = {
        index for index in range(graph.TensorsLength()) if _length(model, graph.Tensors(index).Buffer())
    }
    probes, numbers = [], []
    for position in range(graph.OperatorsLength()):
        operator = graph.Operators(position)
        op = _op_name(model, operator.OpcodeIndex())
        read = [index for index in operator.InputsAsNumpy() if index >= 0 and index not in constants]
        for index in np.atleast_1d(operator.OutputsAsNumpy()):
            tensor = graph.Tensors(int(index))
            if tensor.Type() in _NOT_NUMBERS:
                continue
            names = tuple(tensor_name(graph.Tensors(int(index))) for index in read)
            probes.append(Probe(f"operator {position}", op, tensor_name(tensor), names))
            numbers.append(int(index))
    return probes, numbers


def _length(model: Any, buffer: int) -> int:
    return int(model.Buffers(buffer).DataLength())


def _op_name(model: Any, index: int) -> str:
    code = model.OperatorCodes(index)
    custom = code.CustomCode()
    return custom.decode() if custom else str(tflite.opcode2name(builtin_of(code)))
