"""Where a bundle's time goes: `./kiln bench profile model=…`, one row a step, the slowest first.

Measures every step in a C program (programs/steps.c), takes the median over the rounds, and sets the
arithmetic that the plan counts for it against what one core here can do at the target's vector width.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kiln.files import atomic_write, read_json

from benchmarks.contenders import Folders, find_subject
from benchmarks.footprint import run_steps, steps_program
from benchmarks.machine import fma_peak
from benchmarks.tables import markdown


@dataclass(frozen=True)
class Step:
    """A step of the plan and its median time."""

    index: int
    kernel: str
    family: str
    label: str
    seconds: float
    operations: int  # a multiply-accumulate counts two
    bytes: int  # of all arguments: what it has to read and write at least
    dtype: str  # of its first argument

    @property
    def rate(self) -> float:
        """Giga-operations per second."""
        return self.operations / self.seconds * 1e-9


def profile(
    model: str, target: str, rounds: int, threads: int, cpus: Sequence[int], folders: Folders
) -> tuple[list[Step], float | None]:
    """The steps in the plan's order, and one core's float32 peak in GFLOP/s where there is a program for it.

    Raises LeftOutError when the model was not built for the target, KilnError when it cannot be run.
    """
    subject = find_subject(model, folders, [target])
    stages = folders.build / ".stages" / target
    plan = read_json(stages / model / "plan/plan.json")
    isa = read_json(stages / "target.json")["vector"]["isa"]
    bundle = folders.build / target / model
    program = steps_program(bundle, target, folders)
    before = fma_peak(isa, cpus[0], folders)
    times = run_steps(program, bundle, subject, rounds, threads, cpus[:threads]).rounds
    after = fma_peak(isa, cpus[0], folders)  # twice, since the clock rises and falls with the load
    peak = None if before is None or after is None else max(before, after)
    return steps_of(plan, [median(column) * 1e-9 for column in zip(*times, strict=True)]), peak


def steps_of(plan: Mapping[str, Any], seconds: Sequence[float]) -> list[Step]:
    """The plan's first bucket with a time for each step."""
    kernels = {kernel["symbol"]: kernel for kernel in plan["kernels"]}
    steps = []
    for index, (step, time) in enumerate(zip(plan["buckets"][0]["steps"], seconds, strict=True)):
        kernel = kernels[step["kernel"]]
        size = sum(argument.get("bytes", 0) for argument in step["args"])
        operations = 2 * step.get("macs", 0) or kernel["flops"]
        dtype = kernel["args"][0]["dtype"]
        family = kernel.get("family", "")
        steps.append(Step(index, step["kernel"], family, step["label"], time, operations, size, dtype))
    return steps


def report(steps: Sequence[Step], peak: float | None, threads: int, most: int) -> str:
    """Markdown: the families, then the `most` slowest steps."""
    total = sum(step.seconds for step in steps)
    families: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        families[step.family].append(step)
    groups = sorted(families.items(), key=lambda item: -sum(step.seconds for step in item[1]))
    summary = [[name, str(len(group)), *_figures(group, total, peak, threads)] for name, group in groups]
    summary.append(["all", str(len(steps)), *_figures(steps, total, peak, threads)])
    slowest = sorted(steps, key=lambda step: -step.seconds)[:most]
    rows = [
        [f"{step.label} ({step.kernel})", str(step.index), *_figures([step], total, peak, threads)]
        for step in slowest
    ]
    figures = ["µs", "share", "GFLOP/s", "of peak", "GB/s"]
    head = f"{len(steps)} steps, {total * 1e3:.3g} ms"
    if peak is not None:
        head += f"; one core's peak is {peak:.0f} GFLOP/s in float32"
    tables = [markdown(["family", "steps", *figures], summary), markdown(["step", "#", *figures], rows)]
    return "\n".join([f"{head}.\n", *tables])


def table(steps: Sequence[Step], peak: float | None) -> str:
    """The same as CSV, in the plan's order."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["step", "kernel", "family", "label", "microseconds", "operations", "bytes", "gflops", "peak"])
    for s in steps:
        figures = [f"{s.seconds * 1e6:.3f}", s.operations, s.bytes, f"{s.rate:.2f}", peak or ""]
        write([s.index, s.kernel, s.family, s.label, *figures])
    return out.getvalue()


def _figures(steps: Sequence[Step], total: float, peak: float | None, threads: int) -> list[str]:
    seconds = sum(step.seconds for step in steps)
    rate = sum(step.operations for step in steps) / seconds * 1e-9
    floats = all(step.dtype == "float32" for step in steps)  # the peak is that of float32
    of_peak = f"{rate / peak / threads:.0%}" if peak is not None and floats and rate >= 0.1 else "–"
    flow = sum(step.bytes for step in steps) / seconds * 1e-9
    return [f"{seconds * 1e6:.1f}", f"{seconds / total:.1%}", f"{rate:.1f}", of_peak, f"{flow:.1f}"]


def run(args: argparse.Namespace, folders: Folders, out: Path) -> None:
    """Profile every model for every target asked for; print, and write profile-<target>-<model>.{md,csv}."""
    for model in args.model:
        for target in args.target:
            for threads in args.threads:
                steps, peak = profile(model, target, args.profile_rounds, threads, args.cpus, folders)
                name = f"profile-{target}-{model}-{threads}"
                text = report(steps, peak, threads, len(steps))
                atomic_write(out / f"{name}.md", text)
                atomic_write(out / f"{name}.csv", table(steps, peak))
                print(f"## {model} on {target}, {threads} thread{'s' if threads > 1 else ''}\n")
                print(report(steps, peak, threads, args.most))
