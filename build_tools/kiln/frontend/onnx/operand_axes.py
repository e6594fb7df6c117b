"""Gives operands axes of size 1, or takes them away, so that ONNX infers the shape that the run computes.

- Einsum: ONNX 1.23 refuses ellipses of different ranks, which its evaluator and PyTorch broadcast, and takes
  the size of a label from the first operand that has it, also where that size is 1 and repeats for another
  operand.
- NonZero of a scalar: ONNX's result has no rows, and ONNX Runtime's has one, as of a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.frontend.onnx.inferred_sizes import inferred_sizes
from kiln.onnx_domains import is_onnx, opset_of

_AXES_AS_INPUT = 13  # the operator set from which Squeeze and Unsqueeze have their axes as an input


def align_operands(model: onnx.ModelProto) -> None:
    """Give the operands of Einsum and NonZero nodes of the outer graph of `model` axes that agree, in place.

    In an Einsum, axes of size 1 are added before a shorter ellipsis, and labelled axes of size 1 that repeat
    for a longer axis are removed, with their labels. A scalar operand of NonZero gets an axis.
    """
    nodes = [node for node in model.graph.node if node.op_type in _ALIGNED and is_onnx(node)]
    changed = bool(nodes)
    while changed:  # the sizes of one may follow from those of another
        shapes = {**inferred_sizes(model), **{one.name: list(one.dims) for one in model.graph.initializer}}
        known = [node for node in nodes if all(name in shapes for name in node.input)]
        outcomes = [
            _ALIGNED[node.op_type](model, node, [shapes[name] for name in node.input]) for node in known
        ]
        changed = any(outcomes)


def _align_scalar(model: onnx.ModelProto, node: onnx.NodeProto, shapes: Sequence[Sequence[int]]) -> bool:
    """Give a scalar operand an axis; whether something changed."""
    if not shapes or shapes[0]:
        return False
    _change(model, node, 0, "Unsqueeze", [0])
    return True


def _align_einsum(model: onnx.ModelProto, node: onnx.NodeProto, shapes: Sequence[Sequence[int]]) -> bool:
    """Align the operands of an Einsum, of sizes `shapes`, 0 for an unknown one; whether something changed."""
    attribute = next((item for item in node.attribute if item.name == "equation"), None)
    text = attribute.s.decode(errors="replace").replace(" ", "") if attribute is not None else ""
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    counts = [len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes, strict=False)]
    if len(terms) != len(shapes) or any(
        count < 0 or (count and "..." not in term) for term, count in zip(terms, counts, strict=True)
    ):
        return False  # the converter names the fault
    labels = [_labels(term, count) for term, count in zip(terms, counts, strict=True)]
    longer = {
        label
        for axes, shape in zip(labels, shapes, strict=True)
        for label, size in zip(axes, shape, strict=True)
        if size != 1
    }
    most, changed = max(counts), False
    for index, (term, axes) in enumerate(zip(terms, labels, strict=True)):
        repeated = [
            axis
            for axis, (label, size) in enumerate(zip(axes, shapes[index], strict=True))
            if label in longer and label.isalpha() and size == 1
        ]
        if "..." in term and counts[index] < most:
            before = term.index(".")
            _change(model, node, index, "Unsqueeze", list(range(before, before + most - counts[index])))
        elif repeated and arrow:  # without a result, labels count by how many operands have them
            _change(model, node, index, "Squeeze", repeated)
            terms[index] = "".join(
                letter for letter in term if letter not in {axes[axis] for axis in repeated}
            )
        else:
            continue
        changed = True
    if changed and attribute is not None:
        attribute.s = (",".join(terms) + arrow + result).encode()
    return changed


def _labels(term: str, count: int) -> list[str]:
    """A label for each axis of an operand; `.` for the `count` axes of its ellipsis."""
    before, _, after = term.partition("...")
    return [*before, *"." * count, *after]


def _change(model: onnx.ModelProto, node: onnx.NodeProto, index: int, operator: str, axes: list[int]) -> None:
    """Let operand `index` of `node` pass through an `operator` of `axes`, Squeeze or Unsqueeze."""
    name = f"{node.output[0]}/{operator}_{index}"
    inputs, attributes = [node.input[index]], {"axes": axes}
    if opset_of(model) >= _AXES_AS_INPUT:
        model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), f"{name}/axes"))
        inputs, attributes = [*inputs, f"{name}/axes"], {}
    added = helper.make_node(operator, inputs, [name], name, **attributes)
    model.graph.node.insert(list(model.graph.node).index(node), added)
    node.input[index] = name


_ALIGNED = {"Einsum": _align_einsum, "NonZero": _align_scalar}
