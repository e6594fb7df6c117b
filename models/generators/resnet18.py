"""ResNet-18, after He et al., 2015, with seeded weights."""

from __future__ import annotations

from pathlib import Path

from ._graph import Graph
from ._weights import Weights

# (channels, stride of the first block); every stage has two blocks.
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_CLASSES = 1000
_EPSILON = 1e-5

# Scale of the branches of the 8 residual blocks, which together about triple the variance of their input.
_BRANCH_SCALE = 0.5


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("resnet18")
    x = graph.conv("input", "conv1", draw.conv(64, 3, 7), stride=2, pads=(3, 3))
    x = graph.relu(graph.batch_norm(x, "bn1", draw.batch_norm(64), _EPSILON), "relu")
    x = graph.node("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (channels, stride) in enumerate(_STAGES, 1):
        for block in range(2):
            x = _block(graph, draw, x, f"layer{stage}.{block}", width, channels, stride if block == 0 else 1)
            width = channels
    dense = draw.dense(_CLASSES, width)
    return graph.to_bytes([1, 3, 224, 224], graph.classifier(x, "fc", *dense), _CLASSES)


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
