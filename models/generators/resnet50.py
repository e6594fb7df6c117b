"""ResNet-50 v1.5 (stride in the 3x3 convolution), after He et al., 2015, with seeded weights."""

from __future__ import annotations

from pathlib import Path

from ._blocks import resnet
from ._graph import Graph
from ._weights import Weights

# (channels inside a block, blocks, stride of the first block); a block's output has four times the channels.
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
_EPSILON = 1e-5

# Scale of the branches of the 16 residual blocks, which together about double the variance of their input.
_BRANCH_SCALE = 0.25


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("resnet50")

    def block(x: str, name: str, width: int, inner: int, stride: int) -> tuple[str, int]:
        return _bottleneck(graph, draw, x, name, width, inner, stride), 4 * inner

    return resnet(graph, draw, _EPSILON, _STAGES, block)


def _bottleneck(graph: Graph, draw: Weights, x: str, name: str, width: int, inner: int, stride: int) -> str:
    def norm(y: str, part: str, channels: int, scale: float = 1.0) -> str:
        return graph.batch_norm(y, f"{name}.{part}", draw.batch_norm(channels, scale), _EPSILON)

    out = 4 * inner
    y = graph.conv(x, f"{name}.conv1", draw.conv(inner, width, 1))
    y = graph.relu(norm(y, "bn1", inner), f"{name}.relu1")
    y = graph.conv(y, f"{name}.conv2", draw.conv(inner, inner, 3), stride=stride, pads=(1, 1))
    y = graph.relu(norm(y, "bn2", inner), f"{name}.relu2")
    y = norm(graph.conv(y, f"{name}.conv3", draw.conv(out, inner, 1)), "bn3", out, _BRANCH_SCALE)
    if stride != 1 or width != out:
        x = graph.conv(x, f"{name}.downsample.0", draw.conv(out, width, 1, gain=1.0), stride=stride)
        x = norm(x, "downsample.1", out)
    return graph.relu(graph.node("Add", [y, x], f"{name}.add"), f"{name}.relu3")
