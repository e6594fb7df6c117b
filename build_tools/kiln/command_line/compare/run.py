"""Builds a model with all intermediate tensors as outputs, runs it, and compares each with the reference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kiln.command_line.build import build
from kiln.command_line.compare.figures import Difference, difference
from kiln.command_line.compare.probes import Probe, write_probed
from kiln.config import Model, load_model, load_target
from kiln.config.source import PythonSource
from kiln.device.bundle import Bundle, GoldenVector, limits_of, open_bundle
from kiln.device.check.execute import execute
from kiln.device.check.runners import Runner
from kiln.device.check.runners.remote import chosen_runner
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.golden.compare import entry_limits
from kiln.sources import fetch

WORK = Path("build", ".compare")
_TIMEOUT = 3600.0  # seconds
_DROPPED = ("aliases", "budget", "labels", "run", "format", "description", "licence", "name")


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
    name: str, target: str, device: str | None = None, inputs: Path | None = None, **options: str
) -> Compared:
    """Compare the model `name` (a name or a path) on `target` with its reference, tensor by tensor.

    `inputs` is a .npz file with an array for each input of the model; without it, the golden inputs are
    used. The model is built twice below build/.compare: as it is, whose outputs tell whether it is right at
    all, and with all intermediate tensors as outputs. Raises KilnError for what cannot be built or run.
    """
    model = load_model(name)
    folder = WORK / target / model.name
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
    runner, outputs = _run(plain, target, device, options)
    _, tensors = _run(whole, target, device, options)
    by_tensor = {row.probe.tensor: row.probe for row in tensors}
    known = {probe.tensor: probe for probe in probes}
    order = {probe.tensor: number for number, probe in enumerate(probes)}
    rows = [
        Row(known.get(row.probe.tensor, row.probe), row.vector, row.difference)
        for row in sorted(tensors, key=lambda row: order.get(row.probe.tensor, len(order)))
        if row.probe.tensor in by_tensor
    ]
    return Compared(model.name, target, runner, rows, outputs)


def _golden_inputs(model: Model, inputs: Path | None, folder: Path) -> list[dict[str, Any]] | None:
    """The section golden.inputs for a .npz file: a .npy file for each array; None for no file."""
    if inputs is None:
        return None
    try:
        arrays = np.load(inputs, allow_pickle=False)
        tensors = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, AttributeError) as error:
        raise KilnError(f"{inputs}: not a .npz file of arrays: {error}") from error
    sources = {}
    for number, (name, array) in enumerate(tensors.items()):
        path = folder / f"input_{number}.npy"
        np.save(path, array)
        sources[name] = {"kind": "file", "path": str(path.resolve())}
    return [{"kind": "tensors", "tensors": sources}]


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


def _run(
    configuration: Path, target: str, device: str | None, options: dict[str, str]
) -> tuple[str, list[Row]]:
    """Build and run a copy; returns the runner and a row for each output of each golden vector."""
    built = build(str(configuration), target, **options)
    bundle = open_bundle(built.folder)
    loaded = load_target(target)
    work = configuration.parent / "programs"
    work.mkdir(exist_ok=True)
    with chosen_runner(loaded, None if device is None else Path(device), bundle.name) as runner:
        rows = _rows(bundle, runner, bundle.link_program(loaded, work))
        description = runner.description
    with suppress(OSError):
        shutil.rmtree(work)
    return description, rows


def _rows(bundle: Bundle, runner: Runner, program: Path) -> list[Row]:
    vectors = bundle.vectors()
    tolerance = limits_of(bundle.tolerance())
    dtypes = [entry["dtype"] for entry in vectors[0].output_entries]
    outcome = execute(
        bundle, program, runner, [vector.inputs for vector in vectors], dtypes, timeout=_TIMEOUT
    )
    return [
        Row(Probe("", "", entry["name"]), vector.name, found)
        for vector, outputs in zip(vectors, outcome.outputs, strict=True)
        for entry, found in _differences(vector, outputs, tolerance)
    ]


def _differences(
    vector: GoldenVector, outputs: Sequence[Any], tolerance: Any
) -> list[tuple[Any, Difference]]:
    return [
        (
            entry,
            difference(
                got,
                want,
                entry_limits(tolerance, entry),
                bool(entry.get("quantised")),
            ),
        )
        for got, want, entry in zip(outputs, vector.outputs, vector.output_entries, strict=True)
    ]


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


def save(compared: Compared) -> Path:
    """Write the result next to the copies; returns the file's path."""
    path = WORK / compared.target / compared.model / "compare.json"
    write_json(path, as_json(compared))
    return path
