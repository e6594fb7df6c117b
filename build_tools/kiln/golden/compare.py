"""The rule that decides whether an output agrees with the reference's output.

Floats: |got - want| <= absolute + relative * max|want|, the maximum over the finite values of that output in
that vector. NaN agrees with NaN only, an infinity with the same infinity only.
Quantised integers: |got - want| <= levels, in steps of the output's scale.
Other integers and booleans: equal.
Type and shape must be the same in every case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError

# The rule as golden.json states it, for readers of a bundle.
RULE = {
    "float": "|got - want| <= absolute + relative * max|want|; NaN only equals NaN, inf only the same inf",
    "quantised": "|got - want| <= levels",
    "other": "got == want",
}


# Least limits where the reference computes with 16 bits: the defaults of a model's tolerance.
HALF: dict[str, dict[str, float]] = {
    "fp16": {"absolute": 1e-3, "relative": 1e-2},
    "bf16": {"absolute": 8e-3, "relative": 8e-2},
}


@dataclass(frozen=True)
class ErrorLimits:
    """Tolerances of an output: `absolute` in its unit, `relative` to max|want|, `levels` if quantised."""

    absolute: float = 1e-5
    relative: float = 1e-4
    levels: int = 1


@dataclass(frozen=True)
class Comparison:
    """Outcome for one output: the greatest error and its limit, in the output's unit (levels if quantised).

    `detail` describes the fault in one line, or is empty. `error` is inf for a wrong type or shape, and for a
    wrong NaN or infinity.
    """

    passed: bool
    error: float
    limit: float
    unit: str
    detail: str = ""


def limits_for(tolerance: Mapping[str, Any], output: str, precision: str | None = None) -> ErrorLimits:
    """The limits of one output from a model's `tolerance`; the output's entry in `outputs` has precedence.

    `precision`: fp16 or bf16 where the reference computes with 16 bits; lower limits are raised to those of
    this precision in `tolerance`.
    """
    least = (tolerance.get(precision) or HALF[precision]) if precision else {}
    output_section = (tolerance.get("outputs") or {}).get(output) or {}
    default = ErrorLimits()

    def pick(key: str) -> Any:
        for section in (output_section, tolerance):
            if section.get(key) is not None:
                return max(section[key], least.get(key) or 0)
        return max(getattr(default, key), least.get(key) or 0)

    return ErrorLimits(float(pick("absolute")), float(pick("relative")), int(pick("levels")))


def entry_limits(
    tolerance: Mapping[str, Any], output: str, precision: str | None = None, sensitivity: float | None = None
) -> ErrorLimits:
    """The limits of an output of a golden vector; `precision` and `sensitivity`: as golden.json has them.

    Where the model's tolerance has the default limits, they are raised to the output's `sensitivity`, the
    change that the reference itself shows (see kiln.golden.sensitivity, and kiln.golden.rounding).
    """
    limits = limits_for(tolerance, output, precision)
    change = sensitivity or 0.0
    plain_limits = limits_for(tolerance, output)
    if plain_limits.absolute == ErrorLimits().absolute and plain_limits.relative == ErrorLimits().relative:
        limits = replace(limits, absolute=max(limits.absolute, change))
    if plain_limits.levels == ErrorLimits().levels:
        limits = replace(limits, levels=max(limits.levels, math.ceil(change)))
    return limits


def weakness(want: Array, quantised: bool) -> str:
    """Reason why a tensor of the reference proves little; empty if it proves enough.

    It has no finite value, is constant, or is mostly saturated.
    """
    if want.dtype.kind == "f" and want.size and not np.isfinite(want).any():
        return "without a finite value"
    if want.size < 2:
        return ""
    if bool((want == want.flat[0]).all()):
        return f"constant ({want.flat[0]})"
    if quantised:
        ends = np.iinfo(want.dtype)
        saturated = float(((want == ends.min) | (want == ends.max)).mean())
        if saturated > 0.5:
            return f"saturated in {100 * saturated:.0f} % of its elements"
    return ""


def looseness(want: Array, limit: float) -> str:
    """Reason why a tensor of the reference proves little within `limit`, in its own unit; empty if enough.

    Results that differ by half of its spread would pass.
    """
    values = want[np.isfinite(want)].astype(np.float64) if want.dtype.kind in "fiu" else np.zeros(0)
    spread = float(np.ptp(values)) if values.size > 1 else 0.0
    if not spread or limit < spread / 2:
        return ""
    return (
        f"allowed an error of {limit:.3g} with a spread of {spread:.3g}, since the reference changes so much "
        "when its inputs move by a level, or by the last bit of a float"
    )


def compare(got: Array, want: Array, limits: ErrorLimits, quantised: bool = False) -> Comparison:
    """Compare one output with the reference's. `quantised`: integers represent reals, so `levels` applies."""
    if got.dtype != want.dtype or got.shape != want.shape:
        detail = f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return Comparison(False, float("inf"), 0.0, "", detail)
    if want.dtype.kind == "f":
        return _compare_floats(got.astype(np.float64), want.astype(np.float64), limits)
    # Differences of 64-bit integers do not fit 64 bits; as Python integers they are exact.
    wide = object if want.dtype.itemsize == 8 else np.int64
    difference = np.abs(got.astype(wide) - want.astype(wide))
    limit = float(limits.levels) if quantised else 0.0
    return _comparison(difference.astype(np.float64), limit, "levels" if quantised else "", got, want)


def _compare_floats(got: Array, want: Array, limits: ErrorLimits) -> Comparison:
    finite = np.isfinite(want)
    largest = float(np.abs(want[finite]).max()) if finite.any() else 0.0
    limit = limits.absolute + limits.relative * largest
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - want)
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    difference = np.where(equal, 0.0, np.where(np.isnan(difference), np.inf, difference))
    return _comparison(difference, limit, "", got, want)


def _comparison(difference: Array, limit: float, unit: str, got: Array, want: Array) -> Comparison:
    error = float(difference.max()) if difference.size else 0.0
    if error <= limit:
        return Comparison(True, error, limit, unit)
    wrong = difference > limit
    where = tuple(int(axis) for axis in np.unravel_index(int(difference.argmax()), difference.shape))
    measure = f"{limit:.3g} {unit}".strip()
    detail = (
        f"{int(wrong.sum())} of {difference.size} elements differ by more than {measure}, "
        f"most at {list(where)}: {got[where]} instead of {want[where]}"
    )
    return Comparison(False, error, limit, unit, detail)


def read_tensor(path: Path, dtype: str, shape: list[int]) -> Array:
    """Read a raw little-endian tensor file. Raises KilnError if it is unreadable or of another size."""
    kind = np.dtype(dtype).newbyteorder("<")
    expected_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    if len(content) != expected_bytes:
        raise KilnError(f"{path}: {len(content)} bytes, expected {expected_bytes} for {dtype}{shape}")
    return np.frombuffer(content, kind).reshape(shape).astype(np.dtype(dtype))
