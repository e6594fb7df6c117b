"""Shapes of scalars in TFLite files: some have no list of sizes, as TensorFlow's quantiser leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.frontend.tflite.files import packed, unpacked


def lacks_shapes(model: Any) -> bool:
    """Whether a tensor of a file, as the package `tflite` reads it, has no list of sizes."""
    graphs = [model.Subgraphs(number) for number in range(model.SubgraphsLength())]
    return any(
        graph.Tensors(index).ShapeIsNone() for graph in graphs for index in range(graph.TensorsLength())
    )


def with_shapes(path: Path, content: bytes) -> bytes:
    """The file with an empty list for each tensor without one, which TVM 0.27 takes for a number."""
    _, model = unpacked(path, content)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.shape = [] if tensor.shape is None else tensor.shape
    return packed(model)
