"""byoc-choose: for each subgraph that libraries can compute, chooses the fastest of them and Kiln's kernels.

Times are stored in a file per target. A time is reused while everything that it depends on is unchanged: the
content of Kiln's kernels, the library's version, the source of its call, the target and the CPU. So a
repeated build makes the same choices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich import box
from rich.table import Table
from rich.text import Text

from kiln.byoc.libraries.folder import LibraryFolder
from kiln.byoc.passes import ChosenBackends
from kiln.byoc.registry import load, names
from kiln.config import Target, canonical_json, cpus, read_target, target_config
from kiln.config.faults import first_fault
from kiln.config.host import read_cpuinfo
from kiln.config.library_choices import LibraryChoices, LibraryTime, TimedSubgraph
from kiln.config.records import read
from kiln.config.slice_records import LowerConfig
from kiln.device.check import host_cpu
from kiln.device.check.runners import open_runner
from kiln.device.check.runners.remote import RemoteRunner, remote_runner
from kiln.device.deploy.registry import read_device
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.lower import target_check
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.target_trial import check_together
from kiln.stages.target import ChooseStage
from kiln.tables import table_console
from kiln.tir.tuning_records import choices_of
from kiln.tune.gpu.choose import choose_on_gpu
from kiln.tune.measure import Bench
from kiln.tune.subgraphs import Subgraph, SubgraphSubject, passes_for, subgraphs_of

_COLD = 32 << 20  # bytes that are read before each run, about as many as a network reads
_MILLISECONDS = 40
_BATCH = 6  # number of subgraphs whose subjects are linked into one program
_WIDTH = 160  # characters of the table, so that a subgraph's key is not wrapped
OWN = "kiln"
_STORED = TypeAdapter(dict[str, dict[str, LibraryTime]])  # by digest and CPU


def run(args: ChooseStage) -> None:
    """Time the subgraphs whose times are not known, print a table, and write the choices to --out."""
    config, choices = read(LowerConfig, args.config), read(LibraryChoices, args.byoc)
    target = read_target(args.target)
    target_check.check(target)
    target = target.for_variant(target.base)  # calls of libraries are the same in every variant
    check_together(target)
    if target.cuda is not None:
        choose_on_gpu(args, config, choices, target)
        return
    threads = config.threads_on(target)
    backends = [load(name) for name in choices.backends]
    libraries = [LibraryFolder.read(path) for path in args.libraries]
    allowed = ChosenBackends(choices.byoc)
    subgraphs = subgraphs_of(args.sources, backends, target, threads, allowed)
    if choices.globs_of_model:
        choices.byoc.check_globs(config.name, target.name, names(), choices.backends, allowed.subgraphs)
    descriptions = {library.description["backend"]: library.description for library in libraries}
    maker = _RaceMaker(config, target, threads, descriptions)
    races = [maker.race(number, subgraph) for number, subgraph in enumerate(subgraphs.values())]
    with _open_bench(target, args.device, config.name, libraries) as (bench, machine):
        print(f"{config.name} on {target.name}: {machine.text}", flush=True)
        times = _times_of(races, bench, machine.cpu, args.times)
    chosen = {
        race.subgraph.key: best for race in races if (best := _fastest(times[race.subgraph.key])) != OWN
    }
    table = [
        TimedSubgraph(
            part=race.subgraph.key, count=race.subgraph.count, times=times[race.subgraph.key],
            chosen=chosen.get(race.subgraph.key, OWN), why=_reason(times[race.subgraph.key]),
        )
        for race in races
    ]  # fmt: skip
    summary = _summary(table, choices.backends, target, machine)
    _print_choices(table, choices, summary)
    made = {"chosen": chosen, "measured_on": machine.cpu, "parts": table, "summary": summary}
    write_json(args.out, choices.model_copy(update=made).model_dump(mode="json"))


@dataclass(frozen=True)
class _TimingMachine:
    """The machine that times subgraphs.

    `cpu` is the CPU whose times are used; None where nothing can be timed, for the reason `obstacle`; then
    the stored times of any CPU are used. `text`: a sentence for the user that names the machine.
    """

    cpu: str | None
    text: str
    obstacle: str | None = None


@dataclass(frozen=True)
class _Race:
    """One subgraph and its subjects, which are timed against each other; the first has Kiln's own kernels.

    `digests`: by backend, the key of its time in the file of times.
    """

    subgraph: Subgraph
    subjects: Sequence[SubgraphSubject]
    digests: Mapping[str, str]


class _RaceMaker:
    """Makes the race of each subgraph.

    `descriptions`: the library description of each backend, by the backend's name.
    """

    def __init__(
        self, config: LowerConfig, target: Target, threads: str, descriptions: Mapping[str, Any]
    ) -> None:
        self.config, self.target, self.threads, self.descriptions = config, target, threads, descriptions
        self.choices = choices_of(target)

    def race(self, number: int, subgraph: Subgraph) -> _Race:
        """The race of `subgraph`; `number` makes the names of its subjects unique."""
        kiln_subject = self._subject(f"s{number}", subgraph)
        library_subjects = {
            backend.name: self._subject(f"s{number}_{backend.name}", subgraph, backend)
            for backend in subgraph.backends
        }
        digests = {
            backend: self._digest(kiln_subject, library_subject, backend)
            for backend, library_subject in library_subjects.items()
        }
        return _Race(subgraph, [kiln_subject, *library_subjects.values()], digests)

    def _subject(self, name: str, subgraph: Subgraph, backend: Any = None) -> SubgraphSubject:
        external = None if backend is None else passes_for(backend, self.target, self.threads)
        steps = lower(
            subgraph.module,
            Lowering(name, self.target, self.threads, self.config.winograd, self.choices, external),
            None,
        )
        return SubgraphSubject(name, subgraph.key, steps, None if backend is None else backend.name)

    def _digest(self, kiln_subject: SubgraphSubject, library_subject: SubgraphSubject, backend: str) -> str:
        codes = library_subject.externals.values()
        sources = [code.source.replace(library_subject.name, "") for code in codes]
        version = self.descriptions[backend]["version"]
        facts = [sorted(kiln_subject.content), sources, version, target_config(self.target)]
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:24]


def _times_of(
    races: Sequence[_Race], bench: Bench | None, cpu: str | None, path: Path
) -> dict[str, dict[str, LibraryTime | None]]:
    """Times by subgraph and backend: microseconds, their ratio to Kiln's own kernels, and whether to use it.

    Times that the file `path` lacks are measured on `bench` and stored there; without a bench they are None.
    """
    stored = _stored_in(path)

    def entry(digest: str) -> LibraryTime | None:
        by_cpu = stored.get(digest, {})
        return by_cpu.get(cpu) if cpu is not None else next(iter(by_cpu.values()), None)

    missing = [race for race in races if any(entry(digest) is None for digest in race.digests.values())]
    if len(missing) < len(races):
        print(f"the times of {len(races) - len(missing)} of {len(races)} subgraphs are known from before")
    while bench is not None and missing:
        batch, missing = missing[:_BATCH], missing[_BATCH:]
        kiln_us = 0.0
        for timed in bench.race([subject for race in batch for subject in race.subjects], _MILLISECONDS):
            backend = getattr(timed.subject.choice, "backend", None)
            if backend is None:
                kiln_us = timed.us
                continue
            race = next(race for race in batch if race.subgraph.key == timed.subject.key)
            worth = timed.ratio <= bench.worth and timed.wins >= bench.wins
            times = LibraryTime(
                kiln=round(kiln_us, 1), us=round(timed.us, 1), ratio=round(timed.ratio, 3), worth=worth
            )
            stored.setdefault(race.digests[backend], {})[str(cpu)] = times
        write_json(path, _STORED.dump_python(stored))
    return {
        race.subgraph.key: {name: entry(digest) for name, digest in race.digests.items()} for race in races
    }


def _stored_in(path: Path) -> dict[str, dict[str, LibraryTime]]:
    """The times of earlier builds, by digest and CPU; none, with a line that says so, of a damaged file."""
    try:
        return _STORED.validate_python(read_json(path)) if path.is_file() else {}
    except (KilnError, ValueError) as error:
        text = f"{path}: {first_fault(error)}" if isinstance(error, ValidationError) else str(error)
        print(f"{text}: the subgraphs are timed again")
        return {}


def _fastest(times: Mapping[str, LibraryTime | None]) -> str:
    """The fastest backend among those that are worth using; OWN if there is none."""
    worth = {name: entry.ratio for name, entry in times.items() if entry is not None and entry.worth}
    return min(worth, key=lambda name: (worth[name], name)) if worth else OWN


def _reason(times: Mapping[str, LibraryTime | None]) -> str:
    """The reason for the choice of one subgraph, for the user: the measured ratio of the best library."""
    ratios = {name: entry.ratio for name, entry in times.items() if entry is not None}
    if not ratios:
        return "not timed"
    best = _fastest(times)
    name = best if best != OWN else min(ratios, key=lambda backend: (ratios[backend], backend))
    text = f"{name} takes {ratios[name]:.2f} of the time"
    return f"{text}, within the scatter" if best == OWN and ratios[name] < 1 else text


def _summary(
    table: Sequence[TimedSubgraph], backends: Sequence[str], target: Target, machine: _TimingMachine
) -> str:
    """The choices for a model and their reason, in one line."""
    total = sum(entry.count for entry in table)
    by_libraries = sum(entry.count for entry in table if entry.chosen != OWN)
    timed = any(times is not None for entry in table for times in entry.times.values())
    if by_libraries:
        text = f"libraries compute {by_libraries} of {total} subgraphs, which were measured to be faster so"
    elif not table:
        text = f"Kiln's own kernels compute everything: {', '.join(backends)} support no subgraph of it"
    elif timed:
        text = f"Kiln's own kernels compute all {total} subgraphs: no library was measured to be faster"
    else:
        text = (
            f"Kiln's own kernels compute all {total} subgraphs: they cannot be timed here: {machine.obstacle}"
        )
    return f"byoc=auto on {target.name}: {text}"


def _print_choices(table: Sequence[TimedSubgraph], choices: LibraryChoices, summary: str) -> None:
    for name, reason in choices.absent.items():
        print(f"{name} is not used: {reason}")
    if not table:
        print(summary)
        return
    names = choices.backends
    head = ("subgraph", "times", f"{OWN}, us", *(f"{name}, us" for name in names), "computed by", "why")
    grid = Table(*head, box=box.SIMPLE)
    for entry in table:
        grid.add_row(*map(Text, _row(entry, names)))
    table_console(_WIDTH).print(grid)
    print(summary)


def _row(entry: TimedSubgraph, names: Sequence[str]) -> list[str]:
    """Cells of the table for one subgraph; `-`: the backend does not support it, `?`: it was not timed."""
    times = {name: time for name, time in entry.times.items() if time is not None}
    kiln_cell = f"{min(time.kiln for time in times.values()):.1f}" if times else "?"
    library_cells = [
        "-" if name not in entry.times else f"{times[name].us:.1f}" if name in times else "?"
        for name in names
    ]
    return [entry.part, str(entry.count), kiln_cell, *library_cells, entry.chosen, entry.why]


@contextmanager
def _open_bench(
    target: Target, device: Path | None, model: str, libraries: Sequence[LibraryFolder]
) -> Iterator[tuple[Bench | None, _TimingMachine]]:
    """Yield the bench that times subgraphs: on the device if given, else on this machine.

    The bench is None where this machine cannot run code for the target. Raises KilnError for a device
    without a shell.
    """
    if device is not None:
        with remote_runner(read_device(device), target, model) as runner:
            if not isinstance(runner, RemoteRunner):
                raise KilnError(f"{runner.description}: it has no shell, and subgraphs cannot be timed there")
            text = f"subgraphs are timed on {runner.description}"
            yield (
                Bench(target, runner, _COLD, libraries),
                _TimingMachine("+".join(runner.cores) or model, text),
            )
        return
    reason = host_cpu.obstacle(target)
    if reason is None:
        runner = open_runner("local", target)
        cpu = "+".join(cpus.names(read_cpuinfo())) or "this machine"
        text = f"subgraphs are timed on {runner.description}, {cpu}"
        yield Bench(target, runner, _COLD, libraries), _TimingMachine(cpu, text)
        return
    text = (
        f"subgraphs cannot be timed here: {reason}; stored times of any machine are used, and Kiln's own "
        "kernels compute every subgraph without one; device=NAME times them on a device"
    )
    yield None, _TimingMachine(None, text, reason)
