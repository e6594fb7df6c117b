"""byoc-choose: for each subgraph that libraries can compute, chooses the fastest of them and Kiln's kernels.

Times are stored in a file per target. A time is reused while everything that it depends on is unchanged: the
content of Kiln's kernels, the library's version, the source of its call, the target and the CPU. So a
repeated build makes the same choices.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiln.byoc.libraries.folder import LibraryFolder
from kiln.byoc.passes import ChosenBackends
from kiln.byoc.registry import load
from kiln.config import Target, canonical_json, cpus, target_config
from kiln.config.byoc import Byoc
from kiln.config.host import read_cpuinfo
from kiln.config.records import read
from kiln.config.slice_records import LowerConfig
from kiln.device.check import host_cpu
from kiln.device.check.runners import open_runner
from kiln.device.check.runners.remote import RemoteRunner, remote_runner
from kiln.device.deploy.registry import read_device
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.lower import target_check
from kiln.lower.pipeline import lower
from kiln.lower.target_trial import check_together
from kiln.stages.target import ChooseStage
from kiln.tir.tuning_records import choices_of
from kiln.tune.gpu.choose import choose_on_gpu
from kiln.tune.measure import Bench
from kiln.tune.parts import PartSubject, Subgraph, parts_of, passes_for

_COLD = 32 << 20  # bytes that are read before each run, about as many as a network reads
_MILLISECONDS = 40
_BATCH = 6  # number of subgraphs whose subjects are linked into one program
_WIDTH = 160  # characters of the table, so that a subgraph's key is not wrapped
OWN = "kiln"


def run(args: ChooseStage) -> None:
    """Time the subgraphs whose times are not known, print a table, and write the choices to --out."""
    config, asked = read(LowerConfig, args.config), read_json(args.byoc)
    target = Target.model_validate(read_json(args.target))
    target_check.check(target)
    target = target.for_variant(target.base)  # calls of libraries are the same in every variant
    check_together(target)
    if target.cuda is not None:
        choose_on_gpu(args, config, asked, target)
        return
    threads = config.threads_on(target)
    byoc, backends = Byoc.model_validate(asked["byoc"]), [load(name) for name in asked["backends"]]
    libraries = [LibraryFolder.read(path) for path in args.libraries]
    parts = parts_of(args.sources, backends, target, threads, ChosenBackends(byoc))
    maker = _Maker(config, target, threads, {one.about["backend"]: one.about for one in libraries})
    races = [maker.race(number, part) for number, part in enumerate(parts.values())]
    with _place(target, args.device, config.name, libraries) as (bench, where):
        print(f"{config.name} on {target.name}: {where.text}", flush=True)
        times = _timed(races, bench, where.cpu, args.times)
    chosen = {race.part.key: best for race in races if (best := _fastest(times[race.part.key])) != OWN}
    table = [
        {"part": race.part.key, "count": race.part.count, "times": times[race.part.key],
         "chosen": chosen.get(race.part.key, OWN), "why": _why(times[race.part.key])}
        for race in races
    ]  # fmt: skip
    summary = _summary(table, asked, target, where)
    _say(table, asked, summary)
    write_json(
        args.out,
        {**asked, "chosen": chosen, "measured_on": where.cpu, "parts": table, "summary": summary},
    )


@dataclass(frozen=True)
class _Where:
    """The machine that times subgraphs.

    `cpu` is the CPU whose times are used; None where nothing can be timed, for the reason `obstacle`; then
    the stored times of any CPU are used.
    """

    cpu: str | None
    text: str
    obstacle: str | None = None


@dataclass(frozen=True)
class _Race:
    """One subgraph with its subjects, Kiln's own first, and the digest of each library's stored time."""

    part: Subgraph
    subjects: Sequence[PartSubject]
    digests: Mapping[str, str]


class _Maker:
    """Makes the subjects of subgraphs.

    `about` is each backend's library description by the backend's name.
    """

    def __init__(self, config: LowerConfig, target: Target, threads: str, about: Mapping[str, Any]) -> None:
        self.config, self.target, self.threads, self.about = config, target, threads, about
        self.choices = choices_of(target)

    def race(self, number: int, part: Subgraph) -> _Race:
        own = self._subject(f"s{number}", part)
        others = {
            backend.name: self._subject(f"s{number}_{backend.name}", part, backend)
            for backend in part.backends
        }
        digests = {name: self._digest(own, other, name) for name, other in others.items()}
        return _Race(part, [own, *others.values()], digests)

    def _subject(self, name: str, part: Subgraph, backend: Any = None) -> PartSubject:
        external = None if backend is None else passes_for(backend, self.target, self.threads)
        steps = lower(
            part.module,
            name,
            self.target,
            self.threads,
            None,
            self.config.winograd,
            self.choices,
            external,
        )
        return PartSubject(name, part.key, steps, None if backend is None else backend.name)

    def _digest(self, own: PartSubject, other: PartSubject, backend: str) -> str:
        sources = [code.source.replace(other.name, "") for code in other.externals.values()]
        facts = [sorted(own.content), sources, self.about[backend]["version"], target_config(self.target)]
        return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:24]


def _timed(races: Sequence[_Race], bench: Bench | None, cpu: str | None, path: Path) -> dict[str, Any]:
    """Times by subgraph and backend: microseconds, the ratio to Kiln's own, and whether it is worth using.

    Unknown times are measured where there is a bench, and stored in `path`; else they are None.
    """
    kept: dict[str, Any] = read_json(path) if path.is_file() else {}

    def entry(digest: str) -> Any:
        by_cpu = kept.get(digest, {})
        return by_cpu.get(cpu) if cpu is not None else next(iter(by_cpu.values()), None)

    missing = [race for race in races if any(entry(digest) is None for digest in race.digests.values())]
    if len(missing) < len(races):
        print(f"the times of {len(races) - len(missing)} of {len(races)} parts are known from before")
    while bench is not None and missing:
        batch, missing = missing[:_BATCH], missing[_BATCH:]
        own = 0.0
        for timed in bench.race([one for race in batch for one in race.subjects], _MILLISECONDS):
            backend = getattr(timed.subject.choice, "backend", None)
            if backend is None:
                own = timed.us
                continue
            race = next(race for race in batch if race.part.key == timed.subject.key)
            worth = timed.ratio <= bench.worth and timed.wins >= bench.wins
            about = {
                OWN: round(own, 1),
                "us": round(timed.us, 1),
                "ratio": round(timed.ratio, 3),
                "worth": worth,
            }
            kept.setdefault(race.digests[backend], {})[str(cpu)] = about
        write_json(path, kept)
    return {race.part.key: {name: entry(digest) for name, digest in race.digests.items()} for race in races}


def _fastest(times: Mapping[str, Any]) -> str:
    worth = {name: about["ratio"] for name, about in times.items() if about is not None and about["worth"]}
    return min(worth, key=lambda name: (worth[name], name)) if worth else OWN


def _why(times: Mapping[str, Any]) -> str:
    """The reason for the choice of one subgraph as text: the measured ratio of the best library."""
    known = {name: about["ratio"] for name, about in times.items() if about is not None}
    if not known:
        return "not timed"
    name = best if (best := _fastest(times)) != OWN else min(known, key=lambda one: (known[one], one))
    text = f"{name} takes {known[name]:.2f} of the time"
    return f"{text}, within the scatter" if best == OWN and known[name] < 1 else text


def _summary(
    table: Sequence[Mapping[str, Any]], asked: Mapping[str, Any], target: Target, where: _Where
) -> str:
    """The choices for a model and their reason, in one line."""
    total = sum(entry["count"] for entry in table)
    taken = sum(entry["count"] for entry in table if entry["chosen"] != OWN)
    timed = any(about is not None for entry in table for about in entry["times"].values())
    if taken:
        text = f"libraries compute {taken} of {total} parts: those where they were measured to be faster"
    elif not table:
        text = f"Kiln's own kernels compute everything: {', '.join(asked['backends'])} support no part of it"
    elif timed:
        text = f"Kiln's own kernels compute all {total} parts: no library was measured to be faster"
    else:
        text = f"Kiln's own kernels compute all {total} parts: they cannot be timed here: {where.obstacle}"
    return f"byoc=auto on {target.name}: {text}"


def _say(table: Sequence[Mapping[str, Any]], asked: Mapping[str, Any], summary: str) -> None:
    for name, reason in asked.get("absent", {}).items():
        print(f"{name} is not used: {reason}")
    if not table:
        print(summary)
        return
    names = list(asked["backends"])
    head = ("part", "times", f"{OWN}, us", *(f"{name}, us" for name in names), "computed by", "why")
    grid = Table(*head, box=box.SIMPLE)
    for entry in table:
        grid.add_row(*map(Text, _row(entry, names)))
    Console(file=sys.stdout, highlight=False, width=_WIDTH).print(grid)
    print(summary)


def _row(entry: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    times = {name: about for name, about in entry["times"].items() if about is not None}
    own = f"{min(about[OWN] for about in times.values()):.1f}" if times else "?"
    said = [
        "-" if name not in entry["times"] else f"{times[name]['us']:.1f}" if name in times else "?"
        for name in names
    ]
    return [entry["part"], str(entry["count"]), own, *said, entry["chosen"], entry["why"]]


@contextmanager
def _place(
    target: Target, device: Path | None, model: str, libraries: Sequence[LibraryFolder]
) -> Iterator[tuple[Bench | None, _Where]]:
    """Yield the bench that times subgraphs: on the device if given, else on this machine if possible.

    Yields None for the bench where neither is possible.
    """
    if device is not None:
        with remote_runner(read_device(device), target, model) as runner:
            if not isinstance(runner, RemoteRunner):
                raise KilnError(f"{runner.description}: it has no shell, and parts cannot be timed there")
            text = f"parts are timed on {runner.description}"
            yield Bench(target, runner, _COLD, libraries), _Where("+".join(runner.cores) or model, text)
        return
    reason = host_cpu.obstacle(target)
    if reason is None:
        runner = open_runner("local", target)
        cpu = "+".join(cpus.names(read_cpuinfo())) or "this machine"
        text = f"parts are timed on {runner.description}, {cpu}"
        yield Bench(target, runner, _COLD, libraries), _Where(cpu, text)
        return
    text = (
        f"parts cannot be timed here: {reason}; what has been timed elsewhere counts, and the others stay "
        "Kiln's own; device=NAME times them on a device"
    )
    yield None, _Where(None, text, reason)
