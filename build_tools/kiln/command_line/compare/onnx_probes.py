"""Intermediate tensors of an ONNX model as outputs."""

from __future__ import annotations

from pathlib import Path

import onnx

from kiln.command_line.compare.probe import Probe
from kiln.errors import KilnError
from kiln.frontend.onnx.value_types import with_value_types

_LARGEST = (1 << 31) - (1 << 20)  # bytes of a protobuf file, with room for the new outputs
_NOT_TENSORS = (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED)


def write(source: Path, out: Path) -> list[Probe]:
    """See `kiln.command_line.compare.probes.write_probed`."""
    try:
        model = onnx.load(str(source))
        inferred = with_value_types(model)
    except Exception as error:  # protobuf and onnx raise exceptions of their own classes
        raise KilnError(f"{source}: not a valid ONNX model: {error}") from error
    if model.ByteSize() > _LARGEST:
        raise KilnError(f"{source}: {model.ByteSize()} bytes with its parameters, compare accepts {_LARGEST}")
    graph = model.graph
    infos = {info.name: info for info in [*inferred.graph.value_info, *inferred.graph.output]}
    graph_outputs = {info.name for info in graph.output}
    varying = {info.name for info in graph.input} - {tensor.name for tensor in graph.initializer}
    probes = []
    for number, node in enumerate(graph.node):
        read = tuple(name for name in node.input if name in varying)
        if not read and node.input:
            continue  # a constant: computed at build time
        varying.update(name for name in node.output if name and node.input)
        for name in node.output:
            info = infos.get(name)
            if not name or not node.input or info is None or not _is_tensor(info):
                continue
            if name not in graph_outputs:
                graph.output.append(info)
            probes.append(Probe(node.name or f"node {number}", node.op_type, name, read))
    onnx.save(model, str(out))
    return probes


def _is_tensor(info: onnx.ValueInfoProto) -> bool:
    """Whether a value is a tensor of numbers with a known element type and rank."""
    kind = info.type.tensor_type
    return info.type.HasField("tensor_type") and kind.elem_type not in _NOT_TENSORS and kind.HasField("shape")
