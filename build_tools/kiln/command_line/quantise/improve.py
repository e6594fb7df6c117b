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
_SAME = 40.0  # least SNR in dB of the equalised float model against the one given


@dataclass(frozen=True)
class QuantiseOptions:
    """What is done to a model: `equalise` and `correct_bias` if asked for, or (auto) if they help.

    `all_integer`: operands of Softmax and normalisations are rounded to 8 bits, too.
    """

    method: Method = "minmax"
    activations: Activations = "int8"
    equalise: Choice = "auto"
    correct_bias: Choice = "auto"
    all_integer: bool = False


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
) -> tuple[Quantiser, Figures, list[Change]]:
    """Calibrate, and apply what `options` ask for or what helps.

    Returns the calibrated quantiser to go on with, the quality of its model, and what was measured.
    """
    path = folder / "whole.onnx"

    def figures_of(one: Quantiser) -> Figures:
        one.write(path)
        return measure(path)

    quantiser.calibrate(runs, options.method, options.activations)
    best = figures_of(quantiser)
    steps = [Change("rounded", best, True)]
    if options.equalise != "no":
        other, groups = quantiser.equalised(runs)
        other.save_float(path)
        if groups and measure(path).snr >= _SAME:
            other.calibrate(runs, options.method, options.activations)
            figures = figures_of(other)
            used = options.equalise == "yes" or figures.snr >= best.snr + _GAIN
            steps.append(Change(f"channels of {groups} groups equalised", figures, used))
            quantiser, best = (other, figures) if used else (quantiser, best)
    if options.correct_bias != "no":
        other = quantiser.corrected(runs)
        figures = figures_of(other)
        used = options.correct_bias == "yes" or figures.snr >= best.snr + _GAIN
        steps.append(Change("biases corrected", figures, used))
        quantiser, best = (other, figures) if used else (quantiser, best)
    return quantiser, best, steps
