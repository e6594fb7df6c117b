"""One intermediate tensor that a copy of a model returns as an output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """An output of the copy: the tensor `tensor`, which the node `node` of kind `op` computes.

    `node` is the name in the source model, or its position where it has none. `inputs` are the tensors that
    the node reads, without constants.
    """

    node: str
    op: str
    tensor: str
    inputs: tuple[str, ...] = ()
