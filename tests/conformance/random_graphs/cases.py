"""Random graphs with inputs and the outputs that ONNX Runtime computes without optimising."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..drawn_operators.case import DrawnCase, reference
from ..onnx_nodes.cases import DATA
from . import elementwise, movement, products
from .drawing import FLOAT, Array
from .graph import Graph

_MAKERS = (*elementwise.ALL, *movement.ALL, *products.ALL)


def made(seed: int, nodes: int, is_open: bool = False) -> DrawnCase | None:
    """The case of a seed, with at least so many nodes; None where ONNX Runtime cannot run it.

    is_open: an axis of an input has a size of the run; None where no axis may have another size.
    """
    graph = Graph(seed)
    while len(graph.nodes) < nodes:
        graph.choice.choice(_MAKERS)(graph)
    model, inputs = graph.model(), [array for _, array in graph.inputs]
    if is_open:
        return _opened(graph, seed, model, inputs)
    outputs = reference(model, [inputs])
    return DrawnCase(f"{seed}/{DATA}", model, None, [({}, inputs)], outputs[0] or []) if outputs else None


def _opened(graph: Graph, seed: int, model: onnx.ModelProto, inputs: Sequence[Array]) -> DrawnCase | None:
    """The case with one dynamic axis, at three sizes."""
    axes = [(at, axis) for at, array in enumerate(inputs) for axis in range(array.ndim)]
    graph.choice.shuffle(axes)
    for at, axis in axes:
        opened, size = onnx.ModelProto(), inputs[at].shape[axis]
        opened.CopyFrom(model)
        opened.graph.input[at].type.tensor_type.shape.dim[axis].dim_param = "n"
        for value in opened.graph.output:
            value.type.tensor_type.ClearField("shape")
        least, greatest = max(size - 2, 1), size + 3
        runs = []
        for n in (least, size, greatest):
            shape = (*inputs[at].shape[:axis], n, *inputs[at].shape[axis + 1 :])
            dtype = str(inputs[at].dtype)
            data = graph.array(shape, dtype, 2.0 if dtype == FLOAT else 9.0)
            runs.append(({"n": n}, [*inputs[:at], data, *inputs[at + 1 :]]))
        found = reference(opened, [given for _, given in runs])
        if found and all(found):
            outputs = [array for one in found for array in one or ()]
            return DrawnCase(f"{seed}/open", opened, (least, greatest), runs, outputs)
    return None
