"""The element types of outputs, which PyTorch's exporter loses.

The exporter computes some operators of 16-bit floats in float32, such as sums, products and softmax. It casts
what other operators read back to 16 bits, and forgets the cast of what is an output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def output_types(program: ExportedProgram) -> list[str | None]:
    """The element types of the outputs of `program`, an ExportedProgram, in order; None for no tensor."""
    import torch

    (output,) = program.graph.find_nodes(op="output")
    kinds = program.graph_signature.output_specs
    results = [
        value
        for value, spec in zip(output.args[0], kinds, strict=True)
        if spec.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT
    ]
    values = [getattr(result, "meta", {}).get("val") for result in results]
    return [str(value.dtype) if isinstance(value, torch.Tensor) else None for value in values]


def cast_outputs(graph: Any, dtypes: list[str | None]) -> None:
    """Cast the outputs of an ONNX graph, in place, whose types are other than `dtypes`."""
    if len(dtypes) != len(graph.output):
        return
    import onnx

    for index, (value, dtype) in enumerate(zip(graph.output, dtypes, strict=True)):
        wanted = _ONNX_NAMES.get(str(dtype))
        tensor = value.type.tensor_type
        if wanted is None or tensor.elem_type == (kind := onnx.TensorProto.DataType.Value(wanted)):
            continue
        name = f"{value.name}.{index}.{wanted.lower()}"
        graph.node.append(onnx.helper.make_node("Cast", [value.name], [name], f"{name}.cast", to=kind))
        inner = graph.value_info.add()
        inner.CopyFrom(value)
        value.name, tensor.elem_type = name, kind


_ONNX_NAMES = {
    "torch.float16": "FLOAT16",
    "torch.bfloat16": "BFLOAT16",
    "torch.float32": "FLOAT",
    "torch.float64": "DOUBLE",
    "torch.int8": "INT8",
    "torch.int16": "INT16",
    "torch.int32": "INT32",
    "torch.int64": "INT64",
    "torch.uint8": "UINT8",
    "torch.bool": "BOOL",
}
