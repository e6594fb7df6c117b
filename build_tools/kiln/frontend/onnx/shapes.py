"""Build-time evaluation of shape arithmetic in ONNX graphs.

Exporters emit `x.reshape(x.shape[0], -1)` as Shape → Gather → Concat → Reshape; ends of slices, amounts of
padding and sizes to resize to are computed similarly. Such values are evaluated here, so that the operators
that use them receive shapes, and the arithmetic disappears from the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from kiln.frontend.onnx.shape_rules import RULES
from kiln.frontend.onnx.value import NotKnownError, Ratio, Value, from_array
from kiln.frontend.symbols import Symbols

# Shapes, and tables of shapes, are short; longer tensors are treated as data.
MOST_ELEMENTS = 1024


def evaluate(
    node: Any, inputs: Sequence[Value | None], opset: int, symbols: Symbols, nested: bool = False
) -> Value | None:
    """The value of `node`, an onnx.NodeProto with one output; None if it is unknown or independent of shapes.

    `inputs`: None for an omitted input. `nested`: whether the node is in a loop or a branch, where integers
    of the file are evaluated like shapes: they are counters and positions. If all inputs are constant, ONNX's
    reference implementation computes the value, else a rule of kiln.frontend.onnx.shape_rules.
    """
    present = [value for value in inputs if value is not None]
    counts = (
        nested and bool(present) and not any(value.dtype.startswith(("float", "bfloat")) for value in present)
    )
    if not (counts or any(value.of_shape for value in present)) or len(node.output) != 1:
        return None
    if all(value.is_constant for value in present):
        return _reference_value(node, inputs, opset)
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    try:
        value = rule(list(inputs), attributes, symbols)
    except NotKnownError:
        return None
    simple = np.empty(value.items.shape, object)
    simple.reshape(-1)[:] = [_simplify_element(attribute, symbols) for attribute in value.items.reshape(-1)]
    return Value(simple, value.dtype)


def _reference_value(node: Any, inputs: Sequence[Value | None], opset: int) -> Value | None:
    """The value that ONNX's reference implementation computes; None if it has too many elements."""
    feeds = {
        name: value.numpy() for name, value in zip(node.input, inputs, strict=False) if value is not None
    }
    graph = helper.make_graph(
        [node],
        "node",
        [_value_info(name, str(array.dtype), array.shape) for name, array in feeds.items()],
        [helper.make_empty_tensor_value_info(node.output[0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    result = np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    return from_array(result, of_shape=True) if result.size <= MOST_ELEMENTS else None


def _value_info(name: str, dtype: str, shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _simplify_element(element: Any, symbols: Symbols) -> Any:
    if isinstance(element, Ratio):
        top = symbols.simplify(element.top)
        return top / element.bottom if isinstance(top, int) else Ratio(top, element.bottom)
    return element if isinstance(element, (bool, float)) else symbols.simplify(element)
