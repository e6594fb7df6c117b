"""Times of all contenders, taken in turns: every round gives each of them one turn, in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contenders import Contender, Folders, Subject
from benchmarks.timing import Times, geometric_mean, paired_ratio
from benchmarks.workers import Worker, WorkerError, say


@dataclass(frozen=True)
class Plan:
    """The settings of a measurement: rounds, length of a turn, clock, cores, instruction set."""

    rounds: int
    seconds: float  # of one turn
    clock: str  # "wall", or "cpu" for one thread on a machine that others use
    cpus: Sequence[int]
    isa: str | None = None  # that peers are held to


@dataclass
class Match:
    """One model with one number of threads: times by contender, and how far each is from the reference."""

    model: str
    threads: int
    clock: str
    times: dict[str, Times] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # why, by contender
    unheld: list[str] = field(default_factory=list)  # peers that use wider instructions than Plan.isa here

    def fastest(self, names: Sequence[str]) -> str | None:
        """The one of `names` with the least median; None when none was measured."""
        return min((n for n in names if n in self.times), key=lambda n: self.times[n].median, default=None)

    def lead(self, kilns: Sequence[str]) -> tuple[str, float] | None:
        """The best peer, and how many times the best of `kilns` is as fast; None with nobody to compare.

        A peer that is not held to the instruction set of the others does not count.
        """
        peers = [name for name in self.times if not name.startswith("kiln ")]
        peer = self.fastest([name for name in peers if name not in self.unheld])
        kiln_name = self.fastest(kilns)
        if peer is None or kiln_name is None:
            return None
        return peer, paired_ratio(self.times[peer], self.times[kiln_name])


def play(
    subject: Subject,
    files: Mapping[Contender, Path],
    threads: int,
    plan: Plan,
    folders: Folders,
) -> Match:
    """Measure the contenders, each with its file of the model in `files`; a line for one that fails."""
    cpu_clock = plan.clock == "cpu" and threads == 1  # the time of all threads together says little
    match = Match(subject.name, threads, "cpu" if cpu_clock else "wall")
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for contender, file in files.items():
            request = {
                "do": "turns",
                "peer": contender.module,
                "file": str(file.resolve()),
                "interface": subject.interface,
                "threads": threads,
                "cpus": list(plan.cpus)[:threads],
                "isa": plan.isa,
                "variant": contender.variant,
            }
            worker = stack.enter_context(Worker(folders.python_of(contender.module), request, folders.log))
            try:
                answer = worker.answer()
                match.errors[contender.name] = answer["error"]
                if plan.isa is not None and not answer["held"]:
                    match.unheld.append(contender.name)
                worker.pause()
                workers[contender.name] = worker
            except WorkerError as error:
                match.left_out[contender.name] = str(error)
                say(f"{subject.name} on {contender.name}: left out: {error}")
        for number in range(plan.rounds):
            for name in turn_order(list(workers), number):
                try:
                    turn = workers[name].turn(plan.seconds)
                    match.times.setdefault(name, Times()).add(turn["wall"], turn["cpu"], match.clock)
                except WorkerError as error:
                    say(f"{subject.name} on {name}: left out after {number} rounds: {error}")
                    del workers[name]
                    match.times.pop(name, None)
                    match.left_out[name] = str(error)
    return match


def turn_order(names: Sequence[str], number: int) -> list[str]:
    """The order of turns in a round: it begins with another name each time, and is reversed in odd rounds."""
    if not names:
        return []
    start = number % len(names)
    rotated = [*names[start:], *names[:start]]
    return rotated[::-1] if number % 2 else rotated


def mean_lead(matches: Sequence[Match], kilns: Sequence[str]) -> float:
    """Geometric mean of the leads over the best peer of each match."""
    return geometric_mean(lead[1] for match in matches if (lead := match.lead(kilns)) is not None)
