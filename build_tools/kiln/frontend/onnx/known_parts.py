"""Vectors of which only some elements are known before the model runs, such as the shape [N, C, h, w]."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, tirx

from kiln.extents import Extent, shape_of
from kiln.frontend.counted.select import count_of
from kiln.frontend.onnx.node import Node

_WRAPPERS = {"relax.astype", "relax.reshape", "relax.squeeze", "relax.expand_dims"}  # keep all elements


def known_parts(node: Node, index: int) -> list[Extent | None]:
    """The elements of input `index`, a tensor of integers with a fixed size; None: known only to the run."""
    elements = node.elements(index)
    return list(elements) if elements is not None else _elements(node, node.tensor(index))


def _elements(node: Node, tensor: Any) -> list[Extent | None]:
    """The elements of a tensor of fixed size, as far as they follow from the calls that compute it."""
    size = node.symbols.product(shape_of(tensor))
    assert isinstance(size, int)
    call = node.builder.lookup_binding(tensor) if isinstance(tensor, relax.Var) else tensor
    if isinstance(call, ir.GenericConst):
        return [int(element) for element in call.value.numpy().reshape(-1)]
    name = call.op.name if isinstance(call, relax.Call) and isinstance(call.op, ir.Op) else ""
    if name in _WRAPPERS and "int" in str(call.args[0].ty.dtype):
        return _elements(node, call.args[0])
    if name == "relax.concat" and len(call.ty.shape) == 1:
        operands = call.args[0]
        bound = node.builder.lookup_binding(operands) if isinstance(operands, relax.Var) else operands
        if isinstance(bound, relax.Tuple):
            return [element for field in bound.fields for element in _elements(node, field)]
    if name == "relax.sum" and size == 1:
        return [count_of(node.builder, node.symbols, call.args[0])]
    if name == "relax.arange" and size == 1:
        start = getattr(call.args[0], "value", call.args[0])  # a variable is its own expression
        return [int(start) if isinstance(start, (int, tirx.IntImm)) else start]
    return [None] * size
