"""Builds a model with all intermediate tensors as outputs, runs it, and compares each with the reference."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.command_line.build import BuiltBundle, build_copies
from kiln.command_line.compare.figures import Difference, difference
from kiln.command_line.compare.probe import Probe
from kiln.command_line.compare.probes import write_probed
from kiln.command_line.goals import answer_of_goals
from kiln.command_line.model_files import graph_of, keys_of_copy, write_copy
from kiln.command_line.running import Destination, running
from kiln.config import Model, load_model
from kiln.errors import KilnError
from kiln.files import make_build_folder, write_json
from kiln.manifest import read_manifest
from kiln.sources.npy import load_npz

WORK = Path("build", ".compare")


class WrongInputsError(KilnError):
    """The arrays of --inputs are not inputs of the model: no fault of the model."""


@dataclass(frozen=True)
class Row:
    """One tensor in one golden vector: the node that computes it, and its difference.

    `scaled`: compared after factors for its channels, which a float model has in the next layer's weights.
    """

    probe: Probe
    vector: str
    difference: Difference
    scaled: bool = False


@dataclass(frozen=True)
class Compared:
    """A comparison: `rows` for all tensors in the order of execution, `outputs` for the model's own outputs.

    `reference` names the other side of the comparison; `stored_as` has further names of tensors in the model.
    """

    model: str
    target: str
    runner: str
    rows: Sequence[Row]
    outputs: Sequence[Row]
    reference: str = "the reference"
    stored_as: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def culprit(self) -> Row | None:
        """The first tensor beyond its limit; None if all pass."""
        return next((row for row in self.rows if not row.difference.passed), None)

    @property
    def fault(self) -> Row | None:
        """The first tensor beyond its limit, or else the first output of the model as it is.

        A kernel that computes several nodes at once may be wrong, and be another where all tensors are
        outputs.
        """
        return self.culprit or next((row for row in self.outputs if not row.difference.passed), None)


def compare_model(
    name: str, destination: Destination, inputs: Path | None = None, **options: str
) -> Compared:
    """Compare the model `name` (a name or a path) at `destination` with its reference, tensor by tensor.

    `inputs` is a .npz file with an array for each input of the model; without it, the golden inputs are
    used. Two copies of the model are built: as it is, whose outputs tell whether it is right at
    all, and with all intermediate tensors as outputs. Raises KilnError where a build or a run fails, and
    WrongInputsError where the file's arrays do not fit.
    """
    model = load_model(name)
    folder = WORK / destination.target.name / model.name
    with new_folder(folder):
        model, source = graph_of(model, folder, "compare", (".onnx", ".tflite"))
        probed = folder / f"probed{source.suffix}"
        probes = write_probed(source, probed)
        arrays = None if inputs is None else load_npz(inputs)
        golden = None if arrays is None else golden_inputs(arrays, folder)
        plain = configuration_of(model, source, model.name, golden, folder)
        with_probes = configuration_of(model, probed, f"{model.name}_probed", golden, folder)
    with errors_of_inputs(inputs, arrays, folder), errors_of_the_copy(model, source, probed):
        ran, ran_probed = _build_and_run([plain, with_probes], destination, options)
    unknown = sorted(set(arrays or ()) - set(ran.inputs))
    if unknown:
        raise WrongInputsError(
            f"{inputs}: array '{unknown[0]}' is not an input of the model; the inputs are "
            f"{', '.join(ran.inputs)}"
        )
    named_probes = {probe.tensor: probe for probe in probes}
    order = {probe.tensor: number for number, probe in enumerate(probes)}
    rows = [
        Row(named_probes.get(row.probe.tensor, row.probe), row.vector, row.difference)
        for row in sorted(ran_probed.rows, key=lambda row: order.get(row.probe.tensor, len(order)))
    ]
    return Compared(model.name, destination.target.name, ran.runner, rows, ran.rows)


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make the folder anew, for files that the block writes; remove it where one cannot be written."""
    shutil.rmtree(folder, ignore_errors=True)
    make_build_folder(folder)
    try:
        yield
    except (OSError, KilnError) as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):  # such as a full disk
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def errors_of_inputs(inputs: Path | None, arrays: Mapping[str, Array] | None, folder: Path) -> Iterator[None]:
    """Errors about the `arrays` of the file `inputs` name that file, and are WrongInputsError.

    `folder` has the arrays in files of their own, as `golden_inputs` writes them.
    """
    try:
        yield
    except KilnError as error:
        if arrays is not None and (text := _input_error(arrays, folder, str(error))):
            raise WrongInputsError(f"{inputs}: {text}") from None
        raise


@contextmanager
def errors_of_the_copy(model: Model, source: Path, probed: Path) -> Iterator[None]:
    """Errors of the copy of `model` whose file is `probed` name the model and its file `source` instead."""
    try:
        yield
    except KilnError as error:
        text = str(error).replace(str(probed), str(source))
        raise KilnError(text.replace(f"{model.name}_probed", model.name)) from None


def golden_inputs(arrays: Mapping[str, Array], folder: Path) -> list[dict[str, Any]]:
    """The section golden.inputs for the arrays of a user: a .npy file for each array."""
    sources = {}
    for number, (name, array) in enumerate(arrays.items()):
        path = folder / f"input_{number}.npy"
        np.save(path, array)
        sources[name] = {"kind": "file", "path": str(path.resolve())}
    return [{"kind": "tensors", "tensors": sources}]


def _input_error(arrays: Mapping[str, Array], folder: Path, message: str) -> str:
    """The error of a build, `message`, in terms of the user's arrays; empty for another error."""
    missing = re.search(r"gives no tensor for input '(.*)'", message)
    if missing is not None:
        names = f"the file has: {', '.join(arrays)}" if arrays else "the file has no arrays"
        return f"no array '{missing[1]}', which is an input of the model; {names}"
    unknown = re.search(r"no input is called '(.*)', there are: (.*)", message)
    if unknown is not None:
        return f"array '{unknown[1]}' is not an input of the model; the inputs are {unknown[2]}"
    for number, name in enumerate(arrays):
        path = str((folder / f"input_{number}.npy").resolve())
        if path in message:
            return message.replace(path, f"array '{name}'")
    nothing = re.search(r"([^:]*: output '.*') of \S+ has no finite value in the reference", message)
    if nothing is not None:
        infinite = [name for name, array in arrays.items() if not _all_finite(array)]
        cause = f"; array '{infinite[0]}' has NaN or infinite values" if infinite else ""
        return f"these inputs prove nothing: {nothing[1]} has no finite value in the reference{cause}"
    return ""


def _all_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def configuration_of(
    model: Model, source: Path, name: str, golden: list[dict[str, Any]] | None, folder: Path
) -> Path:
    """Write the YAML file of a copy of `model`; `source`: the file with its graph."""
    content = keys_of_copy(model, source, ["cut"])
    if golden is not None:
        content["golden"] = {**content.get("golden", {}), "inputs": golden}
    return write_copy(content, folder, name)


@dataclass(frozen=True)
class _RunResult:
    """A run of a bundle: the runner, a row for each output of each golden vector, the names of the inputs."""

    runner: str
    rows: list[Row]
    inputs: list[str]


def _build_and_run(
    configurations: Sequence[Path], destination: Destination, options: dict[str, str]
) -> list[_RunResult]:
    """Build copies of the model together, and run one after the other."""
    return [_run(built, destination) for built in build_copies(configurations, destination.named, **options)]


def _run(built: BuiltBundle, destination: Destination) -> _RunResult:
    """Run a copy of the model on its golden inputs."""
    names = [entry["name"] for entry in read_manifest(built.folder)["inputs"]]
    with running(built.folder, destination) as running_bundle:
        vectors, tolerance = running_bundle.bundle.vectors(), running_bundle.bundle.tolerance()
        results = running_bundle.outputs([vector.inputs for vector in vectors], running_bundle.bundle.runs())
        rows = [
            Row(Probe("", "", entry.name), vector.name, difference(*pair))
            for vector, outputs in zip(vectors, results, strict=True)
            for entry, pair in zip(vector.output_entries, vector.pairs_with(outputs, tolerance), strict=True)
        ]
        return _RunResult(running_bundle.runner.description, rows, names)


def as_json(compared: Compared) -> dict[str, Any]:
    """The result as JSON: every tensor with its node, error, limit, SNR in dB and element furthest off."""

    def row(compared_row: Row) -> dict[str, Any]:
        difference = compared_row.difference
        return {
            "node": compared_row.probe.node,
            "op": compared_row.probe.op,
            "tensor": compared_row.probe.tensor,
            "vector": compared_row.vector,
            "stored_as": list(compared.stored_as.get(compared_row.probe.tensor, ())),
            "scaled": compared_row.scaled,
            "passed": difference.passed,
            "error": difference.error if np.isfinite(difference.error) else None,
            "limit": difference.limit,
            "snr_db": difference.snr if difference.snr is not None and np.isfinite(difference.snr) else None,
            "where": list(difference.where),
            "got": difference.got if np.isfinite(difference.got) else str(difference.got),
            "want": difference.want if np.isfinite(difference.want) else str(difference.want),
            "detail": difference.detail,
        }

    culprit = compared.culprit
    return {
        "format": 1,
        "model": compared.model,
        "target": compared.target,
        "runner": compared.runner,
        "reference": compared.reference,
        "outputs": [row(compared_row) for compared_row in compared.outputs],
        "first": None if culprit is None else row(culprit),
        "tensors": [row(compared_row) for compared_row in compared.rows],
    }


def report(compared: Compared, destination: Destination, **options: str) -> Path | None:
    """Write the report of the compared model, whose graph is coloured by error; returns its path.

    Called after `save`. None where the report cannot be written, after a line with the reason.
    """
    configuration = WORK / compared.target / compared.model / f"{compared.model}.yaml"
    settings = {"model": str(configuration), "target": destination.named, **options}
    answer = answer_of_goals([*(f"{key}={value}" for key, value in settings.items()), "report", "-s"])
    if answer.error is not None:
        print(f"no report with the errors: {answer.error.text}", file=sys.stderr)
        return None
    return Path(answer.results[0].files["page"])


def save(compared: Compared) -> Path:
    """Write the result next to the copies; returns the file's path."""
    path = WORK / compared.target / compared.model / "compare.json"
    write_json(path, as_json(compared))
    return path
