"""Nodes that choose, repeat or group other nodes and tensors, in place of computing one."""

from __future__ import annotations

from typing import Any

import onnx

from kiln.frontend.onnx import control, sequences
from kiln.frontend.onnx.own_nodes import is_own


def convert(host: Any, node: onnx.NodeProto) -> bool:
    """Convert a node of control flow, or about sequences, in the importer `host`; returns whether it is one.

    Raises ValueError, with a remedy, for a value that must be known before the model runs and is not.
    """
    if is_own(node):
        return False
    if node.op_type in control.KINDS:
        control.run(host, node)
        return True
    return sequences.run(host, node)
