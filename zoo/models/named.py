"""Networks of the library transformers that are called with keywords: the common parts of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

from zoo.catalogue import Axes, Entry, Made, add
from zoo.models.encoders import made
from zoo.prepare import spread

_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**_TOWER, "vocab_size": 100, "max_position_embeddings": 32, "pad_token_id": 0}
IMAGE = {**_TOWER, "image_size": 64, "patch_size": 16}
BATCH: dict[str, Any] = {"axes": {"image": {0: "batch"}}, "ranges": {"batch": (1, 2)}}
LENGTH: dict[str, Any] = {"axes": {"ids": {1: "seq"}, "mask": {1: "seq"}}, "ranges": {"seq": (2, 32)}}
BOXES = ("logits", "pred_boxes")
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
SWIN: dict[str, Any] = {
    "image_size": 64,
    "embed_dim": 16,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 4],
    "window_size": 4,
}
# Layers of DETR and of its descendants.
DETR_LAYERS = {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
# The sizes of RT-DETR and of the networks that have its encoder and decoder.
RT_DETR: dict[str, Any] = {
    "encoder_in_channels": [16, 16, 16],
    "encoder_hidden_dim": 16,
    "encoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "decoder_ffn_dim": 32,
    "decoder_attention_heads": 2,
    "decoder_in_channels": [16, 16, 16],
    "decoder_layers": 2,
    "num_queries": 12,
    "num_labels": 5,
}


@dataclass(frozen=True)
class Kind:
    """A network: its class, its configuration, its inputs, each with the keyword, and its results' names.

    `results`: empty where the network returns one tensor. `axes`, `ranges`, `bounds`: as of `Entry`.
    `scores`: whether the network chooses by scores, which must differ.
    """

    cls: str
    config: Callable[[], dict[str, Any]]
    inputs: Callable[[], dict[str, tuple[str, Any]]]
    results: tuple[str, ...]
    axes: Axes = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    scores: bool = False


class Named(nn.Module):
    """A network called with keywords, and some of its results; without the noise that it would draw."""

    def __init__(self, net: Any, names: list[str], results: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.names, self.results = net, names, results

    def forward(self, *given: Any) -> Any:
        with mock.patch("torch.randn_like", torch.zeros_like):
            out = self.net(**dict(zip(self.names, given, strict=True)))
        return tuple(getattr(out, name) for name in self.results)


def pixels(side: int = 64) -> dict[str, tuple[str, Any]]:
    """One square image."""
    return {"image": ("pixel_values", torch.randn(1, 3, side, side))}


def words(length: int = 12) -> dict[str, tuple[str, Any]]:
    """The ids and the mask of a text whose last two words are padding."""
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, -2:] = 0
    return {"ids": ("input_ids", torch.randint(3, 99, (1, length))), "mask": ("attention_mask", mask)}


def add_all(group: str, kinds: Mapping[str, Kind]) -> None:
    """Add the networks of a table to the zoo."""
    for name, kind in kinds.items():
        add(Entry(name, group, lambda kind=kind: _make(kind), kind.axes, kind.ranges, kind.bounds))  # type: ignore[misc]


def _make(kind: Kind) -> Made:
    given = kind.inputs()
    net = made(kind.cls, kind.config())
    if kind.scores:
        spread(net)
    keywords = [keyword for keyword, _ in given.values()]
    inputs = {key: value for key, (_, value) in given.items()}
    return (Named(net, keywords, kind.results) if kind.results else net), inputs
