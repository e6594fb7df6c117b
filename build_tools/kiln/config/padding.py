"""Values in padding.json of a pad bucket: how padding was shown to be neutral, and the inputs' fill values.

PROVEN: a proof on the graph; MEASURED: comparison on adversarial data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROVEN, MEASURED = "graph", "measured"


def given_fill(port: Mapping[str, Any]) -> float:
    """Value of padded elements if no proof determines it: 0 for masks, else the YAML's `pad`, or 0.

    `port`: the input's entry in `inputs` of the model's configuration.
    """
    return 0 if port.get("mask") else port.get("pad") or 0
