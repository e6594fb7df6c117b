"""Weights of 2 and 4 bits as 8-bit weights, which Relax's operators take."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_WIDE = {
    kind: wide
    for name, wide in (("INT4", "int8"), ("UINT4", "uint8"), ("INT2", "int8"), ("UINT2", "uint8"))
    if (kind := getattr(TensorProto, name, None)) is not None
}


def widen(model: onnx.ModelProto) -> None:
    """Store all weights of 2 or 4 bits as int8 or uint8, in place; the values stay.

    The result of a QuantizeLinear would keep its type by its zero point, so such a zero point stays narrow.
    """
    kept = {
        node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear" and len(node.input) > 2
    }
    for weight in model.graph.initializer:
        wide = _WIDE.get(weight.data_type)
        if wide is not None and weight.name not in kept:
            value = numpy_helper.to_array(weight).astype(np.dtype(wide))
            weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    names = {weight.name for weight in model.graph.initializer}
    for value in [value for value in model.graph.value_info if value.name in names]:
        model.graph.value_info.remove(value)
