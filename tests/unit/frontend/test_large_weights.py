"""Models without the elements of their large weights: what ONNX checks and infers of them is the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from kiln.frontend.onnx.inference import infer_shapes, infer_types
from kiln.frontend.onnx.large_weights import large_weights_as_inputs, without_large_weights
from onnx import numpy_helper, parser

ROWS = 1 << 9
TEXT = f"""<ir_version: 9, opset_import: ["" : 18], producer_name: "any">
g (float[n,{ROWS}] x, bool c) => (float[?,?] y, int64[?] sizes)
<float[{ROWS},{ROWS}] w, int64[{ROWS * ROWS}] numbers, float[2] small = {{1, 2}}> {{
  a = MatMul(x, w)
  b = If (c) <
    then_branch = t () => (float[?,?] p) {{ p = Add(a, w) }},
    else_branch = e () => (float[?,?] q) {{ q = Neg(a) }}
  >
  y = Gather(b, numbers)
  sizes = Shape(y)
}}"""


def model() -> onnx.ModelProto:
    """A model with a large weight, a table of numbers as large, and a small weight."""
    made = parser.parse_model(TEXT)
    weight = numpy_helper.from_array(np.ones((ROWS, ROWS), np.float32), "w")
    numbers = numpy_helper.from_array(np.zeros(ROWS * ROWS, np.int64), "numbers")
    made.graph.initializer.extend([weight, numbers])
    return made


def test_all_but_the_elements_stays() -> None:
    whole, light = model(), without_large_weights(model())
    assert len(light.SerializeToString()) < ROWS * ROWS * 9  # of the numbers, which may be sizes
    for tensor in whole.graph.initializer:
        if tensor.name == "w":
            tensor.ClearField("raw_data")
    assert light == whole


def test_what_is_inferred_is_the_same() -> None:
    plain = onnx.shape_inference.infer_shapes(model(), data_prop=True)
    assert infer_shapes(model(), data_prop=True) == plain
    assert infer_types(model(), data_prop=True).graph.value_info == plain.graph.value_info
    assert infer_types(model(), data_prop=True).graph.node == plain.graph.node


def test_what_is_checked_is_the_same() -> None:
    onnx.checker.check_model(large_weights_as_inputs(model()))
    wrong = model()
    wrong.graph.node[0].output[0] = "w"
    for form in (wrong, large_weights_as_inputs(wrong)):
        with pytest.raises(onnx.checker.ValidationError, match="single static assignment"):
            onnx.checker.check_model(form)
