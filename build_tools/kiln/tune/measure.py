"""Times subjects against each other on a runner of the target: a device, this machine, or an emulator.

Times are compared in pairs: in each round every subject of a key runs once, so a disturbance of one round
slows all subjects. A ratio is the median over the rounds of a subject's time divided by the time of the
heuristics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from kiln.byoc.libraries.folder import LibraryFolder
from kiln.config import Target
from kiln.device.check.runners import Runner
from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from kiln.tir.tuning_records import HEURISTICS
from kiln.tune.program import by_group, link_program, operands_of
from kiln.tune.subject import Subject

# Time for all rounds of one subject, within the limits of rounds in time_kernels.c.
MILLISECONDS = 60
TIMEOUT = 600.0  # seconds, for all subjects of one program
# Results of two candidates may differ by this share of the greatest value (Winograd F4 on unit data).
AGREEMENT = 1e-3


@dataclass(frozen=True)
class TimedSubject:
    """Median time of a subject in microseconds, its ratio to the heuristics, and the share of rounds won."""

    subject: Subject
    us: float
    ratio: float
    wins: float


class Bench:
    """Times and compares subjects on one runner."""

    # A candidate is preferred to the heuristics when the median of its ratios is at most `worth`, and it was
    # faster in at least the share `wins` of the rounds; smaller differences may be noise.
    worth, wins = 0.97, 0.75

    def __init__(
        self, target: Target, runner: Runner, cold_bytes: int, libraries: Sequence[LibraryFolder] = ()
    ) -> None:
        """`cold_bytes`: bytes of memory that are read between two reads of the same weights.

        `libraries`: external libraries that subjects call.
        """
        self.target, self.runner, self.cold_bytes = target, runner, cold_bytes
        self.libraries = libraries

    def race(self, subjects: Sequence[Subject], milliseconds: int = MILLISECONDS) -> list[TimedSubject]:
        """Time the subjects of each key against each other, for about `milliseconds` per subject.

        For each key, one subject must follow the heuristics. Raises KilnError where a run fails.
        """
        with scratch_folder("tune") as folder:
            program = link_program(subjects, self.target, Path(folder), self.libraries)
            words = ["time", str(milliseconds), str(self.cold_bytes)]
            output = self._run(program, words, {}, {})
        nanoseconds: dict[str, list[int]] = defaultdict(list)
        for line in output.splitlines():
            match line.split("\t"):
                case ["time", name, time] if time.isdigit():
                    nanoseconds[name].append(max(1, int(time)))
                case _:
                    raise KilnError(
                        f"tune: {self.runner.description} printed a line of no known kind: {line!r}"
                    )
        timed: list[TimedSubject] = []
        for key, group in by_group(subjects).items():
            heuristics = next((subject.name for subject in group if subject.choice == HEURISTICS), "")
            heuristic_times = nanoseconds[heuristics]
            for subject in group:
                times = nanoseconds[subject.name]
                if not times or len(times) != len(heuristic_times):
                    raise KilnError(f"tune: {self.runner.description} did not time {key}")
                ratios = [mine / theirs for mine, theirs in zip(times, heuristic_times, strict=True)]
                wins = sum(ratio < 1 for ratio in ratios) / len(ratios)
                timed.append(TimedSubject(subject, median(times) / 1e3, median(ratios), wins))
        return timed

    def check(self, subjects: Sequence[Subject]) -> None:
        """Raise KilnError when two subjects of one key compute different results on equal operands."""
        with scratch_folder("tune") as temporary:
            folder = Path(temporary)
            program, results = link_program(subjects, self.target, folder), folder / "results.bin"
            operands = operands_of(subjects, folder / "operands.bin")
            words = ["check", "operands.bin", "results.bin"]
            self._run(program, words, {"operands.bin": operands}, {"results.bin": results})
            values = np.fromfile(results, "float32")
        start, first = 0, dict[str, np.ndarray]()
        for subject in subjects:
            size = sum(memory.bytes // 4 for memory in subject.memory if memory.kind == "OUTPUT")
            output = values[start : start + size]
            start += size
            first_output = first.setdefault(subject.key, output)
            scale = float(np.abs(first_output).max(initial=1.0))
            if output.size != size or not np.abs(output - first_output).max(initial=0.0) <= AGREEMENT * scale:
                raise KilnError(
                    f"tune: {subject.key}: {subject.choice.describe()} computes other results than the "
                    "heuristics' schedule"
                )

    def _run(self, program: Path, words: Sequence[str], send: dict[str, Path], fetch: dict[str, Path]) -> str:
        shared_objects = {
            name: library.path / "lib" / name
            for library in self.libraries
            for name in library.description["files"]
            if ".so" in name
        }
        send = {**send, **shared_objects}
        done = self.runner.run(program, words, send=send, fetch=fetch, timeout=TIMEOUT)
        if done.status != 0:
            reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
            raise KilnError(f"tune: candidates cannot be run on {self.runner.description}: {reason}")
        return done.stdout
