"""ViT-Ti/16 at 224 x 224 (Dosovitskiy et al., 2020; Touvron et al., 2020), with seeded weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ._graph import Array, Graph
from ._transformer import Transformer
from ._weights import Weights

_WIDTH = 192
_HEADS = 3
_LAYERS = 12
_PATCH = 16
_PATCHES = (224 // _PATCH) ** 2
_CLASSES = 1000
_EPSILON = 1e-6

# Scales of the 24 residual branches, which keep the values between a half and five. Attention averages, so
# its output is smaller than its input.
_BRANCH_SCALE = {"proj": 2.0, "fc2": 0.5}


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (1, 3, 224, 224), logits (1, 1000). Weights come from `seed`, none are read."""
    draw = Weights(seed)
    graph = Graph("vit_tiny")

    def layer(name: str) -> tuple[Array, Array]:
        key = name.rsplit(".", 1)[-1]
        if key.startswith("norm"):
            return draw.uniform((_WIDTH,), 0.9, 1.1), draw.uniform((_WIDTH,), -0.1, 0.1)
        out, inputs = {"fc1": (4 * _WIDTH, _WIDTH), "fc2": (_WIDTH, 4 * _WIDTH)}.get(key, (_WIDTH, _WIDTH))
        weight, bias = draw.dense(out, inputs)
        return weight * np.float32(_BRANCH_SCALE.get(key, 1.0)), bias

    parts = Transformer(graph, layer, _WIDTH, _HEADS, _EPSILON)
    x = _tokens(graph, draw)
    for index in range(_LAYERS):
        name = f"blocks.{index}"
        y = parts.attention(parts.norm(x, f"{name}.norm1"), f"{name}.attn", ("query", "key", "value"))
        x = graph.node("Add", [x, parts.dense(y, f"{name}.attn.proj")], f"{name}.add1")
        y = parts.dense(parts.norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        y = parts.dense(parts.gelu(y, f"{name}.mlp.gelu"), f"{name}.mlp.fc2")
        x = graph.node("Add", [x, y], f"{name}.add2")
    x = parts.norm(x, "norm")
    x = graph.node("Gather", [x, graph.constant("first", np.array(0, np.int64))], "class", axis=1)
    weight, bias = draw.dense(_CLASSES, _WIDTH)
    names = [graph.constant("head.weight", weight), graph.constant("head.bias", bias)]
    return graph.to_bytes([1, 3, 224, 224], graph.node("Gemm", [x, *names], "logits", transB=1), _CLASSES)


def _tokens(graph: Graph, draw: Weights) -> str:
    """The class token and the image's patches, with positions added: (1, patches + 1, width)."""
    x = graph.conv("input", "patches", draw.conv(_WIDTH, 3, _PATCH, gain=1.0), stride=_PATCH)
    x = graph.node("Reshape", [x, graph.constant("flat", np.array([0, 0, -1], np.int64))], "patches.flat")
    x = graph.node("Transpose", [x], "patches.tokens", perm=[0, 2, 1])
    token = graph.constant("class_token", draw.uniform((1, 1, _WIDTH), -1.0, 1.0))
    x = graph.node("Concat", [token, x], "tokens", axis=1)
    places = graph.constant("positions", draw.uniform((1, _PATCHES + 1, _WIDTH), -0.5, 0.5))
    return graph.node("Add", [x, places], "embedded")
