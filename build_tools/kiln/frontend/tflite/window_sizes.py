"""Windows of a TFLite graph along axes whose size changes: whether they fit, and which sizes are alike."""

from __future__ import annotations

import math
from typing import Any

from kiln.frontend.tflite.files import Kinds, indices, text_of

_FILTERS = {"CONV_2D": 1, "CONV_3D": 0, "DEPTHWISE_CONV_2D": 1}  # by operator, the first axis of its windows
_POOLS = ("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")


def check_windows(schema: Any, content: bytes, reader: Any) -> None:
    """Raise ValueError where no window fits the input: there, some of LiteRT's kernels end in a signal."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph, kinds = model.subgraphs[0], Kinds(schema, model)
    shapes = {entry["index"]: [int(size) for size in entry["shape"]] for entry in reader.get_tensor_details()}
    for node in graph.operators:
        kind = kinds.of(node)
        if kind not in _FILTERS and kind not in _POOLS:
            continue
        for index in indices(node.outputs):
            if min(shapes.get(index, [1]), default=1) < 1:
                name = text_of(graph.tensors[index].name)
                raise ValueError(
                    f"the windows of {kind} (output {name}) are larger than its input, its result "
                    f"would be of {shapes[index]}; the least size of the dimension must hold a window"
                )


def period_of_windows(content: bytes) -> int:
    """The number of sizes after which a graph treats sizes alike again; 1 where two sizes tell all.

    Windows with the padding SAME that are shorter than their stride, and longer than 1, have no padding at
    some sizes and some at others.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph, kinds = model.subgraphs[0], Kinds(schema, model)
    period, has_gaps = 1, False
    for node in graph.operators:
        windows = _windows(graph, kinds.of(node), node)
        period *= math.prod(stride for _, stride in windows)
        is_same = windows and node.builtinOptions.padding == schema.Padding.SAME
        has_gaps |= bool(is_same) and any(1 < span < stride for span, stride in windows)
    return period if has_gaps else 1


def _windows(graph: Any, kind: str, node: Any) -> list[tuple[int, int]]:
    """By axis, the length of an operator's windows and their stride; none for operators without windows."""
    options = node.builtinOptions
    if kind in _POOLS:
        return [(options.filterHeight, options.strideH), (options.filterWidth, options.strideW)]
    if kind not in _FILTERS:
        return []
    first, sides = _FILTERS[kind], "DHW" if kind == "CONV_3D" else "HW"
    lengths = graph.tensors[indices(node.inputs)[1]].shape[first : first + len(sides)]
    return [
        ((int(length) - 1) * getattr(options, f"dilation{side}Factor") + 1, getattr(options, f"stride{side}"))
        for length, side in zip(lengths, sides, strict=True)
    ]
