"""Choose the nodes that stay in float, so that the quantised model is accurate enough.

1. Sensitivity: each node that rounds one of its operands (choices.py) is quantised alone, and the noise at
the outputs is measured. 2. The most sensitive nodes stay in float, as few of them as reach the goal: 1, 2, 4,
… of them until it is reached, and then bisection, on measured models.
The noise of quantised nodes is nearly independent, so that their order by sensitivity is close to the best
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kiln.arrays import Array
from kiln.command_line.quantise.quantiser import Quantiser
from kiln.command_line.timed_copies import RunTimes


@dataclass(frozen=True)
class Figures:
    """Quality of a quantised model: the least SNR of its outputs in dB, and with labels the accuracy."""

    snr: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A quantised model of `bytes` with `kept` nodes in float, and its measured quality and times."""

    kept: tuple[str, ...]
    figures: Figures
    bytes: int = 0
    time: RunTimes | None = None


Measure = Callable[[Path], Figures]


def snr_db(got: Sequence[Array], want: Sequence[Array]) -> float:
    """10 log10(sum(want²) / sum((got - want)²)) over all arrays; inf for equal ones.

    Infinities and NaN that both have in the same place, as masked scores are, count neither as signal nor as
    noise; those of one alone make the ratio -inf.
    """
    signal = noise = 0.0
    for left, right in zip(got, want, strict=True):
        ours, theirs = left.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(ours) & np.isfinite(theirs)
        if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
            return float("-inf")
        signal += float(np.square(theirs[finite]).sum())
        noise += float(np.square(ours[finite] - theirs[finite]).sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0.0 else float("-inf")


def sensitivity(quantiser: Quantiser, measure: Measure, folder: Path) -> list[tuple[str, float]]:
    """Nodes and the SNR of a model in which only that node is quantised, most sensitive first.

    Nodes whose operands stay in float, or are exact in 8 bits, are left out. The SNR is -inf where the node
    makes infinities or NaN, as a divisor does whose least numbers are rounded to 0.
    """
    path = folder / "one_node.onnx"
    snrs = []
    for name in quantiser.choices():
        quantiser.write(path, only=[name])
        snrs.append((name, measure(path).snr))
    return sorted(((name, snr) for name, snr in snrs if snr < np.inf), key=lambda entry: entry[1])


def search(
    quantiser: Quantiser,
    layers: Sequence[tuple[str, float]],
    measure: Measure,
    good: Callable[[Figures], bool],
    whole: Candidate,
    folder: Path,
) -> tuple[list[Candidate], Candidate | None]:
    """All measured candidates by number of float nodes, and the one with the fewest that is `good`, if any.

    `layers` is the result of `sensitivity`, and `whole` the candidate without float nodes, not good. One node
    at least is quantised: else the model would be the one given.
    """
    order = [node for node, _ in layers]
    tried = {0: whole}

    def candidate(count: int) -> Candidate:
        if count not in tried:
            path = folder / "candidate.onnx"
            quantiser.write(path, without=order[:count])
            tried[count] = Candidate(tuple(order[:count]), measure(path), path.stat().st_size)
        return tried[count]

    low, high, most = 0, 1, max(len(order) - 1, 0)
    while high < most and not good(candidate(high).figures):
        low, high = high, 2 * high
    high = min(high, most)
    reached = good(candidate(high).figures)
    while reached and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(candidate(middle).figures) else (middle, high)
    return [tried[count] for count in sorted(tried)], tried[high] if reached else None
