"""Operators that are converted as several others, by (domain, operator); "" is ONNX's own domain."""

from __future__ import annotations

import onnx

from kiln.frontend.onnx import integer_conv, integer_ops, qlinear_ops, quantise_ops
from kiln.frontend.onnx.body import Expansion

MICROSOFT = "com.microsoft"
_ONNX_TABLES = (integer_conv.ONNX, integer_ops.ONNX, qlinear_ops.ONNX, quantise_ops.ONNX)
_MICROSOFT_TABLES = (integer_ops.MICROSOFT, qlinear_ops.MICROSOFT, quantise_ops.MICROSOFT)
EXPANSIONS: dict[tuple[str, str], Expansion] = {
    **{("", name): found for table in _ONNX_TABLES for name, found in table.items()},
    **{(MICROSOFT, name): found for table in _MICROSOFT_TABLES for name, found in table.items()},
}

# Operators that ONNX Runtime defines in ONNX's domain, where ONNX has none, or none in older opsets.
_ADOPTED = {"SimplifiedLayerNormalization": 1 << 30, "LayerNormalization": 17}


def expansion_of(domain: str, op_type: str) -> Expansion | None:
    """The expansion of an operator, or None."""
    return EXPANSIONS.get(("" if domain == "ai.onnx" else domain, op_type))


def adopt(model: onnx.ModelProto) -> None:
    """Move nodes of ONNX Runtime's operators in ONNX's domain to com.microsoft, in place.

    ONNX's checker refuses them in its own domain.
    """
    versions = {item.domain: item.version for item in model.opset_import}
    opset = max(versions.get("", 0), versions.get("ai.onnx", 0))
    found = [
        node
        for node in model.graph.node
        if node.domain in ("", "ai.onnx") and opset < _ADOPTED.get(node.op_type, 0)
    ]
    for node in found:
        node.domain = MICROSOFT
    if found and MICROSOFT not in versions:
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
