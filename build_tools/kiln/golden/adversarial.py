"""Adversarial inputs for measured padding: without a proof, agreement on random inputs is not enough.

With zeros as padding, a maximum is right on positive data, a sum on any data, and a count on none. So the
inputs are also made all negative, all positive and huge. They are padded with the runtime's fill values, and
with NaN where neither the YAML (`inputs.<name>.pad`) nor a mask fixes the fill. NaN alone is not enough,
since a Relu or a maximum may drop it: the inputs as drawn are also padded with huge numbers of both signs.
Integers stay within the range that was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln.arrays import Array

HUGE = 1e18  # its square is still finite in float32
_KINDS = ("as drawn", "all negative", "all positive", "huge")
_POISONS = ("NaN", "huge numbers", "huge negative numbers")


@dataclass(frozen=True)
class Attack:
    """Inputs at their exact sizes, and the fill value by input name; `name` describes the data in errors."""

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
    """All attacks on one vector with the inputs `exact`, whose names are `names`.

    `fill`: the runtime's fill value of each input. `kept_inputs`: masks, whose elements are not changed.
    `kept_fills`: inputs whose fill value is not changed.
    """
    for kind in _KINDS:
        inputs = [
            tensor if name in kept_inputs else with_data(tensor, kind)
            for tensor, name in zip(exact, names, strict=True)
        ]
        if kind != _KINDS[0]:
            yield Attack(kind, inputs, dict(fill))
        for poison in _POISONS if kind == _KINDS[0] else _POISONS[:1]:
            fills = {
                name: fill[name] if name in kept_fills else poison_value(tensor, poison)
                for name, tensor in zip(names, inputs, strict=True)
            }
            if fills != dict(fill):
                yield Attack(f"{kind}, with {poison} in the padding", inputs, fills)


def with_data(tensor: Array, kind: str) -> Array:
    """`tensor` changed to elements of `kind`; integers become the least or the greatest that was drawn."""
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


def poison_value(tensor: Array, poison: str) -> Any:
    """A fill value that would show in the results: NaN or a huge number.

    For integers it is the greatest or the least element of `tensor`.
    """
    if tensor.dtype.kind == "f":
        huge = min(HUGE, float(np.finfo(tensor.dtype).max) / 4)
        return {"NaN": float("nan"), "huge numbers": huge, "huge negative numbers": -huge}[poison]
    if not tensor.size:
        return 0
    return (tensor.min() if "negative" in poison else tensor.max()).item()
