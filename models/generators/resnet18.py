"""ResNet-18, after He et al., 2015, with seeded weights."""

from __future__ import annotations

from pathlib import Path

from ._blocks import resnet
from ._graph import Graph
from ._weights import Weights

# (channels, blocks, stride of the first block)
_STAGES = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))
_EPSILON = 1e-5

# Scale of the branches of the 8 residual blocks, which together about triple the variance of their input.
_BRANCH_SCALE = 0.5


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("resnet18")

    def block(x: str, name: str, width: int, channels: int, stride: int) -> tuple[str, int]:
        return _block(graph, draw, x, name, width, channels, stride), channels

    return resnet(graph, draw, _EPSILON, _STAGES, block)


def _block(graph: Graph, draw: Weights, x: str, name: str, width: int, out: int, stride: int) -> str:
    def norm(y: str, part: str, scale: float = 1.0) -> str:
        return graph.batch_norm(y, f"{name}.{part}", draw.batch_norm(out, scale), _EPSILON)

    y = graph.conv(x, f"{name}.conv1", draw.conv(out, width, 3), stride=stride, pads=(1, 1))
    y = graph.relu(norm(y, "bn1"), f"{name}.relu1")
    y = graph.conv(y, f"{name}.conv2", draw.conv(out, out, 3, gain=1.0), pads=(1, 1))
    y = norm(y, "bn2", _BRANCH_SCALE)
    if width != out:
        x = graph.conv(x, f"{name}.downsample.0", draw.conv(out, width, 1, gain=1.0), stride=stride)
        x = norm(x, "downsample.1")
    return graph.relu(graph.node("Add", [y, x], f"{name}.add"), f"{name}.relu2")
