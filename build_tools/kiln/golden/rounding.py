"""Sensitivity of a float model's outputs to rounding: the tolerance that it justifies.

Two right implementations sum in different orders, so their values differ in the last bits after every layer.
A model may enlarge such differences by any factor, as one that divides by a small variance does: the two
kernel sets of LiteRT then disagree as well. The reference measures it: it runs again with each element of the
float inputs moved to the next number up or down. Random signs come from a fixed seed. The changes of a model
that enlarges them may differ much from run to run, as where it divides by the least of many sums; such a
model runs more often.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kiln.arrays import Array
from kiln.golden.compare import ErrorLimits
from kiln.golden.reference_base import Reference

_RUNS, _MORE_RUNS = 2, 6  # the second only where the first exceed the default limits
_SAFETY_FACTOR = 8.0  # an implementation rounds in every layer; the moved inputs are one rounding
# Of the greatest magnitude: an output that changes by more has jumps, such as a choice of boxes.
_MOST_SHARE = 0.01


def rounding(reference: Reference, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[float]:
    """The error of each output that rounding explains, in its own unit; 0.0 within the default limits.

    `reference` must keep no state from run to run.
    """
    if not any(value.dtype.kind == "f" and value.size for value in inputs):
        return []
    generator = np.random.default_rng(0)
    explained = [0.0] * len(outputs)
    for number in range(_RUNS + _MORE_RUNS):
        if number == _RUNS and not any(explained):
            break
        run = reference.run([_perturbed(value, generator) for value in inputs])
        explained = [
            max(error, _explained_error(got, want))
            for error, got, want in zip(explained, run, outputs, strict=True)
        ]
    return explained


def _perturbed(value: Array, generator: np.random.Generator) -> Array:
    """`value` with each element moved to the next number of its type; integers stay as they are."""
    if value.dtype.kind != "f":
        return value
    limits = np.finfo(value.dtype)
    ends = np.where(generator.integers(0, 2, value.shape) == 1, limits.max, limits.min)
    return np.asarray(np.nextafter(value, ends.astype(value.dtype)), value.dtype)


def _explained_error(got: Array, want: Array) -> float:
    if got.shape != want.shape or want.dtype.kind != "f" or not want.size:
        return 0.0
    finite = np.isfinite(got) & np.isfinite(want)
    if not finite.any():
        return 0.0
    largest = float(np.abs(want[finite]).max())
    change = _SAFETY_FACTOR * float(np.abs(got[finite].astype(np.float64) - want[finite]).max())
    default = ErrorLimits()
    return (
        min(change, _MOST_SHARE * largest) if change > default.absolute + default.relative * largest else 0.0
    )
