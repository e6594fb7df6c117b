"""Builds a model with all intermediate tensors as outputs, runs it, and compares each with the reference."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kiln.command_line.build import build
from kiln.command_line.compare.figures import Difference, difference
from kiln.command_line.compare.probe import Probe
from kiln.command_line.compare.probes import write_probed
from kiln.command_line.goals import answer_of_goals
from kiln.command_line.running import Destination, running
from kiln.config import Model, load_model
from kiln.config.source import PythonSource
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.sources import fetch
from kiln.sources.npy import load_npz

WORK = Path("build", ".compare")
_DROPPED = ("aliases", "budget", "labels", "run", "format", "description", "licence", "name")


class WrongInputsError(KilnError):
    """The arrays of --inputs are not inputs of the model: no fault of the model."""


@dataclass(frozen=True)
class Row:
    """One tensor in one golden vector: the node that computes it, and its difference."""

    probe: Probe
    vector: str
    difference: Difference


@dataclass(frozen=True)
class Compared:
    """All rows in the order of execution, those of the model's own outputs in `outputs`."""

    model: str
    target: str
    runner: str
    rows: Sequence[Row]
    outputs: Sequence[Row]

    @property
    def culprit(self) -> Row | None:
        """The first tensor beyond its limit; None if there is none."""
        return next((row for row in self.rows if not row.difference.passed), None)


def compare_model(
    name: str, destination: Destination, inputs: Path | None = None, **options: str
) -> Compared:
    """Compare the model `name` (a name or a path) at `destination` with its reference, tensor by tensor.

    `inputs` is a .npz file with an array for each input of the model; without it, the golden inputs are
    used. The model is built twice below build/.compare: as it is, whose outputs tell whether it is right at
    all, and with all intermediate tensors as outputs. Raises KilnError where a build or a run fails, and
    WrongInputsError where the file's arrays do not fit.
    """
    model = load_model(name)
    folder = WORK / destination.target.name / model.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if isinstance(model.source, PythonSource):
        raise KilnError(
            f"model '{model.name}': compare accepts .onnx and .tflite files, not a Python function"
        )
    source = fetch(model.source)
    probed = folder / f"probed{source.suffix}"
    probes = write_probed(source, probed)
    golden = _golden_inputs(model, inputs, folder)
    plain = _configuration(model, source, model.name, golden, folder)
    whole = _configuration(model, probed, f"{model.name}_probed", golden, folder)
    try:
        runner, outputs = _run(plain, destination, options)
    except KilnError as error:
        if inputs is not None and (text := _of_inputs(inputs, folder, str(error))):
            raise WrongInputsError(text) from None
        raise
    if inputs is not None:
        _all_used(inputs, destination.target.name, model.name)
    _, tensors = _run(whole, destination, options)
    known = {probe.tensor: probe for probe in probes}
    order = {probe.tensor: number for number, probe in enumerate(probes)}
    rows = [
        Row(known.get(row.probe.tensor, row.probe), row.vector, row.difference)
        for row in sorted(tensors, key=lambda row: order.get(row.probe.tensor, len(order)))
    ]
    return Compared(model.name, destination.target.name, runner, rows, outputs)


def _golden_inputs(model: Model, inputs: Path | None, folder: Path) -> list[dict[str, Any]] | None:
    """The section golden.inputs for a .npz file: a .npy file for each array; None for no file."""
    if inputs is None:
        return None
    sources = {}
    for number, (name, array) in enumerate(load_npz(inputs).items()):
        path = folder / f"input_{number}.npy"
        np.save(path, array)
        sources[name] = {"kind": "file", "path": str(path.resolve())}
    return [{"kind": "tensors", "tensors": sources}]


def _of_inputs(inputs: Path, folder: Path, message: str) -> str:
    """An error of the build as one of the file `inputs`, if it is one; else an empty text."""
    missing = re.search(r"gives no tensor for input '(.*)'", message)
    names = list(load_npz(inputs))
    if missing is not None:
        return (
            f"{inputs}: no array '{missing[1]}', which is an input of the model; it has: {', '.join(names)}"
        )
    for number, name in enumerate(names):
        path = str((folder / f"input_{number}.npy").resolve())
        if path in message:
            return f"{inputs}: " + message.replace(path, f"array '{name}'")
    if "has no finite value in the reference" in message:
        return f"{inputs}: these inputs prove nothing: {message.partition(': it proves')[0]}"
    return ""


def _all_used(inputs: Path, target: str, name: str) -> None:
    """Raise WrongInputsError for an array that is no input of the model, whose bundle has been built."""
    ports = [entry["name"] for entry in read_json(Path("build", target, name, "manifest.json"))["inputs"]]
    unknown = sorted(set(load_npz(inputs)) - set(ports))
    if unknown:
        raise WrongInputsError(
            f"{inputs}: array '{unknown[0]}' is not an input of the model; the inputs are {', '.join(ports)}"
        )


def _configuration(
    model: Model, source: Path, name: str, golden: list[dict[str, Any]] | None, folder: Path
) -> Path:
    """Write the YAML file of a copy of `model` whose file is `source`. JSON is YAML."""
    content = model.model_dump(mode="json", exclude_unset=True)
    for key in _DROPPED:
        content.pop(key, None)
    content["source"] = {"kind": "file", "path": str(source.resolve())}
    if golden is not None:
        content["golden"] = {**content.get("golden", {}), "inputs": golden}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content, indent=1))
    return path


def _run(configuration: Path, destination: Destination, options: dict[str, str]) -> tuple[str, list[Row]]:
    """Build and run a copy; returns the runner and a row for each output of each golden vector."""
    built = build(str(configuration), destination.named, **options)
    with running(built.folder, destination) as found:
        vectors, tolerance = found.bundle.vectors(), found.bundle.tolerance()
        results = found.outputs([vector.inputs for vector in vectors], found.bundle.runs())
        rows = [
            Row(Probe("", "", entry.name), vector.name, difference(*pair))
            for vector, outputs in zip(vectors, results, strict=True)
            for entry, pair in zip(vector.output_entries, vector.pairs_with(outputs, tolerance), strict=True)
        ]
        return found.runner.description, rows


def as_json(compared: Compared) -> dict[str, Any]:
    """The result as JSON: every tensor with its node, error, limit, SNR in dB and greatest element."""

    def row(one: Row) -> dict[str, Any]:
        found = one.difference
        return {
            "node": one.probe.node,
            "op": one.probe.op,
            "tensor": one.probe.tensor,
            "vector": one.vector,
            "passed": found.passed,
            "error": found.error if np.isfinite(found.error) else None,
            "limit": found.limit,
            "snr_db": found.snr if found.snr is not None and np.isfinite(found.snr) else None,
            "where": list(found.where),
            "got": found.got if np.isfinite(found.got) else str(found.got),
            "want": found.want if np.isfinite(found.want) else str(found.want),
            "detail": found.detail,
        }

    culprit = compared.culprit
    return {
        "format": 1,
        "model": compared.model,
        "target": compared.target,
        "runner": compared.runner,
        "outputs": [row(one) for one in compared.outputs],
        "first": None if culprit is None else row(culprit),
        "tensors": [row(one) for one in compared.rows],
    }


def report(compared: Compared, destination: Destination, **options: str) -> Path | None:
    """Write the report of the compared model, whose graph is coloured by error; returns its path.

    Called after `save`. None where the report cannot be written, after a line with the reason.
    """
    configuration = WORK / compared.target / compared.model / f"{compared.model}.yaml"
    given = {"model": str(configuration), "target": destination.named, **options}
    answer = answer_of_goals([*(f"{key}={value}" for key, value in given.items()), "report", "-s"])
    if answer.error is not None:
        print(f"no report with the errors: {answer.error.text}", file=sys.stderr)
        return None
    return Path(answer.results[0].files["page"])


def save(compared: Compared) -> Path:
    """Write the result next to the copies; returns the file's path."""
    path = WORK / compared.target / compared.model / "compare.json"
    write_json(path, as_json(compared))
    return path
