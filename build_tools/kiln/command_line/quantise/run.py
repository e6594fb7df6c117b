"""Quantises a model: calibration, optionally a search for nodes that stay in float, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.command_line.model_files import graph_of
from kiln.command_line.outputs import files_of, onnx_file
from kiln.command_line.quantise.calibration import calibration_samples
from kiln.command_line.quantise.improve import LEAST_TO_SPLIT, Change, QuantiseOptions, improved
from kiln.command_line.quantise.keys import keys_for
from kiln.command_line.quantise.quantiser import Quantiser
from kiln.command_line.quantise.search import Candidate, Figures, Measure, search, sensitivity, snr_db
from kiln.command_line.samples import Samples, check_labels
from kiln.command_line.timed_copies import RunTimes, Timing, refuse_emulator, time_graph
from kiln.config import Model, load_model
from kiln.errors import KilnError
from kiln.files import json_text, write_together
from kiln.golden.reference import open_reference
from kiln.scratch import scratch_folder

_MOST_MEASURED = 64  # samples on which candidates are compared
_WORK = Path("build", ".quantise")  # files of the models that are timed
_MOST_RANKED = 8  # this number of samples suffices to find sensitive nodes


_DEFAULT = QuantiseOptions()


@dataclass(frozen=True)
class Goal:
    """The accuracy asked for: least SNR of the outputs in dB, or greatest drop in percentage points."""

    min_snr: float | None = None
    max_drop: float | None = None


@dataclass(frozen=True)
class Quantised:
    """The result: file, figures and bytes of the float and the quantised model, nodes that stay in float.

    `frontier`: the candidates of the search. `float_time`, `time`: of both models, where they are measured.

    `described`: the YAML file with the float model's keys; None: the model needs none.
    `choices`: how many nodes could stay in float. `steps` lists the measured changes of weights and biases;
    `split`: measured on one half of the samples, with the other half's ranges. `layers` lists the SNR in dB
    of a model in which only that node is quantised, most sensitive first; it is measured only for a search,
    on few samples.
    """

    model: Path
    float_figures: Figures
    figures: Figures
    float_bytes: int
    bytes: int
    kept: Sequence[str]
    choices: int
    layers: Sequence[tuple[str, float]] = ()
    frontier: Sequence[Candidate] = field(default_factory=list)
    warning: str = ""
    steps: Sequence[Change] = ()
    split: bool = False
    described: Path | None = None
    float_time: RunTimes | None = None
    time: RunTimes | None = None


def quantise(
    name: str,
    data: Path | None,
    out: Path | None,
    options: QuantiseOptions = _DEFAULT,
    goal: Goal = Goal(),
    timing: Timing | None = None,
) -> Quantised:
    """Quantise the model `name` and write it to `out` (default: NAME_int8.onnx) and its figures next to it.

    Keys of a YAML file that hold for the result, such as `dims`, are written next to it, too.
    `data` is a .npz file, a folder of images, or None for the golden inputs. `timing`: measure all times
    there. Raises KilnError for wrong data, and for a goal that no choice of float nodes reaches; then nothing
    is written.
    """
    if timing is not None:
        refuse_emulator("quantise", timing, instructions=True)
    model = load_model(name)
    out = Path(f"{model.name}_int8.onnx") if out is None else out
    onnx_file(out, ".json with the figures", data, *files_of(name, model))
    with scratch_folder("quantise") as scratch:
        folder = Path(scratch)
        model, source = graph_of(model, folder, "quantise", (".onnx",))
        quantiser = Quantiser(
            source, folder, all_integer=options.all_integer, weight_bits=options.weight_bits
        )
        samples = calibration_samples(model, data, quantiser.ports(), quantiser.step())
        if goal.max_drop is not None and samples.labels is None:
            raise KilnError("max_drop needs data with an array 'labels', the class of each sample")
        measure, float_figures = measurer(quantiser, samples)
        judge = measure
        if len(samples.runs) >= LEAST_TO_SPLIT:
            judge = measurer(quantiser, _every_nth(samples, 2, 1))[0]  # every second sample
        quantiser, steps = improved(quantiser, samples.runs, judge, options, folder)
        if not quantiser.choices():
            raise _nothing(model.name, quantiser.left)
        quantiser.write(folder / "whole.onnx")
        all_quantised = measure(folder / "whole.onnx")
        whole = Candidate((), all_quantised, (folder / "whole.onnx").stat().st_size)
        layers, frontier, chosen = _searched(
            quantiser, samples, measure, _reaches(goal, float_figures), whole, folder
        )
        quantiser.write(folder / "chosen.onnx", without=chosen.kept)
        content = (folder / "chosen.onnx").read_bytes()
        float_bytes = quantiser.prepared.stat().st_size
        float_time = None
        if timing is not None:
            float_time = _timed(model, source, "float", timing)
            frontier, chosen = _with_times(model, quantiser, frontier, chosen, timing)
    described = keys_for(model, out)
    result = Quantised(
        out, float_figures, chosen.figures, float_bytes, len(content), chosen.kept,
        len(quantiser.choices()), layers, frontier, _warning(samples, chosen.figures, quantiser.left), steps,
        len(samples.runs) >= LEAST_TO_SPLIT, None if described is None else described[0], float_time,
        chosen.time,
    )  # fmt: skip
    _write(result, content, described)
    return result


def _searched(
    quantiser: Quantiser,
    samples: Samples,
    measure: Measure,
    good: Callable[[Figures], bool],
    whole: Candidate,
    folder: Path,
) -> tuple[list[tuple[str, float]], list[Candidate], Candidate]:
    """`layers` and `frontier` of the result, and the candidate with the fewest float nodes that is `good`.

    `whole`: the one without float nodes; if it is good, nothing else is tried. Raises KilnError if none is.
    """
    if good(whole.figures):
        return [], [], whole
    few = measure
    if len(samples.runs) > _MOST_RANKED:
        few = measurer(quantiser, _every_nth(samples, len(samples.runs) // _MOST_RANKED, 0))[0]
    layers = sensitivity(quantiser, few, folder)
    frontier, chosen = search(quantiser, layers, measure, good, whole, folder)
    if chosen is None:
        raise KilnError(f"no choice of float nodes reaches the goal; the best: {_best(frontier)}")
    return layers, frontier, chosen


def _timed(model: Model, graph: Path, name: str, timing: Timing) -> RunTimes:
    """The times of a copy of `model` with another graph."""
    return time_graph("quantise", model, graph, f"{model.name}_{name}", _WORK, timing)


def _with_times(
    model: Model, quantiser: Quantiser, frontier: Sequence[Candidate], chosen: Candidate, timing: Timing
) -> tuple[list[Candidate], Candidate]:
    """The candidates of a search and the one chosen, each with its times."""
    path, timed = _WORK / "timed.onnx", dict[tuple[str, ...], RunTimes]()
    path.parent.mkdir(parents=True, exist_ok=True)
    for kept in dict.fromkeys(candidate.kept for candidate in (*frontier, chosen)):
        quantiser.write(path, without=kept)
        timed[kept] = _timed(model, path, f"int8_{len(kept)}", timing)
    return [replace(one, time=timed[one.kept]) for one in frontier], replace(chosen, time=timed[chosen.kept])


def _nothing(model: str, left: str) -> KilnError:
    text = (
        f"model '{model}': nothing to quantise: outside of If, Loop and Scan, no node computes products, "
        "sums, means or tables of float32 with finite constants"
    )
    return KilnError("; ".join(part for part in (text, left) if part))


def _warning(samples: Samples, figures: Figures, left: str) -> str:
    """What makes the result weak: samples, outputs unlike the float model's, and what is `left` in float."""
    lost = (
        "outputs have infinite elements, NaN or numbers that are not 0 where the float model's have others: "
        "--min-snr keeps the nodes that make them in float"
    )
    texts = (samples.warning, lost if figures.snr == float("-inf") else "", left)
    return "; ".join(text for text in texts if text)


def _write(result: Quantised, content: bytes, described: tuple[Path, str] | None) -> None:
    """Write the model, its figures, and its keys unless that file exists, which may have been edited."""
    files: dict[Path, bytes | str] = {result.model.with_suffix(".json"): json_text(as_json(result))}
    if described is not None and not described[0].exists():
        files |= dict([described])
    write_together({**files, result.model: content})


def measurer(quantiser: Quantiser, samples: Samples) -> tuple[Callable[[Path], Figures], Figures]:
    """A function that measures a model file against the float model, and the float model's own figures."""
    step = max(len(samples.runs) // _MOST_MEASURED, 1)
    chosen = range(0, len(samples.runs), step)
    names = [port.name for port in quantiser.ports()]
    labels = None if samples.labels is None else samples.labels[list(chosen)]

    want = samples.outputs(quantiser.float_reference(), names, chosen)
    check_labels(samples, want[0][0].size)

    def measure(path: Path) -> Figures:
        got = samples.outputs(open_reference(path), names, chosen)
        least = min(
            snr_db([run[index] for run in got], [run[index] for run in want]) for index in range(len(want[0]))
        )
        return Figures(least, _accuracy(got, labels))

    return measure, Figures(float("inf"), _accuracy(want, labels))


def _every_nth(samples: Samples, step: int, first: int) -> Samples:
    """Every `step`-th sample from `first` on."""
    labels = None if samples.labels is None else samples.labels[first::step]
    return replace(samples, runs=samples.runs[first::step], labels=labels)


def _accuracy(outputs: Sequence[Sequence[Array]], labels: Array | None) -> float | None:
    """Fraction of samples whose greatest element of the first output is their label."""
    if labels is None:
        return None
    classes = np.array([int(run[0].argmax()) for run in outputs])
    return float((classes == labels).mean())


def _reaches(goal: Goal, float_figures: Figures) -> Callable[[Figures], bool]:
    def good(figures: Figures) -> bool:
        if goal.min_snr is not None and figures.snr < goal.min_snr:
            return False
        if goal.max_drop is None or figures.accuracy is None or float_figures.accuracy is None:
            return True
        return 100 * (float_figures.accuracy - figures.accuracy) <= goal.max_drop

    return good


def _best(frontier: Sequence[Candidate]) -> str:
    best = max(frontier, key=lambda candidate: candidate.figures.snr)
    accuracy = "" if best.figures.accuracy is None else f", accuracy {100 * best.figures.accuracy:.2f} %"
    return f"SNR {best.figures.snr:.1f} dB{accuracy}, with {len(best.kept)} nodes in float"


def as_json(result: Quantised) -> dict[str, Any]:
    """The figures as JSON; an infinite SNR is null."""

    def finite(figures: Figures) -> dict[str, Any]:
        return {**asdict(figures), "snr": figures.snr if np.isfinite(figures.snr) else None}

    candidates: list[Mapping[str, Any]] = [
        {
            "kept": list(candidate.kept),
            "bytes": candidate.bytes,
            "time": _time_as_json(candidate.time),
            **finite(candidate.figures),
        }
        for candidate in result.frontier
    ]
    return {
        "format": 1,
        "model": result.model.name,
        "float": {
            **finite(result.float_figures),
            "bytes": result.float_bytes,
            "time": _time_as_json(result.float_time),
        },
        "quantised": {
            **finite(result.figures),
            "bytes": result.bytes,
            "time": _time_as_json(result.time),
            "kept": list(result.kept),
            "choices": result.choices,
        },
        "layers": [{"node": node, "snr": snr if np.isfinite(snr) else None} for node, snr in result.layers],
        "frontier": candidates,
        "steps": [
            {"name": candidate.name, "used": candidate.used, **finite(candidate.figures)}
            for candidate in result.steps
        ],
        "warning": result.warning or None,
    }


def _time_as_json(time: RunTimes | None) -> dict[str, Any] | None:
    """Unit and median by bucket; None where nothing was measured."""
    return None if time is None else {"unit": time.unit, "buckets": dict(time.by_bucket)}
