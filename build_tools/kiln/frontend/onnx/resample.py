"""Resize of any axes of a tensor with fixed sizes, along one axis after the other.

An element of the result is a weighted sum of neighbours along each axis. Positions and weights are those of
ONNX's specification of Resize (operator set 19), computed at build time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from kiln.arrays import Array

op = relax.op
SIMPLE = "simple"  # rounding of operator set 10: see `rule_of`
_MOST_TAKES = 4  # more neighbours are summed by a matrix product


@dataclass(frozen=True)
class Rule:
    """The attributes of a Resize. roi: start and end by axis, as fractions of its size."""

    mode: str
    coordinates: str
    rounding: str
    antialias: bool = False
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0


def resample(
    emit: Callable[[Any], Any], data: Any, axis: int, sizes: tuple[int, int], scale: float, rule: Rule,
    region: tuple[float, float] = (0.0, 1.0),
) -> Any:  # fmt: skip
    """`data` with `axis` resized from sizes[0] to sizes[1] elements."""
    old, new = sizes
    places, weights, outside = table(old, new, scale, rule, region)
    dtype = str(data.ty.dtype)
    rank, keep = len(data.ty.shape), slice(None)
    around = [1] * axis + [new] + [1] * (rank - axis - 1)
    if rule.mode == "nearest":
        found = emit(op.take(data, _const(places[np.arange(new), weights.argmax(1)], "int64"), axis))
    elif places.shape[1] <= _MOST_TAKES:
        terms = [
            op.multiply(
                op.take(data, _const(places[keep, tap], "int64"), axis),
                _const(weights[keep, tap].reshape(around), dtype),
            )
            for tap in range(places.shape[1])
        ]
        found = emit(terms[0])
        for term in terms[1:]:
            found = emit(op.add(found, emit(term)))
    else:
        matrix = np.zeros([old, new])
        for tap in range(places.shape[1]):
            np.add.at(matrix, (places[keep, tap], np.arange(new)), weights[keep, tap])
        order = [*(i for i in range(rank) if i != axis), axis]
        product = emit(op.matmul(emit(op.permute_dims(data, order)), _const(matrix, dtype)))
        found = emit(op.permute_dims(product, [int(i) for i in np.argsort(order)]))
    if outside.any():
        given = relax.const(rule.extrapolation, dtype)
        found = emit(op.where(relax.const(outside.reshape(around), "bool"), given, found))
    return found


def rule_of(rule: Rule, scale: Any) -> Rule:
    """The rule for an axis with a scale. Rounding SIMPLE is towards the end where the axis becomes shorter.

    Raises ValueError where rounding depends on a scale that only the run knows.
    """
    if rule.rounding != SIMPLE or rule.mode != "nearest":
        return rule
    if not isinstance(scale, (int, float)):
        raise ValueError(
            "mode nearest of operator set 10 with scales of the run; export with operator set 11 or above"
        )
    return replace(rule, rounding="ceil" if scale < 1 else "floor")


def _const(value: Array, dtype: str) -> Any:
    return relax.const(value.astype(dtype), dtype)


def table(
    old: int, new: int, scale: float, rule: Rule, region: tuple[float, float] = (0.0, 1.0)
) -> tuple[Array, Array, Array]:
    """(places, weights, outside) of an axis: [new, taps], [new, taps], [new].

    `outside`: the elements whose position is outside of the tensor, with coordinates tf_crop_and_resize.
    """
    rows = []
    outside = np.zeros(new, bool)
    for index in range(new):
        at = _position(index, old, new, scale, rule.coordinates, region)
        outside[index] = rule.coordinates == "tf_crop_and_resize" and not 0 <= at <= old - 1
        whole = math.ceil(at) - 1  # of a whole position the element before, with ratio 1
        weights = np.asarray(_weights(at - whole, scale, rule))
        places = whole - len(weights) // 2 + 1 + np.arange(len(weights))
        if rule.exclude_outside:
            weights = np.where((places < 0) | (places >= old), 0.0, weights)
            weights = weights / weights.sum()
        rows.append((np.clip(places, 0, old - 1), weights))
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), outside


def _position(index: int, old: int, new: int, scale: float, how: str, region: tuple[float, float]) -> float:
    """The position in the input of element `index` of the result.

    Numbers are float32, as in the reference and ONNX Runtime: a third of 6 is position 2, not before it.
    """
    number, half = np.float32, np.float32(0.5)
    at, length, ratio, last = number(index), number(old), number(scale), number(old - 1)
    if how == "align_corners":
        return 0.0 if new == 1 else float(at * last / (ratio * length - number(1)))
    if how == "asymmetric":
        return float(at / ratio)
    if how == "tf_half_pixel_for_nn":
        return float((at + half) / ratio)
    if how == "tf_crop_and_resize":
        start, end = (number(one) for one in region)
        if new == 1:
            return float(half * (start + end) * last)
        return float(start * last + at * (end - start) * last / number(new - 1))
    if how == "pytorch_half_pixel" and new == 1:
        return -0.5
    middle = (at + half) / ratio - half
    if how == "half_pixel_symmetric":
        return float(length / number(2) * (number(1) - number(new) / (ratio * length)) + middle)
    return float(middle)


def _weights(ratio: float, scale: float, rule: Rule) -> Sequence[float]:
    """Weights of the neighbours, an even number, of a position that is `ratio` after its left neighbour."""
    if rule.mode == "nearest":
        return [0.0, 1.0] if _takes_next(ratio, rule.rounding) else [1.0, 0.0]
    reach, kernel = (1, _hat) if rule.mode == "linear" else (2, lambda x: _cubic(x, rule.cubic))
    step = min(scale, 1.0) if rule.antialias else 1.0
    first = math.floor(-reach / step) + 1
    found = [kernel(abs((offset - ratio) * step)) for offset in range(first, 2 - first)]
    total = sum(found)
    return [weight / total for weight in found]


def _takes_next(ratio: float, rounding: str) -> bool:
    if ratio == 1 or rounding == "ceil":
        return True
    if rounding == "floor":
        return False
    return ratio > 0.5 if rounding == "round_prefer_floor" else ratio >= 0.5


def _hat(x: float) -> float:
    return max(1.0 - x, 0.0)


def _cubic(x: float, a: float) -> float:
    """The cubic convolution kernel (Keys 1981)."""
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0
