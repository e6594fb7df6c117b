"""What padding.json says of a bucket that pads: what stands for a proof, and what an input is padded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROVEN, MEASURED = "graph", "measured"


def given_fill(port: Mapping[str, Any]) -> float:
    """The value of an input's padded elements where no proof finds one: 0 for masks, else the YAML's, or 0.

    `port`: the input's entry in `inputs` of the model's configuration.
    """
    return 0 if port.get("mask") else port.get("pad") or 0
