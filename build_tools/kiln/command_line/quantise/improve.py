"""Equalisation and bias correction where they help: each is measured on the samples, and kept if better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kiln.arrays import Array
from kiln.command_line.quantise.quantiser import Activations, Method, Quantiser
from kiln.command_line.quantise.search import Figures, Measure

Choice = Literal["auto", "yes", "no"]
_GAIN = 0.3  # least gain in dB for which a change is kept: less is chance
LEAST_TO_SPLIT = 8  # samples from which one half is kept to judge by
_SAME = 40.0  # least SNR in dB of the equalised float model against the one given


@dataclass(frozen=True)
class QuantiseOptions:
    """Changes of a model: `equalise` and `correct_bias` if asked for, or (auto) if they help.

    `all_integer`: operands of Softmax and normalisations are rounded to 8 bits, too. `weight_bits`: 8, or 7
    for x86 without VNNI, whose fastest products of bytes fit 16 bits with these alone.
    """

    method: Method = "minmax"
    activations: Activations = "int8"
    equalise: Choice = "auto"
    correct_bias: Choice = "auto"
    all_integer: bool = False
    weight_bits: int = 8


@dataclass(frozen=True)
class Change:
    """A measured change of the quantised model: its name, the quality with it, whether it was kept."""

    name: str
    figures: Figures
    used: bool


def improved(
    quantiser: Quantiser,
    runs: Sequence[Mapping[str, Array]],
    measure: Measure,
    options: QuantiseOptions,
    folder: Path,
) -> tuple[Quantiser, list[Change]]:
    """Apply the changes that `options` ask for, or that help, and calibrate on all `runs`.

    `measure` judges by the odd samples. With enough of them, what is judged was made from the even ones:
    factors that fit their own samples only would else look like a gain. Returns the quantiser to continue
    with, and the measured changes.
    """
    path = folder / "whole.onnx"
    fit = runs[::2] if len(runs) >= LEAST_TO_SPLIT else runs

    def figures_of(one: Quantiser) -> Figures:
        one.write(path)
        return measure(path)

    chosen = quantiser
    chosen.calibrate(fit, options.method, options.activations)
    best = figures_of(chosen)
    changes = [Change("rounded", best, True)]
    equalised = corrected = False
    if options.equalise != "no":
        equalised_quantiser, groups = quantiser.equalised(fit)
        equalised_quantiser.save_float(path)
        snr_before = measure(path).snr if groups else 0.0
        if not groups:
            changes.append(Change("no channels that can be equalised, or that gain by it", best, False))
        elif snr_before < _SAME:
            changes.append(Change(f"channels not equalised: {snr_before:.0f} dB in float", best, False))
        else:
            equalised_quantiser.calibrate(fit, options.method, options.activations)
            figures = figures_of(equalised_quantiser)
            equalised = options.equalise == "yes" or _gains(figures, best)
            label = f"channels equalised, in {groups} group{'s' * (groups != 1)}"
            changes.append(Change(label, figures, equalised))
            chosen, best = (equalised_quantiser, figures) if equalised else (chosen, best)
    if options.correct_bias != "no":
        figures = figures_of(chosen.corrected(fit))
        corrected = options.correct_bias == "yes" or _gains(figures, best)
        changes.append(Change("biases corrected", figures, corrected))
    final = quantiser.equalised(runs)[0] if equalised else quantiser
    final.calibrate(runs, options.method, options.activations)
    return (final.corrected(runs) if corrected else final), changes


def _gains(after: Figures, before: Figures) -> bool:
    """Whether a change is kept; equal infinite SNRs are no gain."""
    return after.snr > before.snr and after.snr >= before.snr + _GAIN
