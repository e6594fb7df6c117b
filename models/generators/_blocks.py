"""Blocks that several image classifiers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._graph import Graph
from ._weights import Weights

CLASSES = 1000
IMAGE = [1, 3, 224, 224]


def mobile_unit(graph: Graph, draw: Weights, epsilon: float) -> Callable[..., str]:
    """The function that adds a convolution, a batch norm and ReLU6 to `graph`.

    It is called as unit(x, name, shape, stride=1, groups=1) and returns the name of the result. shape:
    (output channels, input channels, kernel size).
    """

    def unit(x: str, name: str, shape: tuple[int, int, int], stride: int = 1, groups: int = 1) -> str:
        out, inputs, kernel = shape
        half = kernel // 2
        x = graph.conv(x, f"{name}.0", draw.conv(out, inputs // groups, kernel), stride, (half, half), groups)
        return graph.relu6(graph.batch_norm(x, f"{name}.1", draw.batch_norm(out), epsilon), f"{name}.2")

    return unit


# Of a residual block: (input, name, input channels, channels, stride) → (output, output channels).
Block = Callable[[str, str, int, int, int], tuple[str, int]]


def resnet(
    graph: Graph, draw: Weights, epsilon: float, stages: Sequence[tuple[int, int, int]], block: Block
) -> bytes:
    """The ONNX file of a ResNet. `stages`: (channels, number of blocks, stride of the first block) each."""
    x = graph.conv("input", "conv1", draw.conv(64, 3, 7), stride=2, pads=(3, 3))
    x = graph.relu(graph.batch_norm(x, "bn1", draw.batch_norm(64), epsilon), "relu")
    x = graph.node("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (channels, blocks, stride) in enumerate(stages, 1):
        for number in range(blocks):
            name = f"layer{stage}.{number}"
            x, width = block(x, name, width, channels, stride if number == 0 else 1)
    return classified(graph, draw, x, "fc", width)


def classified(graph: Graph, draw: Weights, x: str, name: str, width: int) -> bytes:
    """The ONNX file whose output is a classifier of CLASSES classes on `x`, which has `width` channels."""
    return graph.to_bytes(IMAGE, graph.classifier(x, name, *draw.dense(CLASSES, width)), CLASSES)
