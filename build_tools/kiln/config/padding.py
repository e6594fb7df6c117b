"""padding.json of the stage `padding`, as records: why padding changes no output, and with which values."""

from __future__ import annotations

from typing import Literal

from kiln.config.model import Tensor
from kiln.config.records import Record

# A proof on the graph; comparison on adversarial data.
PROVEN: Literal["graph"] = "graph"
MEASURED: Literal["measured"] = "measured"


class PaddingProof(Record):
    """The proof for one bucket that pads.

    `proof`: "graph", or "measured" where the YAML accepts measured data as proof. `fill`: by input, the value
    of padded elements; a string for an infinity, for which JSON has no number.
    """

    proof: Literal["graph", "measured"]
    fill: dict[str, float | int | str]


class PaddingProofs(Record):
    """The content of padding.json: the proof of each bucket that pads, by its name."""

    format: Literal[1] = 1
    buckets: dict[str, PaddingProof]


def given_fill(port: Tensor | None) -> float:
    """Value of padded elements if no proof determines it: 0 for masks, else the YAML's `pad`, or 0.

    `port`: the input's entry in `inputs` of the model's configuration, if it has one.
    """
    return 0 if port is None or port.mask else port.pad or 0
