"""`./kiln bench int8`: the forms of each model (benchmarks.int8_forms) in Kiln and its peers, in one run.

Peers read the same files as Kiln; LiteRT, which has no kernels for QDQ files, gets a file that TensorFlow's
converter quantises with the same data. All forms and contenders take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kiln.config import load_model
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.paths import data_dir

from benchmarks import calibration, subjects
from benchmarks.compare import Match, Plan, play
from benchmarks.contenders import Contender, Folders, LeftOutError, Subject, file_for
from benchmarks.int8_forms import DEFAULTS, FLOAT, FORMS, INT8, SHORT, Form, samples_of
from benchmarks.machine import description
from benchmarks.tables import cell, markdown
from benchmarks.timing import Times, paired_ratio
from benchmarks.workers import say

# Measured by default.
MODELS = ("resnet50", "resnet18", "mobilenet_v2", "efficientnet_lite0", "vit_tiny", "minilm_l6@1x64")
_RECOGNISES = 0.1  # accuracy of a float model from which that of its other forms means something
_CONVERTS = "litert"  # the peer that quantises by itself, from the float model


@dataclass
class Record:
    """The results of one or more runs, of which the table is made; `names`: contenders, Kiln first."""

    machine: str = ""
    names: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    forms: dict[str, list[Form]] = field(default_factory=dict)  # by model
    matches: list[Match] = field(default_factory=list)

    def take(self, match: Match) -> None:
        """Add a match, in place of one of the same model and number of threads."""
        other_matches = [m for m in self.matches if (m.model, m.threads) != (match.model, match.threads)]
        rank = {name: number for number, name in enumerate(MODELS)}
        self.matches = sorted(
            [*other_matches, match], key=lambda m: (m.threads, rank.get(m.model, len(rank)))
        )


def load(path: Path) -> Record:
    """The record of earlier runs; an empty one where there is none."""
    if not path.is_file():
        return Record()
    data: dict[str, Any] = read_json(path)
    forms = {
        model: [Form(**{**one, "file": Path(one["file"])}) for one in forms]
        for model, forms in data["forms"].items()
    }
    matches = [
        Match(**{**m, "times": {name: Times(**times) for name, times in m["times"].items()}})
        for m in data["matches"]
    ]
    return Record(**{**data, "forms": forms, "matches": matches})


def save(record: Record, path: Path) -> None:
    """Write the record to a JSON file, which `load` reads."""
    data = asdict(record)
    for forms in data["forms"].values():
        for one in forms:
            one["file"] = str(one["file"])
    write_json(path, data)


def entry(contender: str, kind: str) -> str:
    """The name of a contender with one form of a model, in a match."""
    return f"{contender}: {kind}"


def subjects_of(label: str, forms: Sequence[Form], folders: Folders, targets: Sequence[str]) -> list[Subject]:
    """One subject for each form, all with the inputs and the reference outputs of the float model."""
    chosen = subjects.parse(label)
    float_subjects = subjects.find(chosen, folders, targets)
    quantised_subjects = []
    for form in forms:
        source = form.file
        if form.kind == FLOAT:
            source = float_subjects.source
        elif chosen.sizes:
            about = load_model(chosen.model)
            dims = dict(zip(about.dims, chosen.sizes, strict=True))
            ports = subjects.interface_of(chosen.model, folders, targets)
            input_folder = folders.work / "inputs" / f"{form.name}@{label.partition('@')[2]}"
            input_folder.mkdir(parents=True, exist_ok=True)
            source = subjects.fix_shapes(source, ports, dims, input_folder / source.name)
        quantised_subjects.append(
            Subject(f"{label} {form.kind}", form.name, source, float_subjects.interface)
        )
    return quantised_subjects


def by_converter(label: str, model: str, whole: Subject, folders: Folders) -> Subject:
    """The float model and its calibration data, for the peer that makes an int8 file by itself."""
    data = calibration.data_for(model, folders.work / "int8")
    names = [tensor["name"] for tensor in whole.interface["inputs"]]
    file = samples_of(model, data, names, folders.work / "int8" / f"{model}_samples.npz")
    interface = {**whole.interface, "calibration": str(file.resolve())}
    return replace(whole, name=f"{label} {INT8} by TensorFlow", interface=interface)


def files_of(
    label: str,
    model: str,
    subject_of_kind: Mapping[str, Subject],
    contenders: Sequence[Contender],
    folders: Folders,
) -> dict[Contender, Path]:
    """By contender and form, the file that it loads; a line is printed for a form that it cannot load."""
    files: dict[Contender, Path] = {}
    for contender in contenders:
        for kind, given in subject_of_kind.items():
            subject = given
            if contender.module == _CONVERTS and kind != FLOAT:
                if kind != INT8:
                    continue
                subject = by_converter(label, model, subject_of_kind[FLOAT], folders)
            try:
                file = file_for(contender, subject, folders)
            except LeftOutError as reason:
                say(str(reason))
                continue
            files[replace(contender, name=entry(contender.name, kind))] = file
    return files


def run(
    args: argparse.Namespace, prepared: Mapping[str, Sequence[Form]], contenders: Sequence[Contender],
    folders: Folders, out: Path,
) -> None:  # fmt: skip
    """Measure the forms of each model, by its label; write int8.md and int8.json into `out`, print int8.md.

    With --isa, int8-ISA.md. Files are written after each model, and with --add keep what they hold of
    others. Raises KilnError where nothing could be measured.
    """
    plan = Plan(args.rounds, args.seconds, args.clock, args.cpus, args.isa)
    stem = f"int8-{args.isa}" if args.isa else "int8"
    record = load(out / f"{stem}.json") if args.add else Record()
    record.machine, record.rounds, record.seconds = description(args.cpus), plan.rounds, plan.seconds
    record.names = list(dict.fromkeys([*[c.name for c in contenders], *record.names]))
    record.versions |= {c.name: c.version for c in contenders}
    targets = list(dict.fromkeys(c.target for c in contenders if c.target is not None))
    measured = False
    for label, forms in prepared.items():
        model = subjects.parse(label).model
        try:
            subject_of_kind = dict(
                zip([form.kind for form in forms], subjects_of(label, forms, folders, targets), strict=True)
            )
        except LeftOutError as reason:
            say(str(reason))
            continue
        files = files_of(label, model, subject_of_kind, contenders, folders)
        record.forms[label] = list(forms)
        for threads in args.threads:
            say(f"{label}, {threads} thread{'s' if threads > 1 else ''}")
            match = play(replace(subject_of_kind[FLOAT], name=label), files, threads, plan, folders)
            measured = measured or bool(match.times)
            record.take(match)
            save(record, out / f"{stem}.json")
            atomic_write(out / f"{stem}.md", report(record))
    if not measured:
        raise KilnError("nothing could be measured; the lines above say why")
    print((out / f"{stem}.md").read_text())
    say(f"written to {out / f'{stem}.md'}")


def report(record: Record) -> str:
    """Markdown: the machine, the quality of each form, then the times for each number of threads."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    text = [
        f"{record.machine}.\n\n{versions}.\n\n",
        f"Median of {record.rounds} rounds, each the median of the runs in {record.seconds:g} s; ± is half "
        "the range of the rounds; † is not held to the instruction set of the others.\n\n",
        "### Quality\n\n", markdown(*_quality(record)), "\n",
    ]  # fmt: skip
    for threads in sorted({match.threads for match in record.matches}):
        chosen = [match for match in record.matches if match.threads == threads]
        text += [
            f"### {threads} thread{'s' if threads > 1 else ''}, ms\n\n",
            markdown(*_times(record, chosen)),
            "\n",
        ]
        text += ["How many times as fast Kiln's int8 form is:\n\n", markdown(*_leads(record, chosen)), "\n"]
    return "".join(text).rstrip("\n") + "\n"


def _quality(record: Record) -> tuple[list[str], list[list[str]]]:
    rows = []
    for label, forms in _in_order(record.forms).items():
        float_accuracy = next((one.accuracy for one in forms if one.kind == FLOAT), None) or 0.0
        for form in forms:
            top = (
                f"{100 * form.accuracy:.0f} %"
                if float_accuracy >= _RECOGNISES and form.accuracy is not None
                else ""
            )
            kept_layers = f"{form.kept} of {form.choices}" if form.kept is not None else ""
            snr = "" if form.snr is None else f"{form.snr:.1f}"
            rows.append([f"{label}, {form.kind}", snr, top, f"{form.bytes / 1e6:.1f}", kept_layers])
    return ["form", "SNR, dB", "top-1", "MB", "nodes in float"], rows


def _times(record: Record, matches: Iterable[Match]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for match in matches:
        for kind in FORMS:
            names = [entry(name, kind) for name in record.names]
            fastest = match.fastest(names)
            cells = [
                cell(match.times.get(name), name == fastest, match.threads == 1, name not in match.unheld)
                for name in names
            ]
            rows.append([f"{match.model}, {kind}", *cells])
    return ["form", *record.names], rows


def _leads(record: Record, matches: Iterable[Match]) -> tuple[list[str], list[list[str]]]:
    """Times over that of Kiln's int8 form, by model and target: Kiln's float32, each peer's best int8."""
    kiln_entries = [name for name in record.names if name.startswith("kiln ")]
    peers = [name for name in record.names if name not in kiln_entries]
    rows = []
    for match in matches:
        cells = []
        for name in kiln_entries:
            mine = match.times.get(entry(name, INT8))
            float_time = match.times.get(entry(name, FLOAT))
            theirs = [match.fastest([entry(peer, kind) for kind in (INT8, DEFAULTS)]) for peer in peers]
            times = [float_time, *(None if peer is None else match.times[peer] for peer in theirs)]
            cells += [
                "–" if mine is None or other is None else f"{paired_ratio(other, mine):.2f}"
                for other in times
            ]
        rows.append([match.model, *cells])
    header = [
        f"{compared_with}: {name}"
        for name in kiln_entries
        for compared_with in ("than own float32", *(f"than {peer}, int8" for peer in peers))
    ]
    return ["int8", *header], rows


def _in_order(forms: Mapping[str, list[Form]]) -> dict[str, list[Form]]:
    rank = {name: number for number, name in enumerate(MODELS)}
    return dict(sorted(forms.items(), key=lambda one: rank.get(one[0], len(rank))))


def kinds(names: Sequence[str]) -> list[str]:
    """The forms that --form asks for. Raises KilnError for an unknown one."""
    for name in names:
        if name not in (*SHORT, "none"):
            raise KilnError(f"--form '{name}': allowed are {', '.join(SHORT)} and none")
    return [SHORT[name] for name in names if name in SHORT]


def chosen(names: Sequence[str]) -> list[str]:
    """The models to measure, with sizes after @; by default all. Raises KilnError for one not of Kiln."""
    models = list(MODELS) if list(names) == list(subjects.MODELS) else list(names)
    labels = []
    for one in map(subjects.parse, models):
        name = load_model(one.model).name
        if not (data_dir("models") / f"{name}.yaml").is_file():
            raise KilnError(
                f"--model '{one.model}': int8 measures Kiln's own models, those of ./kiln list models"
            )
        labels.append(replace(one, model=name).label)
    return labels
