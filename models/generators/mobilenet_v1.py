"""MobileNetV1 at width 1.0, after Howard et al., 2017, with ReLU6 and seeded weights."""

from __future__ import annotations

from pathlib import Path

from ._blocks import classified, mobile_unit
from ._graph import Graph
from ._weights import Weights

# (channels out, stride of the depthwise convolution)
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
_STEM = 32
_EPSILON = 1e-3


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("mobilenet_v1")

    unit = mobile_unit(graph, draw, _EPSILON)
    x, width = unit("input", "stem", (_STEM, 3, 3), stride=2), _STEM
    for index, (out, stride) in enumerate(_BLOCKS):
        x = unit(x, f"blocks.{index}.depthwise", (width, width, 3), stride, groups=width)
        x = unit(x, f"blocks.{index}.pointwise", (out, width, 1))
        width = out
    return classified(graph, draw, x, "classifier", width)
