"""Domains of ONNX operators, and the versions of them that a file states.

The domain of ONNX's own operators has two names, "" and "ai.onnx". Functions here return the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the modules of operators that users declare need no onnx
    import onnx

OTHER_NAME = "ai.onnx"  # of ONNX's own domain, which is ""
NARROW = "kiln.narrow"  # Kiln's own operators that encode and decode (kiln.frontend.onnx.narrow_codes)
TRAINING = "ai.onnx.preview.training"  # optimisers (kiln.frontend.onnx.training_ops)


def domain_name(name: str) -> str:
    """The domain `name`; "" for each name of ONNX's own."""
    return "" if name == OTHER_NAME else name


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of a node's operator; "" for ONNX's own."""
    return domain_name(node.domain)


def is_onnx(node: onnx.NodeProto) -> bool:
    """Whether the operator of `node` is one of ONNX's own."""
    return domain_of(node) == ""


def versions_of(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """By domain, the version that the entries `opset_import` of a model or function state.

    The greatest of several, as for a file that states both names of ONNX's own domain.
    """
    versions: dict[str, int] = {}
    for entry in entries:
        name = domain_name(entry.domain)
        versions[name] = max(int(entry.version), versions.get(name, 0))
    return versions


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators in `model`.

    A file may omit it if all of its operators are of other domains: then it is the newest version, as for
    ONNX Runtime. Files of before version 3 of the format, which state none at all, have version 1.
    """
    stated = versions_of(model.opset_import)
    if "" in stated or not stated:
        return stated.get("", 1)
    import onnx

    return int(onnx.defs.onnx_opset_version())
