"""Resize of any axes of a tensor with fixed sizes, along one axis after the other.

An element of the result is a weighted sum of neighbours along each axis. Positions and weights follow ONNX's
specification of Resize (operator set 19), computed at build time.
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
SIMPLE = "simple"  # rounding of operator set 10: see `rule_with_rounding`
_MOST_TAKES = 4  # more neighbours are summed by a matrix product


@dataclass(frozen=True)
class Rule:
    """The attributes of a Resize; `cubic` is cubic_coeff_a, `extrapolation` the value outside of the data.

    `rounded_to`: the integer type to which the result of each axis is rounded, the last axis first; else "".
    """

    mode: str
    coordinates: str
    rounding: str
    antialias: bool = False
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    rounded_to: str = ""


def resample(
    emit: Callable[[Any], Any], data: Any, axis: int, sizes: tuple[int, int], scale: float, rule: Rule,
    region: tuple[float, float] = (0.0, 1.0),
) -> Any:  # fmt: skip
    """`data` with `axis` resized from sizes[0] to sizes[1] elements.

    `region`: its start and end in the data, as fractions of the axis.
    """
    old, new = sizes
    indices, weights, outside = weight_table(old, new, scale, rule, region)
    dtype = str(data.ty.dtype)
    rank, keep = len(data.ty.shape), slice(None)
    broadcast_shape = [1] * axis + [new] + [1] * (rank - axis - 1)
    if rule.mode == "nearest":
        result = emit(op.take(data, _const(indices[np.arange(new), weights.argmax(1)], "int64"), axis))
    elif indices.shape[1] <= _MOST_TAKES:
        terms = [
            op.multiply(
                op.take(data, _const(indices[keep, tap], "int64"), axis),
                _const(weights[keep, tap].reshape(broadcast_shape), dtype),
            )
            for tap in range(indices.shape[1])
        ]
        result = emit(terms[0])
        for term in terms[1:]:
            result = emit(op.add(result, emit(term)))
    else:
        matrix = np.zeros([old, new])
        for tap in range(indices.shape[1]):
            np.add.at(matrix, (indices[keep, tap], np.arange(new)), weights[keep, tap])
        order = [*(i for i in range(rank) if i != axis), axis]
        product = emit(op.matmul(emit(op.permute_dims(data, order)), _const(matrix, dtype)))
        result = emit(op.permute_dims(product, [int(i) for i in np.argsort(order)]))
    if outside.any():
        fill = relax.const(rule.extrapolation, dtype)
        result = emit(op.where(relax.const(outside.reshape(broadcast_shape), "bool"), fill, result))
    return result


def rule_with_rounding(rule: Rule, scale: Any) -> Rule:
    """`rule` with the rounding of an axis with this scale: SIMPLE rounds up where the axis becomes shorter.

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


def weight_table(
    old: int, new: int, scale: float, rule: Rule, region: tuple[float, float] = (0.0, 1.0)
) -> tuple[Array, Array, Array]:
    """For each new element: its neighbours' indices and weights, [new, taps] each, and a flag [new].

    The flag is set where the position is outside of the tensor, with coordinates tf_crop_and_resize.
    """
    rows = []
    outside = np.zeros(new, bool)
    for index in range(new):
        position = _position(index, old, new, scale, rule.coordinates, region)
        outside[index] = rule.coordinates == "tf_crop_and_resize" and not 0 <= position <= old - 1
        left = math.ceil(position) - 1  # of a whole position the element before, with ratio 1
        weights = np.asarray(_weights(position - left, scale, rule))
        indices = left - len(weights) // 2 + 1 + np.arange(len(weights))
        if rule.exclude_outside:
            weights = np.where((indices < 0) | (indices >= old), 0.0, weights)
            weights = weights / weights.sum()
        rows.append((np.clip(indices, 0, old - 1), weights))
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), outside


def _position(
    index: int, old: int, new: int, scale: float, coordinates: str, region: tuple[float, float]
) -> float:
    """The position in the input of element `index` of the result.

    Numbers are float32, as in the reference and ONNX Runtime: a third of 6 is position 2, not before it.
    """
    number, half = np.float32, np.float32(0.5)
    element, length, ratio, last = number(index), number(old), number(scale), number(old - 1)
    if coordinates == "align_corners":
        return 0.0 if new == 1 else float(element * last / (ratio * length - number(1)))
    if coordinates == "asymmetric":
        return float(element / ratio)
    if coordinates == "tf_half_pixel_for_nn":
        return float((element + half) / ratio)
    if coordinates == "tf_crop_and_resize":
        start, end = (number(end) for end in region)
        if new == 1:
            return float(half * (start + end) * last)
        return float(start * last + element * (end - start) * last / number(new - 1))
    if coordinates == "pytorch_half_pixel" and new == 1:
        return 0.0
    middle = (element + half) / ratio - half
    if coordinates == "half_pixel_symmetric":
        return float(length / number(2) * (number(1) - number(new) / (ratio * length)) + middle)
    return float(middle)


def _weights(ratio: float, scale: float, rule: Rule) -> Sequence[float]:
    """Weights of the neighbours, an even number, of a position that is `ratio` after its left neighbour."""
    if rule.mode == "nearest":
        return [0.0, 1.0] if _takes_next(ratio, rule.rounding) else [1.0, 0.0]
    reach, kernel = (1, _hat) if rule.mode == "linear" else (2, lambda x: _cubic(x, rule.cubic))
    step = min(scale, 1.0) if rule.antialias else 1.0
    first = math.floor(-reach / step) + 1
    weights = [kernel(abs((offset - ratio) * step)) for offset in range(first, 2 - first)]
    total = sum(weights)
    return [weight / total for weight in weights]


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
