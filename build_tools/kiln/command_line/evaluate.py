"""The command `kiln evaluate`: accuracy of a bundle and of its reference on a user's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from kiln.arrays import Array
from kiln.command_line.build import build
from kiln.command_line.model_files import graph_file, traced_by_build
from kiln.command_line.outputs import files_of, save_npz, writable
from kiln.command_line.quantise.search import snr_db
from kiln.command_line.running import Destination, running
from kiln.command_line.samples import SamplePort, Samples, check_labels, samples_from_file
from kiln.config import Model, load_model
from kiln.config.interface import Interface, StateRecord
from kiln.config.records import read
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from kiln.golden.sequence import SequenceReference, file_input_shapes
from kiln.manifest import Manifest, ManifestPort, read_manifest
from kiln.scratch import scratch_folder
from kiln.tables import table_console

_MOST = 20  # disagreements that are printed


@dataclass(frozen=True)
class Disagreement:
    """A sample for which the greatest scores differ: its name, its class if known, and both answers."""

    sample: str
    label: int | None
    reference: int
    bundle: int


@dataclass(frozen=True)
class Accuracy:
    """Fractions of samples whose class has the greatest score, and one of the five greatest.

    top_5 is None for a model of at most five classes, where it would be 1 whatever the scores are.
    """

    top_1: float
    top_5: float | None


@dataclass(frozen=True)
class Evaluation:
    """Accuracy over all samples of the reference and of the bundle.

    Both are None without labels. `snr`: dB of the bundle's outputs against the reference's.
    """

    samples: int
    reference: Accuracy | None
    bundle: Accuracy | None
    snr: float
    disagreements: Sequence[Disagreement]


def evaluate(
    name: str, data: Path, destination: Destination, outputs: Path | None = None, **options: str
) -> Evaluation:
    """Run the bundle of the model `name` at `destination`, and the reference here, on all samples of `data`.

    `data` is a .npz file (arrays by input, and `labels`), a folder of images, whose subfolders are classes,
    or a .csv file with the columns image and class. Samples of a model with state are runs that follow one
    another. `outputs` is a .npz file for all outputs of the bundle.
    Raises KilnError for wrong data, and where the bundle cannot be built or run.
    """
    model = load_model(name)
    if not data.exists():
        raise KilnError(f"{data}: no such file or folder")
    if outputs is not None:
        writable("outputs", outputs, data, *files_of(name, model))
    built = build(name, destination.named, **options)
    model, folder = traced_by_build(model), built.folder
    manifest = read_manifest(folder)
    samples = samples_from_file(data, model, [_sample_port(entry) for entry in manifest["inputs"]])
    names = [entry["name"] for entry in manifest["inputs"]]
    inputs = [[run[name] for name in names] for run in samples.runs]
    with running(folder, destination) as bundle:
        got = bundle.outputs(inputs, runs=len(inputs) if manifest["states"] else 1)
    states = read(Interface, built.interface).states if manifest["states"] else []
    want = _reference_outputs(model, states, samples, names)
    if outputs is not None:
        save_npz(outputs, _named_outputs([entry["name"] for entry in manifest["outputs"]], got))
    return _figures(samples, _scores_index(model, manifest), got, want)


def _named_outputs(names: Sequence[str], got: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """The arrays of --outputs: all samples of an output, or one sample each where their shapes differ."""
    arrays = {}
    for index, name in enumerate(names):
        values = [run[index] for run in got]
        if len({value.shape for value in values}) == 1:
            arrays[name] = np.stack(values)
        else:
            arrays |= {f"{name}[{number}]": value for number, value in enumerate(values)}
    return arrays


def _reference_outputs(
    model: Model, states: Sequence[StateRecord], samples: Samples, names: Sequence[str]
) -> list[list[Array]]:
    """The reference's outputs for each sample; with `states`, each run begins with what the run before left.

    `names`: of the inputs in the order of the bundle, which is that of the model's file.
    """
    with scratch_folder("evaluate") as scratch:
        source = graph_file(model, Path(scratch))
        first = [samples.runs[0][name].shape for name in names]
        reference = open_reference(
            source, model.golden.reference, file_input_shapes(first, states) if states else ()
        )
        if states:
            reference = SequenceReference(reference, states)
        return samples.outputs(reference, names, range(len(samples.runs)))


def _sample_port(entry: ManifestPort) -> SamplePort:
    quant = entry.get("quant")
    shape = tuple(size if isinstance(size, int) else None for size in entry["shape"])
    scale_and_zero = (quant["scale"], quant["zero_point"]) if quant else None
    return SamplePort(entry["name"], np.dtype(entry["dtype"]), shape, scale_and_zero)


def _scores_index(model: Model, manifest: Manifest) -> int:
    """Number of the output with the scores: the one that the model's `run` names, else the first."""
    named_output = model.run.output if model.run else None
    names = [entry["name"] for entry in manifest["outputs"]]
    if named_output is not None and named_output not in names:
        raise KilnError(
            f"model '{model.name}': run.output '{named_output}' is not an output: {', '.join(names)}"
        )
    return 0 if named_output is None else names.index(named_output)


def _figures(
    samples: Samples, index: int, got: Sequence[Sequence[Array]], want: Sequence[Sequence[Array]]
) -> Evaluation:
    """The figures of output `index`.

    Scores that only one of both has, as where a detector finds a box more, are compared with 0.
    """
    counts = {run[index].size for run in (*got, *want)}
    labels = samples.labels
    if labels is not None and len(counts) > 1:
        raise KilnError(
            f"{samples.path}: 'labels': the output has {min(counts)} to {max(counts)} scores, allowed is one "
            "number for all samples: name another output with the key run.output, or leave out the labels"
        )
    check_labels(samples, max(counts))
    both, count = [[run[index] for run in runs] for runs in (got, want)], max(*counts, 1)
    ours, theirs = (_scores(values, count, fill=0) for values in both)
    answers, expected = (_scores(values, count, fill=-np.inf).argmax(1) for values in both)
    differing = [
        Disagreement(
            samples.names[number] if samples.names else f"sample {number}",
            None if labels is None else int(labels[number]),
            int(expected[number]),
            int(answers[number]),
        )
        for number in np.flatnonzero(answers != expected).tolist()
    ]
    return Evaluation(
        len(got),
        None if labels is None else _accuracy(theirs, labels),
        None if labels is None else _accuracy(ours, labels),
        snr_db([ours], [theirs]),
        differing,
    )


def _scores(values: Sequence[Array], count: int, fill: float) -> Array:
    """A row of `count` scores for each sample, `fill` in place of those that a sample does not have."""
    rows = np.full((len(values), count), fill, np.float64)
    for row, value in zip(rows, values, strict=True):
        row[: value.size] = value.ravel()
    return rows


def _accuracy(scores: Array, labels: Array) -> Accuracy:
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = order == labels[:, None]
    five = float(hits[:, :5].any(1).mean()) if scores.shape[1] > 5 else None
    return Accuracy(float(hits[:, 0].mean()), five)


def as_json(result: Evaluation) -> dict[str, Any]:
    """The figures as JSON: fractions of samples; an infinite SNR and unknown accuracies are null."""
    return {
        "format": 1,
        "samples": result.samples,
        "reference": None if result.reference is None else asdict(result.reference),
        "bundle": None if result.bundle is None else asdict(result.bundle),
        "snr_db": result.snr if np.isfinite(result.snr) else None,
        "disagreements": [asdict(disagreement) for disagreement in result.disagreements],
    }


def show(name: str, target: str, result: Evaluation) -> None:
    """Print the accuracy of both and the samples on which they disagree."""
    noise = "equal to the reference" if result.snr == float("inf") else f"SNR {result.snr:.1f} dB"
    print(f"{name} on {target}: {result.samples} samples, scores {noise}")
    if result.reference is not None and result.bundle is not None:
        table = Table()
        for title in ("", "top 1", "top 5") if result.bundle.top_5 is not None else ("", "top 1"):
            table.add_column(title, justify="right" if title else "left")
        for title, accuracy in (("reference", result.reference), ("bundle", result.bundle)):
            shares = [share for share in (accuracy.top_1, accuracy.top_5) if share is not None]
            table.add_row(title, *(f"{100 * share:.2f} %" for share in shares))
        table_console().print(table)
    print(f"the answers differ for {len(result.disagreements)} of {result.samples} samples")
    for disagreement in result.disagreements[:_MOST]:
        label = "" if disagreement.label is None else f"class {disagreement.label}, "
        print(
            f"  {disagreement.sample}: {label}reference {disagreement.reference}, "
            f"bundle {disagreement.bundle}"
        )
    if len(result.disagreements) > _MOST:
        print(f"  … and {len(result.disagreements) - _MOST} more")
