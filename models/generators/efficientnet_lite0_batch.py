"""EfficientNet-Lite0 with the published weights, for images in batches of any size."""

from __future__ import annotations

from pathlib import Path

from .efficientnet_lite0 import network


def generate(seed: int, weights: Path | None) -> bytes:
    """The ONNX file: input (batch, 3, 224, 224), logits (batch, 1000). `weights`: the checkpoint."""
    return network(weights, "batch")
