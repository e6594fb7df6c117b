"""Estimates subjects for a CPU that is not there from what they do under QEMU; the formula is in cost.py."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kiln.config import Target
from kiln.device.runners import open_runner
from kiln.errors import KilnError
from kiln.kernels.choices import RULES
from kiln.toolchain import run as run_tool
from kiln.tune.cost import Counts, cycles
from kiln.tune.measure import TIMEOUT, Bench, Timed
from kiln.tune.program import PROGRAMS, by_group, link_program
from kiln.tune.subject import Subject

SHARE = 8  # of each kernel's tasks one in so many is emulated: that takes a hundred times as long


class CountedBench(Bench):
    """Like Bench; times are cycles of the estimate in thousands, which stand for microseconds at 1 GHz."""

    # A smaller lead of an estimate says nothing (docs/tuning.md).
    worth = 0.8
    how, unit = "model", "kilocycles"

    def __init__(self, target: Target, cold_bytes: int) -> None:
        """Raises KilnError where the target has no emulator, or it is not installed."""
        super().__init__(target, open_runner("qemu_user", target), cold_bytes)

    def race(self, subjects: Sequence[Subject], milliseconds: int = 0) -> list[Timed]:
        """Estimate subjects; of each key one follows the rules."""
        with tempfile.TemporaryDirectory(prefix="kiln-tune-") as place:
            folder = Path(place)
            program, out = link_program(subjects, self.target, folder), folder / "counts"
            runner = open_runner("qemu_user", _with_plugin(self.target, folder))
            words = ["count", str(self.cold_bytes), str(SHARE)]
            done = runner.run(program, words, send={}, fetch={"counts": out}, timeout=TIMEOUT)
            if done.status != 0 or not out.is_file():
                reason = (done.stderr.strip().splitlines() or ["it counted nothing"])[-1]
                raise KilnError(f"tune: candidates cannot be counted by {self.runner.description}: {reason}")
            lines = iter(out.read_text(encoding="utf-8").splitlines())
        try:
            estimates = {subject.name: cycles(_counts(subject, lines), self.target) for subject in subjects}
        except (StopIteration, ValueError, TypeError):
            raise KilnError(f"tune: {self.runner.description} did not count all candidates") from None
        found = []
        for group in by_group(subjects).values():
            rules = next(estimates[subject.name] for subject in group if subject.choice == RULES)
            for subject in group:
                estimate = estimates[subject.name]
                found.append(Timed(subject, estimate / 1e3, estimate / rules, float(estimate < rules)))
        return found


def _counts(subject: Subject, lines: Iterator[str]) -> Counts:
    """What a whole run would do: each kernel's counts as often as its tasks hold those that were run."""
    total = Counts(0, 0, 0, 0, 0)
    for call in subject.calls:
        counted = Counts(*(float(word) for word in next(lines).split("\t")))
        tasks = call.tasks or 1
        total += counted.scaled(tasks / -(-tasks // SHARE))
    return total


def _with_plugin(target: Target, folder: Path) -> Target:
    """`target` with an emulator that counts."""
    cache, emulator = target.cache, target.emulator
    assert emulator is not None
    plugin, _ = make_plugin(emulator.command, folder)
    given = f"{plugin},out=counts,l1={cache.l1d},l2={cache.l2},line={cache.line}"
    counting = emulator.model_copy(update={"args": [*emulator.args, "-plugin", given]})
    return target.model_copy(update={"emulator": counting})


def make_plugin(emulator: str, folder: Path) -> tuple[Path, str]:
    """programs/count.c, compiled for this machine's `emulator` into `folder`; the emulator's version.

    Raises KilnError where it does not tell its version, or the plugin cannot be compiled.
    """
    said = subprocess.run([emulator, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)([0-9.]*)", said)
    if found is None:
        raise KilnError(f"{emulator}: no version that it tells of")
    plugin = folder / "count.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", "-shared", "-fPIC"]
    command.append(f"-DPLUGIN_VERSION={1 if int(found[1]) < 9 else 2}")
    run_tool([*command, str(PROGRAMS / "count.c"), "-o", str(plugin)], "compiling QEMU's plugin")
    return plugin, found[1] + found[2]
