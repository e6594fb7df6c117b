"""Operators that are converted as several operators, by (domain, operator); "" is ONNX's own domain."""

from __future__ import annotations

from pathlib import Path

import onnx

from kiln.frontend.onnx import (
    attention_ops,
    classical_ops,
    contrib_attention,
    expert_ops,
    fused_ops,
    gated_ops,
    grouped_attention,
    integer_conv,
    integer_ops,
    inverse,
    linear_attention,
    microsoft_ops,
    ml_encoders,
    ml_linear,
    ml_trees,
    narrow_codes,
    packed_weights,
    qlinear_ops,
    quantise_ops,
    rotary_ops,
    training_ops,
    transformer_ops,
)
from kiln.frontend.onnx.attributes import graphs
from kiln.frontend.onnx.body import Expansion
from kiln.onnx_domains import NARROW, TRAINING, domain_name, is_onnx, versions_of

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
_ML = (classical_ops.CLASSICAL, ml_encoders.ENCODERS, ml_linear.MODELS, ml_trees.TREES)
_ONNX_FILES = (
    attention_ops,
    integer_conv,
    integer_ops,
    linear_attention,
    qlinear_ops,
    quantise_ops,
    rotary_ops,
)
_MICROSOFT_FILES = (
    contrib_attention,
    expert_ops,
    fused_ops,
    gated_ops,
    grouped_attention,
    integer_ops,
    inverse,
    microsoft_ops,
    packed_weights,
    qlinear_ops,
    quantise_ops,
    rotary_ops,
    transformer_ops,
)
EXPANSIONS: dict[tuple[str, str], Expansion] = {
    **{("", name): found for file in _ONNX_FILES for name, found in file.ONNX.items()},
    **{(MICROSOFT, name): found for file in _MICROSOFT_FILES for name, found in file.MICROSOFT.items()},
    **{(TRAINING, name): found for name, found in training_ops.OPTIMISERS.items()},
    **{(ML, name): found for table in _ML for name, found in table.items()},
    **{(NARROW, name): found for name, found in narrow_codes.NARROW.items()},
}

# Operators that ONNX Runtime defines in ONNX's domain, where ONNX has none, or none below a version of it.
# GroupNormalization had a scale for each group at first, which ONNX has withdrawn.
_ADOPTED_BELOW = {"SimplifiedLayerNormalization": 1 << 30, "LayerNormalization": 17, "GroupNormalization": 21}


def expansion_of(domain: str, op_type: str) -> Expansion | None:
    """The expansion of an operator, or None."""
    return EXPANSIONS.get((domain_name(domain), op_type))


def adopt(path: Path, model: onnx.ModelProto) -> None:
    """Move nodes of ONNX Runtime's operators in ONNX's domain to com.microsoft, in place.

    ONNX's checker refuses them in its own domain. com.microsoft is imported where nodes are of it: ONNX
    Runtime, whose own domain it is, runs files without the import, too.
    """
    versions = versions_of(model.opset_import)
    opset = versions.get("", 0)  # a file without it has no operators of ONNX
    adopted = [
        node for node in model.graph.node if is_onnx(node) and opset < _ADOPTED_BELOW.get(node.op_type, 0)
    ]
    for node in adopted:
        node.domain = MICROSOFT
    used = any(node.domain == MICROSOFT for graph in graphs(path, model) for node in graph.node)
    if used and MICROSOFT not in versions:
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
