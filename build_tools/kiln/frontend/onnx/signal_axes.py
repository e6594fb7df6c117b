"""Rewrites STFT so that ONNX infers the shape that ONNX Runtime computes.

- Signals without an axis for the parts of a number, (batch, samples), which PyTorch exports, are real.
- `onesided` of a real signal is 1 where it is left out, as ONNX specifies; ONNX 1.23 infers the frequencies
  of 0, twice as many.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.frontend.onnx.inferred_sizes import inferred_sizes
from kiln.onnx_domains import is_onnx


def complete_transforms(model: onnx.ModelProto) -> None:
    """Complete the STFT nodes of the outer graph of `model`, in place: the axis of parts, and `onesided`.

    A signal (batch, samples) becomes (batch, samples, 1).
    """
    nodes = [node for node in model.graph.node if node.op_type == "STFT" and is_onnx(node)]
    shapes = inferred_sizes(model) if nodes else {}
    for node in nodes:
        shape = shapes.get(node.input[0], [])
        is_real = len(shape) == 2 or shape[2:] == [1]
        if is_real and not any(attribute.name == "onesided" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))
        if len(shape) == 2:
            axis, signal = f"{node.output[0]}/parts_axis", f"{node.output[0]}/signal"
            model.graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), axis))
            with_axis = helper.make_node("Unsqueeze", [node.input[0], axis], [signal], name=signal)
            model.graph.node.insert(list(model.graph.node).index(node), with_axis)
            node.input[0] = signal
