"""MobileNetV2 at width 1.0, after Sandler et al., 2018, with seeded weights."""

from __future__ import annotations

from pathlib import Path

from ._blocks import classified, mobile_unit
from ._graph import Graph
from ._weights import Weights

# (expansion, channels out, blocks, stride of the first block)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LAST = 1280
_EPSILON = 1e-5

# Scale of the branch of a residual block, so that the sums of several blocks stay near their input.
_BRANCH_SCALE = 0.5


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("mobilenet_v2")

    unit = mobile_unit(graph, draw, _EPSILON)
    x = unit("input", "features.0", (32, 3, 3), stride=2)
    width, index = 32, 0
    for expansion, out, blocks, first_stride in _STAGES:
        for block in range(blocks):
            index += 1
            stride = first_stride if block == 0 else 1
            name, inner = f"features.{index}", width * expansion
            y = unit(x, f"{name}.expand", (inner, width, 1)) if expansion != 1 else x
            y = unit(y, f"{name}.depthwise", (inner, inner, 3), stride, groups=inner)
            y = graph.conv(y, f"{name}.project", draw.conv(out, inner, 1))
            adds = stride == 1 and width == out
            scale = _BRANCH_SCALE if adds else 1.0
            y = graph.batch_norm(y, f"{name}.project_bn", draw.batch_norm(out, scale), _EPSILON)
            x = graph.node("Add", [x, y], f"{name}.add") if adds else y
            width = out
    x = unit(x, "features.18", (_LAST, width, 1))
    return classified(graph, draw, x, "classifier", _LAST)
