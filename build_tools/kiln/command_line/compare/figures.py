"""The difference between two tensors in the figures that locate a fault."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kiln.arrays import Array
from kiln.golden.compare import ErrorLimits, compare, weakness


@dataclass(frozen=True)
class Difference:
    """The difference of a tensor from the reference's. `error` and `limit` are in the tensor's unit.

    `snr` is the signal-to-noise ratio 10 log10(sum(want²) / sum((got - want)²)) in dB; None for equal
    tensors. `where` is the index of the greatest difference, with the values `got` and `want`; `detail`
    describes a wrong type or shape. `weak` is set for a tensor whose reference shows little, see
    `kiln.golden.compare.weakness`.
    """

    passed: bool
    error: float
    limit: float
    snr: float | None
    where: tuple[int, ...]
    got: float
    want: float
    detail: str
    weak: bool


def difference(got: Array, want: Array, limits: ErrorLimits, quantised: bool = False) -> Difference:
    """Compare one tensor with the reference's by the rule of `kiln.golden.compare`."""
    result = compare(got, want, limits, quantised)
    weak = bool(weakness(want, quantised))
    if got.shape != want.shape or not want.size:
        return Difference(result.passed, result.error, result.limit, None, (), 0.0, 0.0, result.detail, weak)
    got_64, want_64 = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        noise = np.where(got_64 == want_64, 0.0, np.abs(got_64 - want_64))
    noise = np.where(np.isnan(noise), np.where(np.isnan(got_64) & np.isnan(want_64), 0.0, np.inf), noise)
    worst_index = tuple(int(axis) for axis in np.unravel_index(int(noise.argmax()), noise.shape))
    return Difference(
        result.passed, result.error, result.limit, _snr(want_64, noise), worst_index,
        float(got_64[worst_index]), float(want_64[worst_index]), result.detail, weak,
    )  # fmt: skip


def _snr(want: Array, noise: Array) -> float | None:
    power = float(np.square(noise).sum())
    signal = float(np.square(want[np.isfinite(want)]).sum())
    if power == 0.0:
        return None
    if not np.isfinite(power) or signal == 0.0:
        return float("-inf")
    return float(10 * np.log10(signal / power))
