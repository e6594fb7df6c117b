"""`./kiln bench int8`: models quantised by `kiln quantise`, and peers on the same QDQ file, in one run.

For each model: the float32 bundle, the int8 bundle and every peer that reads the quantised file, in turns.
The table shows milliseconds, the signal-to-noise ratio of the quantised outputs, and the bytes of both files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from kiln.command_line.quantise.run import quantise
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.paths import data_dir

from benchmarks import calibration, subjects
from benchmarks.compare import Match, Plan, play
from benchmarks.contenders import Contender, Folders, LeftOutError, file_for
from benchmarks.machine import description
from benchmarks.tables import cell, markdown
from benchmarks.workers import say

# Measured by default.
MODELS = ("resnet50", "resnet18", "mobilenet_v2", "efficientnet_lite0", "vit_tiny", "minilm_l6")
_RECOGNISES = 0.1  # accuracy of a float model from which that of its quantised form means something
# Keys of a model's YAML that the quantised model keeps.
_KEPT = ("inputs", "dims", "preprocess", "golden")


@dataclass(frozen=True)
class QuantisedSubject:
    """A model and its quantised form: the name and YAML file of the latter, and what quantisation costs."""

    model: str
    name: str
    config: Path
    snr: float
    float_bytes: int
    bytes: int
    float_accuracy: float | None = None
    accuracy: float | None = None


def prepare(model: str, folder: Path) -> QuantisedSubject:
    """Quantise `model` with real data (benchmarks.calibration) into `folder`, unless that was done.

    A model without such data is quantised with its golden inputs. Raises KilnError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{model}_int8"
    out, config = folder / f"{name}.onnx", folder / f"{name}.yaml"
    if not out.is_file():
        data = calibration.data_for(model, folder)
        say(f"{model}: quantised with {'its golden inputs' if data is None else data}")
        quantise(model, data, out)
    given = yaml.safe_load((data_dir("models") / f"{model}.yaml").read_text())
    source = {"kind": "file", "path": str(out.resolve())}
    kept = {key: given[key] for key in _KEPT if key in given}
    atomic_write(config, yaml.safe_dump({"format": "onnx", "source": source, **kept}))
    figures = read_json(out.with_suffix(".json"))
    found = figures["quantised"]
    return QuantisedSubject(
        model, name, config, float(found["snr"]), figures["float"]["bytes"], found["bytes"],
        figures["float"].get("accuracy"), found.get("accuracy"),
    )  # fmt: skip


def measure(
    one: QuantisedSubject, contenders: Sequence[Contender], threads: int, plan: Plan, folders: Folders
) -> Match:
    """Times of Kiln in float32 and int8, of peers in int8. Raises LeftOutError if nothing was built."""
    targets = [contender.target for contender in contenders if contender.target is not None]
    subject = subjects.find(subjects.Chosen(one.name), folders, targets)
    whole = subjects.find(subjects.Chosen(one.model), folders, targets)
    files: dict[Contender, Path] = {}
    for contender in contenders:
        try:
            files[contender] = file_for(contender, subject, folders)
            if contender.target is not None:
                files[in_floats(contender)] = file_for(contender, whole, folders)
        except LeftOutError as reason:
            say(str(reason))
    say(f"{one.name}, {threads} thread{'s' if threads > 1 else ''}")
    return play(subject, files, threads, plan, folders)


def in_floats(contender: Contender) -> Contender:
    """The same target with the model's float32 bundle."""
    return replace(contender, name=f"{contender.name} float32")


def report(
    machine: str,
    models: Sequence[QuantisedSubject],
    contenders: Sequence[Contender],
    matches: Sequence[Match],
) -> str:
    """Markdown: versions, then a row for each model and number of threads."""
    names = []
    for contender in contenders:
        names += [contender.name] + ([in_floats(contender).name] if contender.target is not None else [])
    by_name = {one.name: one for one in models}
    rows = []
    for match in matches:
        one = by_name[match.model]
        int8 = [name for name in names if not name.endswith(" float32")]
        fastest = match.fastest(int8)
        cells = [cell(match.times.get(name), name == fastest, match.threads == 1) for name in names]
        size = f"{one.float_bytes / 1e6:.1f} / {one.bytes / 1e6:.1f}"
        rows.append([one.model, str(match.threads), f"{one.snr:.1f}", _accuracy(one), size, *cells])
    header = ["ms", "threads", "SNR, dB", "top-1 float32 / int8", "MB float32 / int8", *names]
    versions = ", ".join(f"{contender.name} {contender.version}" for contender in contenders)
    return f"{machine}.\n\n{versions}.\n\n{markdown(header, rows)}"


def _accuracy(one: QuantisedSubject) -> str:
    """Both accuracies in percent; empty without labels, and for seeded weights, which recognise nothing."""
    if one.accuracy is None or (one.float_accuracy or 0.0) < _RECOGNISES:
        return ""
    return f"{100 * (one.float_accuracy or 0.0):.0f} / {100 * one.accuracy:.0f} %"


def run(
    args: argparse.Namespace, prepared: Sequence[QuantisedSubject], contenders: Sequence[Contender],
    folders: Folders, out: Path,
) -> None:  # fmt: skip
    """Measure, write int8.md into `out` and print it. Raises KilnError where nothing could be measured."""
    plan = Plan(args.rounds, args.seconds, args.clock, args.cpus)
    matches: list[Match] = []
    for one in prepared:
        for threads in args.threads:
            try:
                matches.append(measure(one, contenders, threads, plan, folders))
            except LeftOutError as reason:
                say(str(reason))
    if not any(match.times for match in matches):
        raise KilnError("nothing could be measured; the lines above say why")
    text = report(description(args.cpus), prepared, contenders, matches)
    atomic_write(out / "int8.md", text)
    print(text)
    say(f"written to {out / 'int8.md'}")


def chosen(names: Sequence[str]) -> list[str]:
    """The models to measure: all by default. Raises KilnError for one that is not among Kiln's own."""
    models = list(MODELS) if list(names) == list(subjects.MODELS) else list(names)
    for name in models:
        if "@" in name:
            raise KilnError(f"--model '{name}': int8 measures golden vectors, without sizes after @")
        if not (data_dir("models") / f"{load_model(name).name}.yaml").is_file():
            raise KilnError(f"--model '{name}': int8 measures Kiln's own models, those of ./kiln list models")
    return [load_model(name).name for name in models]
