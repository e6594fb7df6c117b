"""tune: the fastest of a few candidates for each kernel of a model, kept for the target's CPU."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kiln.config import Target
from kiln.device.hostcpu import obstacle
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.kernels import known
from kiln.kernels.cases import cases_of
from kiln.kernels.choices import FOLDER, RULES, Choice, file_of
from kiln.kernels.kernel import Machine
from kiln.kernels.pipeline import lower, machine_of
from kiln.params import store
from kiln.tune.candidates import first_round, second_round
from kiln.tune.measure import best_times
from kiln.tune.subject import Subject

# A measured choice is kept when it takes no more than this share of the rules' time: less is noise.
WORTH = 0.97


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in", dest="sources", type=Path, action="append", required=True,
        help="what the lower stage reads; once for each bucket",
    )  # fmt: skip
    parser.add_argument("--target", type=Path, required=True, help="target.json")
    parser.add_argument("--config", type=Path, required=True, help="slice of the model's configuration")
    parser.add_argument("--database", type=Path, default=FOLDER, help="folder of the files of all CPUs")
    parser.add_argument("--out", type=Path, required=True, help="what was measured")


def run(args: argparse.Namespace) -> None:
    config = read_json(args.config)
    target = Target.model_validate(read_json(args.target))
    known.check(target)
    reason = obstacle(target)
    if reason is not None:
        raise KilnError(
            f"tune: target '{target.name}' cannot be timed here: {reason}; an emulator's time is not its time"
        )
    threads = config.get("threads") or target.threads
    found: dict[str, Any] = {}
    keys = keys_of(args.sources, config["name"], target, threads)
    machine = machine_of(target, threads, "auto")
    for key, (choice, time, by_rule) in tuned(keys, target, machine, threads).items():
        found[key] = {**choice.describe(), "us": round(time, 1), "rule_us": round(by_rule, 1)}
        print(f"{key}: {by_rule:.0f} → {time:.0f} us {choice.describe() or 'as the rules say'}", flush=True)
    merge(args.database, target, found)
    write_json(args.out, {"cpu": target.cpu, "kernels": found})


_NUMBERS = re.compile(r"conv2d( [sdg]?[0-9]+(x[0-9]+)*)+")


class _Recorder(dict[str, Choice]):
    """Choices that decide nothing and note what was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[key] = None
        return default


def keys_of(sources: Iterable[Path], model: str, target: Target, threads: str) -> list[str]:
    """The kernels of a model for which there is something to choose: those of known sizes."""
    recorder = _Recorder()
    for source in sources:
        for case in cases_of(store.load(source)):
            lower(case.module, model, target, threads, winograd="auto", choices=recorder)
    return [key for key in recorder.asked if _NUMBERS.fullmatch(key)]


def tuned(
    keys: Iterable[str], target: Target, machine: Machine, threads: str
) -> dict[str, tuple[Choice, float, float]]:
    """For each key the best choice, its microseconds and those of the rules."""
    subjects = _subjects({key: first_round(key, machine) for key in keys}, target, threads, "a")
    times = best_times(subjects, target)
    best: dict[str, Choice] = {}
    least: dict[str, float] = {}
    for subject, time in zip(subjects, times, strict=True):
        if time < least.get(subject.key, float("inf")):
            best[subject.key], least[subject.key] = subject.choice, time
    # The rules and the winner again, beside its variants, so that all were measured at the same time.
    rounds = {key: list(dict.fromkeys([RULES, c, *second_round(key, c, machine)])) for key, c in best.items()}
    subjects = _subjects(rounds, target, threads, "b")
    times = best_times(subjects, target)
    found = _faster(subjects, times)
    # Once more, the rules against what beat them: the best of many is partly luck.
    pairs = {key: [RULES, choice] for key, (choice, _, _) in found.items() if choice != RULES}
    subjects = _subjects(pairs, target, threads, "c")
    return {**found, **_faster(subjects, best_times(subjects, target))} if pairs else found


def _faster(subjects: Iterable[Subject], times: Iterable[float]) -> dict[str, tuple[Choice, float, float]]:
    """For each key the fastest choice if it is worth it, else the rules; its microseconds and theirs."""
    timed = list(zip(subjects, times, strict=True))
    by_rule = {subject.key: time for subject, time in timed if subject.choice == RULES}
    result = {key: (RULES, time, time) for key, time in by_rule.items()}
    for subject, time in timed:
        limit = WORTH * by_rule[subject.key]
        if time <= limit and time < result[subject.key][1]:
            result[subject.key] = (subject.choice, time, by_rule[subject.key])
    return result


def _subjects(
    candidates: dict[str, list[Choice]], target: Target, threads: str, prefix: str
) -> list[Subject]:
    pairs = [(key, choice) for key, choices in candidates.items() for choice in choices]
    return [
        Subject(f"{prefix}{number}", key, choice, target, threads)
        for number, (key, choice) in enumerate(pairs)
    ]


def merge(folder: Path, target: Target, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what was found into the CPU's file; kernels for which the rules are best are taken out."""
    path = file_of(target, folder)
    old = read_json(path) if path.is_file() else {}
    kernels = dict(old.get("kernels", {})) if old.get("isa") == target.vector.isa else {}
    for key, entry in found.items():
        decided = set(entry) - {"us", "rule_us"}
        kernels.pop(key, None)
        if decided:
            kernels[key] = entry
    write_json(path, {"cpu": target.cpu, "isa": target.vector.isa, "kernels": kernels})
