"""TFLite files with an axis of quantisation that a tensor does not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflite
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from kiln.sources.tflite_axes import write_mended
from tflite_files import Tensor, write


def network(path: Path, axis: int) -> Path:
    """A depthwise convolution whose bias is quantised along `axis`, as its weights are along 3."""
    scales = [0.5, 0.25]
    tensors = [
        Tensor("x", (1, 4, 4, 2), "int8", 0.5),
        Tensor("w", (1, 3, 3, 2), "int8", scales, data=np.ones((1, 3, 3, 2), np.int8), axis=3),
        Tensor("b", (2,), "int32", [0.25, 0.125], data=np.array([5, -7], np.int32), axis=axis),
        Tensor("y", (1, 4, 4, 2), "int8", 1.0),
    ]
    options = schema.DepthwiseConv2DOptionsT()
    options.strideW = options.strideH = options.depthMultiplier = 1
    return write(path, tensors, tflite.BuiltinOperator.DEPTHWISE_CONV_2D, options, [0, 1, 2], [3])


def test_a_tensor_with_one_axis_is_quantised_along_it(tmp_path: Path) -> None:
    given, mended = network(tmp_path / "given.tflite", 3), tmp_path / "mended.tflite"
    with pytest.raises(ValueError, match="quantized_dimension must be in range"):
        Interpreter(str(given))
    assert write_mended(given, mended)
    interpreter = Interpreter(str(mended))
    interpreter.allocate_tensors()
    axes = {
        details["name"]: details["quantization_parameters"]["quantized_dimension"]
        for details in interpreter.get_tensor_details()
    }
    assert (axes["w"], axes["b"]) == (3, 0)


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    right, out = network(tmp_path / "right.tflite", 0), tmp_path / "out.tflite"
    damaged = tmp_path / "damaged.tflite"
    damaged.write_bytes(network(tmp_path / "wrong.tflite", 3).read_bytes()[:200])
    other = tmp_path / "net.onnx"
    other.write_bytes(right.read_bytes())
    assert not any(write_mended(path, out) for path in (right, damaged, other)) and not out.exists()
