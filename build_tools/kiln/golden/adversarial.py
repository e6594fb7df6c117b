"""Data against which measured padding must hold: where no proof is, tame inputs show nothing.

A maximum over zeros is right on positive data, a sum over zeros on any, a count on none. So the inputs are
made all negative, all positive and huge, padded with what the runtime fills in, and with NaN where neither
the YAML (`inputs.<name>.pad`) nor a mask decides it. NaN alone is not enough, since a Relu or a maximum may
drop it: the inputs as drawn meet huge numbers of both signs there too. Integers stay within what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HUGE = 1e18  # of float32: its square is a number still
_KINDS = ("as drawn", "all negative", "all positive", "huge")
_POISONS = ("NaN", "huge numbers", "huge negative numbers")


@dataclass(frozen=True)
class Attack:
    """Exact inputs, and by input the value of its padded elements; `name` as errors say it."""

    name: str
    inputs: list[Array]
    fill: dict[str, Any]


def attacks(
    exact: Sequence[Array],
    names: Sequence[str],
    fill: Mapping[str, Any],
    kept_inputs: Sequence[str],
    kept_fills: Sequence[str],
) -> Iterator[Attack]:
    """All attacks on one vector.

    `fill`: what the runtime pads each input with. `kept_inputs`: masks, whose elements stay as they are.
    `kept_fills`: inputs whose padded elements do.
    """
    for kind in _KINDS:
        inputs = [
            tensor if name in kept_inputs else changed(tensor, kind)
            for tensor, name in zip(exact, names, strict=True)
        ]
        if kind != _KINDS[0]:
            yield Attack(kind, inputs, dict(fill))
        for poison in _POISONS if kind == _KINDS[0] else _POISONS[:1]:
            wrong = {
                name: fill[name] if name in kept_fills else poisoned(tensor, poison)
                for name, tensor in zip(names, inputs, strict=True)
            }
            if wrong != dict(fill):
                yield Attack(f"{kind}, with {poison} in the padding", inputs, wrong)


def changed(tensor: Array, kind: str) -> Array:
    """A tensor with elements of a kind; integers stay between the least and the greatest that were drawn."""
    if kind == _KINDS[0] or tensor.size == 0 or tensor.dtype.kind == "b":
        return tensor
    if tensor.dtype.kind in "iu":
        return np.full_like(tensor, tensor.min() if kind == "all negative" else tensor.max())
    size: Array = np.abs(tensor) + tensor.dtype.type(2**-10)
    if kind == "huge":
        size = tensor / size.max() * min(HUGE, float(np.finfo(tensor.dtype).max) / 4)
    elif kind == "all negative":
        size = -size
    return size.astype(tensor.dtype)


def poisoned(tensor: Array, poison: str) -> Any:
    """What shows where it goes: NaN or huge numbers; for integers the greatest or least that was drawn."""
    if tensor.dtype.kind == "f":
        most = min(HUGE, float(np.finfo(tensor.dtype).max) / 4)
        return {"NaN": float("nan"), "huge numbers": most, "huge negative numbers": -most}[poison]
    if not tensor.size:
        return 0
    return (tensor.min() if "negative" in poison else tensor.max()).item()
