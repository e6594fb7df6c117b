"""Layers of transformers, in the form in which PyTorch's exporter writes them to an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._graph import Array, Graph

# Weight and bias of a layer by name: (out, in) and (out) for dense layers, (width) twice for norms.
Layer = Callable[[str], tuple[Array, Array]]


class Transformer:
    """Adds layers on (batch, tokens, width) to a graph; `layer` returns a layer's weights by name."""

    def __init__(self, graph: Graph, layer: Layer, width: int, heads: int, epsilon: float) -> None:
        self._graph, self._layer, self._epsilon = graph, layer, epsilon
        self._width, self._heads = width, heads

    def dense(self, x: str, name: str) -> str:
        """Add x @ weight.T + bias."""
        weight, bias = self._layer(name)
        y = self._graph.node(
            "MatMul", [x, self._graph.constant(f"{name}.weight", weight.T)], f"{name}.matmul"
        )
        return self._graph.node("Add", [self._graph.constant(f"{name}.bias", bias), y], f"{name}.add")

    def norm(self, x: str, name: str) -> str:
        """Add a layer normalisation over the last axis."""
        parts = [
            self._graph.constant(f"{name}.{part}", value)
            for part, value in zip(("weight", "bias"), self._layer(name), strict=True)
        ]
        return self._graph.node("LayerNormalization", [x, *parts], name, axis=-1, epsilon=self._epsilon)

    def attention(self, x: str, name: str, parts: tuple[str, str, str], mask: str | None = None) -> str:
        """Add multi-head self-attention of `x`, without the output's dense layer.

        `parts` name the dense layers of queries, keys and values; `mask` is added to the scores.
        """
        graph = self._graph
        size = self._width // self._heads
        split = graph.constant("split", np.array([0, 0, self._heads, size], np.int64))
        joined = graph.constant("joined", np.array([0, 0, self._width], np.int64))
        heads = []
        for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            y = graph.node("Reshape", [self.dense(x, f"{name}.{part}"), split], f"{name}.{part}.split")
            heads.append(graph.node("Transpose", [y], f"{name}.{part}.heads", perm=order))
        scores = graph.node("MatMul", heads[:2], f"{name}.scores")
        scores = graph.node("Div", [scores, _number(graph, "root", size**0.5)], f"{name}.scaled")
        if mask is not None:
            scores = graph.node("Add", [scores, mask], f"{name}.masked")
        weights = graph.node("Softmax", [scores], f"{name}.softmax", axis=-1)
        mixed = graph.node("MatMul", [weights, heads[2]], f"{name}.mixed")
        back = graph.node("Transpose", [mixed], f"{name}.back", perm=[0, 2, 1, 3])
        return graph.node("Reshape", [back, joined], f"{name}.joined")

    def gelu(self, x: str, name: str) -> str:
        """Add x/2 (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel, 2016)."""
        graph = self._graph
        y = graph.node("Div", [x, _number(graph, "root2", 2**0.5)], f"{name}.div")
        y = graph.node("Erf", [y], f"{name}.erf")
        y = graph.node("Add", [y, _number(graph, "one", 1.0)], f"{name}.plus")
        y = graph.node("Mul", [x, y], f"{name}.mul")
        return graph.node("Mul", [y, _number(graph, "half", 0.5)], name)


def _number(graph: Graph, name: str, value: float) -> str:
    return graph.constant(name, np.array(value, np.float32))
