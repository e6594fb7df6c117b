"""The operator set of a file that PyTorch's exporter writes: a newer one for types that its own lacks.

ONNX casts, moves and quantises floats of 8 bits since opset 19, and quantises to 16 bits since opset 21.
"""

from __future__ import annotations

from typing import Any

_OPSET = 21
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_WORDS = ("INT16", "UINT16")


def with_needed_opset(model: Any) -> None:
    """Convert the onnx_ir.Model, in place, where a node reads or makes such a tensor."""
    if any(_is_newer(node) for node in model.graph.all_nodes()):
        from onnxscript import version_converter

        version_converter.convert_version(model, _OPSET)


def _is_newer(node: Any) -> bool:
    """Whether a node has a float of 8 bits, or quantises to 16 bits, or dequantises these."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    names = {value.dtype.name for value in values if value.dtype is not None}
    of_words = node.op_type in _QUANTISING and not names.isdisjoint(_WORDS)
    return of_words or any(name.startswith("FLOAT8") for name in names)
