"""`./kiln bench profile`: the time of each step of a bundle, and its share of the machine's peak.

Measures every step in a C program (programs/steps.c) and takes the median over the rounds. Two ceilings are
measured in the same run: float32 multiply-adds at the target's vector width, and memory. A step's time is set
against the ceiling that allows it less.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from kiln.config import load_target
from kiln.device.check.steps import TimedStep, steps_of
from kiln.emit.simd_check import scalar_kernels
from kiln.files import atomic_write, read_json
from kiln.plan.schema import read_plan
from kiln.plan.variants import plan_of

from benchmarks.contenders import Folders
from benchmarks.footprint import run_steps, steps_program
from benchmarks.machine import Bandwidth, bandwidth, description, fma_peak
from benchmarks.subjects import SizedModel, find, parse
from benchmarks.tables import markdown

SMALL = 0.005  # share of the time: steps below it are listed after the others
PARTLY = 1.5  # a step that seems to exceed the bandwidth by this factor touches only a part of its tensors


@dataclass(frozen=True)
class Ceilings:
    """The peak of arithmetic and of memory of the cores that are used together; None: not measured."""

    flops: float | None = None  # per second, float32 multiply-adds counted twice
    memory: Bandwidth | None = None
    params: int = 0  # bytes of all parameters: a run reads them from as far away as that many bytes lie

    def compute(self, step: TimedStep) -> float | None:
        """The share of its time that the arithmetic alone would take."""
        return step.of_peak(self.flops)

    def traffic(self, step: TimedStep) -> float | None:
        """The share of its time that moving its tensors alone would take."""
        if self.memory is None:
            return None
        least = self.memory.seconds(step.read, step.written, step.bytes)
        least += self.memory.seconds(step.params, 0, max(self.params, step.bytes))
        return least / step.seconds if least < PARTLY * step.seconds else None

    def share(self, step: TimedStep) -> tuple[float, str] | None:
        """The share of the ceiling that limits the step, and its name; None if none was measured."""
        bounds = [(self.compute(step), "arithmetic"), (self.traffic(step), "memory")]
        return max(((share, name) for share, name in bounds if share is not None), default=None)


def profile(
    chosen: SizedModel, target: str, rounds: int, threads: int, cpus: Sequence[int], folders: Folders
) -> tuple[list[TimedStep], Ceilings]:
    """The steps in the plan's order, and the ceilings: of bandwidth where a program measures it.

    `target` may be TARGET:VARIANT, to run that variant. The ceilings are those of the variant that runs.
    Raises LeftOutError when the model was not built for the target, KilnError when it cannot be run.
    """
    target, _, variant = target.partition(":")
    subject = find(chosen, folders, [target])
    stages = folders.build / ".stages" / target
    plan = read_plan(stages / chosen.model / "plan/plan.json")
    bundle = folders.build / target / chosen.model
    program = steps_program(bundle, target, folders)
    run_steps(program, bundle, subject, rounds, threads, cpus[:threads], variant)  # until the clock is steady
    measured = run_steps(program, bundle, subject, rounds, threads, cpus[:threads], variant)
    ran = load_target(target).for_variant(measured.variant)
    plan = plan_of(plan, measured.variant)
    ceilings = Ceilings(
        fma_peak(ran, cpus[0], folders) * threads * 1e9,
        bandwidth(ran.vector.isa, cpus[:threads], folders),
        plan.params.bytes,
    )
    seconds = [median(column) * 1e-9 for column in zip(*measured.rounds, strict=True)]
    scalar = scalar_kernels(plan, read_json(stages / chosen.model / "objects/vectors.json"), 0)
    steps = [
        replace(step, label=f"{step.label}, scalar") if step.kernel in scalar else step
        for step in steps_of(plan, seconds, measured.bucket)
    ]
    return steps, ceilings


def report(steps: Sequence[TimedStep], ceilings: Ceilings, most: int) -> str:
    """Markdown: the families by time, then the `most` steps that are furthest below their ceiling."""
    total = sum(step.seconds for step in steps)
    families: dict[str, list[TimedStep]] = defaultdict(list)
    for step in steps:
        families[step.family].append(step)
    groups = sorted(families.items(), key=lambda item: -sum(step.seconds for step in item[1]))
    summary = [[name, str(len(group)), *_figures(group, total, ceilings)] for name, group in groups]
    summary.append(["all", str(len(steps)), *_figures(steps, total, ceilings)])

    def order(step: TimedStep) -> tuple[bool, float, float]:
        share = ceilings.share(step)
        return step.seconds < SMALL * total, share[0] if share else 9.0, -step.seconds

    rows = [
        [f"{step.label} ({step.kernel})", str(step.index), *_figures([step], total, ceilings)]
        for step in sorted(steps, key=order)[:most]
    ]
    figures = [
        "µs",
        "of the time",
        "GFLOP/s",
        "of peak",
        "GB/s",
        "of bandwidth",
        "of its ceiling",
        "bound by",
    ]
    tables = [markdown(["family", "steps", *figures], summary), markdown(["step", "#", *figures], rows)]
    return "\n".join([f"{len(steps)} steps, {total * 1e3:.3g} ms{_ceilings(ceilings)}.\n", *tables])


def _ceilings(ceilings: Ceilings) -> str:
    text = "" if ceilings.flops is None else f"; peak {ceilings.flops * 1e-9:.0f} GFLOP/s in float32"
    if ceilings.memory is not None:
        read, copy = ceilings.memory.read, ceilings.memory.copy
        chosen = [size for size in sorted(read) if size.bit_length() % 2 == 1]  # every second one
        rates = ", ".join(f"{_binary(size)} {read[size]:.0f}/{copy[size]:.0f}" for size in chosen)
        text += f"; bandwidth in GB/s, read/copy, by working set of a core: {rates}"
    return text


def _binary(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


def table(steps: Sequence[TimedStep], ceilings: Ceilings) -> str:
    """The figures of all steps as CSV, in the order of the plan."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    head = ["step", "kernel", "family", "label", "microseconds", "operations", "bytes", "gflops"]
    write([*head, "of_peak", "of_bandwidth", "bound"])
    for s in steps:
        shares = [ceilings.compute(s), ceilings.traffic(s)]
        bound = ceilings.share(s)
        figures = [f"{s.seconds * 1e6:.3f}", s.operations, s.bytes, f"{s.rate:.2f}"]
        figures += ["" if share is None else f"{share:.4f}" for share in shares]
        write([s.index, s.kernel, s.family, s.label, *figures, bound[1] if bound else ""])
    return out.getvalue()


def _figures(steps: Sequence[TimedStep], total: float, ceilings: Ceilings) -> list[str]:
    """The cells of a row for several steps; shares are means weighted by time."""
    seconds = sum(step.seconds for step in steps)

    def mean(shares: Sequence[float | None]) -> str:
        weighted = [share * s.seconds for share, s in zip(shares, steps, strict=True) if share is not None]
        return f"{sum(weighted) / seconds:.0%}" if len(weighted) == len(steps) else "–"

    rate = sum(step.operations for step in steps) / seconds * 1e-9
    flow = sum(step.bytes for step in steps) / seconds * 1e-9
    bounds = [ceilings.share(step) for step in steps]
    names = {bound[1] for bound in bounds if bound}
    return [
        f"{seconds * 1e6:.1f}",
        f"{seconds / total:.1%}",
        f"{rate:.1f}",
        mean([ceilings.compute(step) for step in steps]),
        f"{flow:.1f}",
        mean([ceilings.traffic(step) for step in steps]),
        mean([bound[0] if bound else None for bound in bounds]),
        names.pop() if len(names) == 1 else "both" if names else "–",
    ]


def run(args: argparse.Namespace, folders: Folders, out: Path) -> None:
    """Profile every model for every target asked for; print, and write profile-<target>-<model>.{md,csv}."""
    for text in args.model:
        chosen = parse(text)
        for target in args.target:
            for threads in args.threads:
                steps, ceilings = profile(chosen, target, args.profile_rounds, threads, args.cpus, folders)
                name = f"profile-{target.replace(':', '-')}-{chosen.label}-{threads}"
                head = f"{description(args.cpus)}.\n\n"
                atomic_write(out / f"{name}.md", head + report(steps, ceilings, len(steps)))
                atomic_write(out / f"{name}.csv", table(steps, ceilings))
                count = f"{threads} thread{'s' if threads > 1 else ''}"
                print(f"## {chosen.label} on {target}, {count}\n")
                print(report(steps, ceilings, args.most))
