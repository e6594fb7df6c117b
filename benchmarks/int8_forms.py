"""Forms of a model that `./kiln bench int8` compares: float32, int8 by Kiln and by ONNX Runtime, mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from kiln.command_line.quantise.calibration import calibration_samples
from kiln.command_line.quantise.quantiser import Quantiser, SampleReader
from kiln.command_line.quantise.run import Goal, measurer, quantise
from kiln.command_line.quantise.search import Figures
from kiln.command_line.samples import Samples
from kiln.config import load_model
from kiln.config.source import PythonSource
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.frontend.quiet import quiet_stderr
from kiln.paths import data_dir
from kiln.scratch import scratch_folder
from kiln.sources import fetch

from benchmarks import calibration
from benchmarks.workers import say

FLOAT, INT8, DEFAULTS, MIXED = "float32", "int8", "int8, defaults of ONNX Runtime", "mixed"
FORMS = (FLOAT, INT8, DEFAULTS, MIXED)
# By value of --form, the form that it selects.
SHORT = {"defaults": DEFAULTS, "mixed": MIXED}
_SUFFIX = {INT8: "int8", DEFAULTS: "int8_defaults", MIXED: "mixed"}
MIXED_GAIN = 6.0  # dB that the mixed form has to gain over int8: half of its error
# Keys of a model's YAML that its other forms keep.
_KEPT = ("inputs", "dims", "preprocess", "golden")


@dataclass(frozen=True)
class Form:
    """A model in one form: its ONNX file, the name that Kiln's bundle has, what to build, and its quality.

    `snr`: of the outputs against those of the float model, in dB; None for the float model. `accuracy`:
    fraction of the calibration data's labels that are found. `kept`: nodes in float, of `choices`.
    """

    model: str
    kind: str
    name: str
    build: str  # a model's name, or its YAML file
    file: Path
    bytes: int
    snr: float | None = None
    accuracy: float | None = None
    kept: int | None = None
    choices: int | None = None


def prepare(model: str, folder: Path, kinds: Sequence[str] = FORMS, sizes: Sequence[int] = ()) -> list[Form]:
    """Forms of one of Kiln's own models, made in `folder` unless they are there. Raises KilnError.

    `kinds`: the forms of FORMS to make, besides float32 and int8. `sizes`: sizes of the dynamic dimensions,
    for which the other forms are built. The calibration data are real for models of benchmarks.calibration,
    and the golden inputs for others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(model)
    data = calibration.data_for(model, folder)
    quantised_kinds = [kind for kind in _SUFFIX if kind == INT8 or kind in kinds]
    files = {kind: folder / f"{model}_{_SUFFIX[kind]}.onnx" for kind in quantised_kinds}
    if not files[INT8].is_file():
        say(f"{model}: quantised with {data or 'its golden inputs'}")
        quantise(model, data, files[INT8])
    figures = _figures(files[INT8])
    if DEFAULTS in files and not files[DEFAULTS].is_file():
        say(f"{model}: quantised by onnxruntime.quantization with its defaults")
        by_defaults(model, data, files[DEFAULTS])
    if MIXED in files and not files[MIXED].is_file():
        goal = float(figures["quantised"]["snr"]) + MIXED_GAIN
        say(f"{model}: mixed precision for {goal:.1f} dB")
        quantise(model, data, files[MIXED], goal=Goal(min_snr=goal))
    of_float = figures["float"]
    forms = [Form(model, FLOAT, model, model, source, of_float["bytes"], accuracy=of_float.get("accuracy"))]
    for kind, path in files.items():
        quantised = _figures(path)["quantised"]
        kept = len(quantised["kept"]) if "kept" in quantised else None
        forms.append(
            Form(
                model, kind, path.stem, str(_config(model, path, sizes)), path, quantised["bytes"],
                quantised["snr"], quantised.get("accuracy"), kept, quantised.get("choices"),
            )
        )  # fmt: skip
    return forms


def _source(model: str) -> Path:
    """The float model's file. Raises KilnError for a model without one."""
    source = load_model(model).source
    if isinstance(source, PythonSource):
        raise KilnError(f"model '{model}': int8 measures models of ONNX files")
    return fetch(source)


def _figures(path: Path) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = read_json(path.with_suffix(".json"))
    return figures


def _config(model: str, path: Path, sizes: Sequence[int]) -> Path:
    """Write the YAML file of a form, with the keys of the model's own YAML about its inputs."""
    configuration = yaml.safe_load((data_dir("models") / f"{model}.yaml").read_text())
    source = {"kind": "file", "path": str(path.resolve())}
    kept = {key: configuration[key] for key in _KEPT if key in configuration}
    for name, size in zip(kept["dims"] if sizes else [], sizes, strict=True):
        kept["dims"][name] = {"min": size, "max": size, "buckets": [size]}
    config = path.with_suffix(".yaml")
    atomic_write(config, yaml.safe_dump({"format": "onnx", "source": source, **kept}))
    return config


def by_defaults(model: str, data: Path | None, out: Path) -> None:
    """Quantise the model by onnxruntime.quantization with the same data and its default options."""
    from onnxruntime.quantization import quantize_static

    config = load_model(model)
    with scratch_folder("bench") as scratch:
        quantiser = Quantiser(_source(model), scratch)
        samples = calibration_samples(config, data, quantiser.ports(), quantiser.step())
        scratch_file = scratch / "defaults.onnx"
        with quiet_stderr():
            quantize_static(str(quantiser.prepared), str(scratch_file), SampleReader(samples.runs))
        measure, _ = measurer(quantiser, samples)
        figures: Figures = measure(scratch_file)
        content = scratch_file.read_bytes()
    atomic_write(out, content)
    measured = {"snr": figures.snr, "accuracy": figures.accuracy, "bytes": len(content)}
    write_json(out.with_suffix(".json"), {"quantised": measured})


def samples_of(model: str, data: Path | None, ports: Sequence[str], out: Path) -> Path:
    """The calibration data as a .npz file with an array of all samples for each input of `ports`."""
    if not out.is_file():
        config = load_model(model)
        with scratch_folder("bench") as scratch:
            quantiser = Quantiser(_source(model), scratch)
            samples: Samples = calibration_samples(config, data, quantiser.ports(), quantiser.step())
        arrays: dict[str, Any] = {name: np.stack([run[name] for run in samples.runs]) for name in ports}
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_suffix(".part.npz")
        np.savez(partial, **arrays)
        partial.replace(out)
    return out
