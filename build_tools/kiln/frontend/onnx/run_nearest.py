"""Resize to the nearest neighbours by a known scale, of dynamic sizes: positions are quotients of integers.

A position is a multiple of 1 / (2 n) for a scale of n / d. For small n and d its float32, from which ONNX
Runtime rounds, lies on the same side of every whole number and half, and equals those that it is.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tvm import tirx

from kiln.frontend.counted import movement
from kiln.frontend.onnx.node import Node
from kiln.frontend.onnx.resample import Rule

_MOST = 64  # of the parts of a scale
_ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def exact_scale(rule: Rule, scale: Any) -> Fraction | None:
    """A scale by which `resized` computes; None where floats have to."""
    if rule.mode != "nearest" or rule.coordinates not in ("asymmetric", "half_pixel"):
        return None
    if rule.rounding not in _ROUNDINGS or not isinstance(scale, int | float) or scale <= 0:
        return None
    exact = Fraction(float(scale))
    return exact if max(exact.numerator, exact.denominator) <= _MOST else None


def resized(node: Node, data: Any, rule: Rule, scale: Fraction, axis: int, new: Any) -> Any:
    """`data` with `axis` resized to `new` elements."""
    shape = list(data.ty.shape)
    shape[axis] = new

    def element(to: Any, x: Any) -> Any:
        place = _place(to[axis], scale, rule)
        inside = tirx.max(tirx.min(place, x.shape[axis] - 1), 0)
        return x(*to[:axis], inside, *to[axis + 1 :])

    return movement.move(node.builder, shape, [data], element, "resize")


def _place(index: Any, scale: Fraction, rule: Rule) -> Any:
    """The rounded position of element `index` of the result."""
    top, bottom = scale.numerator, scale.denominator
    above, below = 2 * bottom * index, 2 * top
    if rule.coordinates == "half_pixel":
        above = above + (bottom - top)
    added = {"floor": 0, "ceil": below - 1, "round_prefer_floor": top - 1, "round_prefer_ceil": top}
    return tirx.floordiv(above + added[rule.rounding], below)
