"""Activations that stay in float between integer operators, and the removal of their pairs from a QDQ model.

Inner tensors   those inside an elementwise expression of one tensor, such as GELU in five operators or
                x * sigmoid(x): rounding there adds noise and saves nothing, since the expression is one table
Scores          from a product of activations to a Softmax, with scaling and mask between: exponentials of
                rounded scores, and masks of -10000, need more than 8 bits
Divisors        a divisor that is rounded to 0 makes infinities, and small ones have large errors
Unbounded       those with infinite elements or NaN, as masks of -inf have: no range of theirs has levels
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from kiln.command_line.quantise.graphs import WEIGHTED, OnnxGraph

ELEMENTWISE = frozenset(
    (
        "Abs",
        "Add",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mul",
        "Neg",
        "Pow",
        "Reciprocal",
        "Relu",
        "Selu",
        "Sigmoid",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Tanh",
        "ThresholdedRelu",
        "Where",
    )
)
# Operators that kernels compute in float32: their sums and exponentials need more than 8 bits.
IN_FLOATS = frozenset(
    (
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "MeanVarianceNormalization",
        "LpNormalization",
    )
)
_DIVISORS = {"Div": 1, "Log": 0, "Reciprocal": 0}  # the operand that may not be rounded to 0
_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Expand"})


def inner_tensors(graph: OnnxGraph) -> set[str]:
    """Tensors between the operators of an elementwise expression whose only other operands are constants."""
    source: dict[str, str] = {}  # result of an expression: the tensor that it is computed from
    sums = set()
    for node in graph.nodes:
        if node.op_type not in ELEMENTWISE or len(node.output) != 1:
            continue
        product = _product(graph, node)
        if product:
            sums.add(product)
            continue
        computed = {name for name in node.input if name and graph.constant(name) is None}
        roots = {source.get(name, name) for name in computed}
        if len(roots) == 1:
            source[node.output[0]] = roots.pop()
    return sums | {
        name
        for name, root in source.items()
        if name not in graph.outputs
        and graph.readers.get(name)
        and all(source.get(node.output[0]) == root for node, _ in graph.readers[name])
    }


def _product(graph: OnnxGraph, node: Any) -> str:
    """The product to which `node` adds a bias, if it does: a sum that the kernel of the product ends with."""
    if node.op_type != "Add":
        return ""
    for name, bias_name in (node.input, reversed(node.input)):
        producer = graph.producer.get(name)
        bias = graph.constant(bias_name)
        if producer is None or bias is None or graph.weight(producer) is None or name in graph.outputs:
            continue
        if bias.shape and bias.size == bias.shape[-1]:
            return str(name) if len(graph.readers[name]) == 1 else ""
    return ""


def float_operands(graph: OnnxGraph) -> set[str]:
    """Tensors that are read in floats alone.

    They are read by Softmax, normalisations, sums and factors before these, and as divisors.
    """
    names: set[str] = set()
    for node in graph.nodes:
        if node.op_type in IN_FLOATS:
            _collect(graph, node.input[0], names)
        elif node.op_type in _DIVISORS:
            divisor = node.input[_DIVISORS[node.op_type]]
            _collect(graph, divisor, names)
            if _is_elementwise_alone(graph, divisor):
                names.add(divisor)
    return names


def _is_elementwise_alone(graph: OnnxGraph, name: str) -> bool:
    """Whether a computed tensor, no output of the model, is read by elementwise operators alone."""
    readers = {reader.op_type for reader, _ in graph.readers.get(name, ())}
    return name in graph.producer and name not in graph.outputs and readers <= ELEMENTWISE


def _collect(graph: OnnxGraph, name: str, found: set[str]) -> None:
    """Add the tensor `name`, and the tensors from which elementwise operators compute it."""
    node = graph.producer.get(name)
    readers = {reader.op_type for reader, _ in graph.readers.get(name, ())}
    if name in found or name in graph.outputs or readers - ELEMENTWISE - _MOVES - IN_FLOATS:
        return
    if node is None or node.op_type not in ELEMENTWISE | _MOVES:
        if node is not None and node.op_type in ("Add", *WEIGHTED):
            found.add(name)
        return
    found.add(name)
    for operand in node.input if node.op_type in ELEMENTWISE else node.input[:1]:
        if operand in graph.producer:
            _collect(graph, operand, found)


def reads_unbounded(graph: OnnxGraph, node: Any) -> bool:
    """Whether a constant operand of `node` has infinite elements or NaN."""
    constants = [array for name in node.input if (array := graph.constant(name)) is not None]
    return any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in constants)


def bound(ranges: Any) -> set[str]:
    """Replace the ranges with an infinite end or NaN of a calibrator's TensorsData; returns their tensors."""
    unbounded = {name for name, found in ranges.items() if not np.isfinite(found.range_value).all()}
    for name in unbounded:
        ends = (np.full_like(end, value) for end, value in zip(ranges[name].range_value, (0, 1), strict=True))
        ranges[name].lowest, ranges[name].highest = ends
    return unbounded


def leave_in_float(model: onnx.ModelProto, tensors: set[str]) -> None:
    """Remove the pairs of QuantizeLinear and DequantizeLinear on `tensors` from a QDQ model.

    The pair of an output of the model has its name from the DequantizeLinear on; what the pair reads takes
    this name then.
    """
    outputs = {value.name for value in model.graph.output}
    new_names: dict[str, str] = {}
    removed: list[Any] = []
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            readers.setdefault(node.input[0], []).append(node)
    for quantise in [node for node in model.graph.node if node.op_type == "QuantizeLinear"]:
        pairs = readers.get(quantise.output[0], [])
        restored = {node.output[0] for node in pairs}
        if not tensors & {quantise.input[0], *restored}:
            continue
        name = next(iter(restored & outputs), quantise.input[0])
        new_names |= dict.fromkeys((quantise.input[0], *restored), name)
        removed += [quantise, *pairs]
    for node in removed:
        model.graph.node.remove(node)
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new_names.get(name, name)
