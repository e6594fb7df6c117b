"""Benchmark of a bundle on its target: whole runs and single steps, by the clock of the target's programs.

On an emulated machine without an operating system that clock counts instructions. Then times are in millions
of instructions, and rates in operations per instruction.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from kiln.config import Target, read_target
from kiln.device.bundle import Bundle, open_bundle
from kiln.device.check import host_cpu
from kiln.device.check.execute import LONGER
from kiln.device.check.peak import measure_peak
from kiln.device.check.runners import Runner
from kiln.device.check.runners.remote import chosen_runner
from kiln.device.check.steps import TimedStep, steps_of
from kiln.device.deploy import listing
from kiln.device.deploy.transports import StillRunningError
from kiln.device.vector_files import encode
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.plan.schema import Plan, PlannedBucket, read_plan
from kiln.plan.variants import plan_of
from kiln.runtime.traffic import TrafficCounts, add_to_file
from kiln.scratch import scratch_folder
from kiln.stages.use import TIMEOUT, DeviceBenchStage

_SECONDS = 2.0  # time spent on runs of each bucket
_SLOWEST = 12  # number of steps in the printed table
# By the runner's unit: the units of times and rates in profile.json, and the seconds to spend on runs. Counts
# of instructions are the same in every run.
_UNITS = {"ns": ("ms", "GFLOP/s", _SECONDS), "instructions": ("M instr.", "op/instr.", 0.0)}


@dataclass
class TimedRuns:
    """Times of a program by bucket in nanoseconds: of every run, and the median of every step.

    `placed`: of runs whose inputs and outputs are on the GPU. `calls`: how often a run calls each step. It
    also holds the sizes of the dimensions and the number of the golden vector, by bucket, and the name of the
    variant that ran.
    """

    runs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    placed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, list[int]] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)
    variant: str = ""
    calls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def run(args: DeviceBenchStage) -> None:
    """Print a line for each bucket and number of threads; with --steps the slowest steps on one thread."""
    target, plan = read_target(args.target), read_plan(args.plan)
    bundle = open_bundle(args.bundle)
    with chosen_runner(target, args.device, args.bundle.name) as runner:
        if runner.unit not in _UNITS:
            raise KilnError(
                f"{runner.description}: Kiln knows no clock of this device; without device= an emulator "
                "counts instructions, and your own program can time runs, see kiln_trace in kiln.h"
            )
        print(f"{bundle.name} on {target.name} ({runner.description})", flush=True)
        emulated = args.device is None and host_cpu.obstacle(target) is not None
        peak = args.steps and not emulated
        figures = profile(bundle, target, plan, runner, args.work, peak=peak, timeout=args.timeout)
    if len(names := bundle.variants(target)) > 1:
        print(f"variant {figures['variant']}, of {', '.join(names)}")
    listing.grid(
        ("bucket", "threads", "runs", "least", "median", "nine in ten"),
        [row for figure in figures["runs"] for row in _rows(figure, figures["time_unit"])],
    )
    if plan.dims:
        print("\n".join(_size_lines([dim.name for dim in plan.dims], figures["runs"])))
    if args.steps:
        _print_steps(figures)
        if figures["time_unit"] != "ms":
            print("emulated: instructions are counted, and no time is measured")
        elif emulated:
            print("emulated: these times say nothing about a device, and there is no peak to compare with")
    if args.traffic:
        add_to_file(args.traffic, traffic_of(plan, bundle, figures["runs"]))
    write_json(args.out, {"format": 3, "emulated": emulated, **figures})


def traffic_of(plan: Plan, bundle: Bundle, runs: Sequence[Mapping[str, Any]]) -> TrafficCounts:
    """The timed runs by sizes, and by the contents of the golden vectors that they ran."""
    counts, vectors = TrafficCounts(tuple(dim.name for dim in plan.dims)), list(bundle.vectors())
    names = [port.name for port in plan.interface.inputs]
    for timed_run in runs:
        inputs = vectors[timed_run["vector"]].inputs
        counts.count(tuple(timed_run["sizes"]), dict(zip(names, inputs, strict=True)), timed_run["runs"])
    return counts


def profile(
    bundle: Bundle,
    target: Target,
    plan: Plan,
    runner: Runner,
    work: Path,
    *,
    peak: bool = True,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """The content of profile.json: times of whole runs and of every step, on one thread and on all cores.

    `work` is a folder where linked programs are kept. With `peak` the peak rate of one core is measured too,
    at the vector width of the variant that ran, and after the runs, since the clock falls while a device gets
    warm.
    Raises KilnError as Runner.run does, also where a program takes `timeout` seconds.
    """
    program = bundle.link_program(target, work, "time_runs")
    before = dict(runner.identity)
    cores = _cores(target, before)
    counts = [1, cores] if target.threads == "pthread" and cores > 1 else [1]
    timed: dict[int, TimedRuns] = {}
    peaks = []
    for threads in counts:
        timed[threads] = measure(bundle, program, runner, threads, timeout)
        if peak:
            peaks.append(measure_peak(target.for_variant(timed[threads].variant), runner, work))
    return {
        "model": bundle.name,
        "target": target.name,
        "runner": runner.description,
        "variant": timed[1].variant,
        "time_unit": _UNITS[runner.unit][0],
        "rate_unit": _UNITS[runner.unit][1],
        "device": before,
        "device_after": dict(runner.identity),
        "peak_gflops": max(peaks, default=None),
        "runs": [
            {
                "bucket": name,
                "threads": threads,
                "runs": len(runs),
                "sizes": times.sizes.get(name, []),
                "vector": times.vectors.get(name, 0),
                **_summary(runs),
                **({"in_place": _summary(times.placed[name])} if name in times.placed else {}),
            }
            for threads, times in timed.items()
            for name, runs in times.runs.items()
        ],
        "threads": counts[-1],
        "steps": _steps(plan_of(plan, timed[1].variant), timed, counts[-1], max(peaks, default=None)),
    }


def _cores(target: Target, identity: Mapping[str, Any]) -> int:
    """Number of cores available to the target's programs: on the device, or to this process."""
    cores = target.cores if "device" in identity else len(os.sched_getaffinity(0))
    return min(target.cores, int(identity.get("cores", cores)))


def measure(bundle: Bundle, program: Path, runner: Runner, threads: int, timeout: float) -> TimedRuns:
    """Run programs/time_runs.c with `threads` threads; returns its times.

    Raises KilnError as Runner.run does, also after `timeout` seconds, and where the program fails or prints
    nothing.
    """
    with scratch_folder("bench") as folder:
        input_file = Path(folder, "inputs")
        input_file.write_bytes(encode([vector.inputs for vector in bundle.vectors()]))
        send = {"inputs.bin": input_file, **bundle.library_files()}
        if bundle.params.is_file():
            send["params.bin"] = bundle.params
        words = ["inputs.bin", "params.bin", str(threads), str(int(_UNITS[runner.unit][2] * 1000))]
        try:
            done = runner.run(program, words, send=send, fetch={}, timeout=timeout)
        except StillRunningError as error:
            raise KilnError(f"{error}; {LONGER}") from error
    if done.status != 0:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise KilnError(f"{bundle.folder}: cannot be timed on {runner.description}: {reason}")
    timed = TimedRuns()
    for line in done.stdout.splitlines():
        match line.split("\t"):
            case ["variant", name]:
                timed.variant = name
            case ["run", bucket, time]:
                timed.runs[bucket].append(int(time))
            case ["place", bucket, time]:
                timed.placed[bucket].append(int(time))
            case ["step", bucket, _, time, calls]:
                timed.steps[bucket].append(int(time))
                timed.calls[bucket].append(int(calls))
            case ["vector", bucket, number]:
                timed.vectors[bucket] = int(number)
            case ["sizes", bucket, *found]:
                timed.sizes[bucket] = [int(size) for size in found]
            case _:
                raise KilnError(f"{bundle.folder}: the program printed a line of no known kind: {line!r}")
    if not timed.runs:
        raise KilnError(f"{bundle.folder}: nothing was timed on {runner.description}")
    return timed


def _summary(runs: Sequence[int]) -> dict[str, float]:
    """Minimum, median and 90th percentile of `runs` (nanoseconds), in milliseconds."""
    ordered = sorted(runs)
    chosen = {
        "least": ordered[0],
        "median": median(ordered),
        "nine_in_ten": ordered[(len(ordered) * 9) // 10],
    }
    return {name: value / 1e6 for name, value in chosen.items()}


def _size_lines(dims: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each bucket: the sizes at which it was timed."""
    sizes = {run["bucket"]: zip(dims, run["sizes"], strict=False) for run in runs}
    return [f"{name} at {', '.join(f'{dim}={size}' for dim, size in at)}" for name, at in sizes.items()]


def _rows(figure: Mapping[str, Any], unit: str) -> list[list[str]]:
    """A row for runs from host to host, and on a GPU one for runs whose inputs and outputs stay there."""
    kinds = [(figure["bucket"], figure)]
    if "in_place" in figure:
        kinds.append((f"{figure['bucket']}, tensors on the GPU", figure["in_place"]))
    return [
        [label, str(figure["threads"]), str(figure["runs"])]
        + [f"{times[name]:.4g} {unit}" for name in ("least", "median", "nine_in_ten")]
        for label, times in kinds
    ]


def _steps(
    plan: Plan, timed: Mapping[int, TimedRuns], threads: int, peak: float | None
) -> list[dict[str, Any]]:
    """Entries of profile.json for every step of every bucket that was run, in the plan's order."""
    entries: list[dict[str, Any]] = []
    alone = timed[1]
    for number, bucket in enumerate(plan.buckets):
        name = bucket.name
        if name not in alone.steps:
            continue
        steps = steps_of(plan, [time * 1e-9 for time in alone.steps[name]], number, alone.calls[name])
        if not _at_greatest_sizes(plan, bucket, alone.sizes.get(name, [])):
            steps = [replace(step, operations=0) for step in steps]  # the plan counts those of greatest sizes
        seconds = sum(step.seconds for step in steps) or 1.0
        shared = timed[threads].steps[name]
        entries += [
            {"bucket": name, **_step(step, seconds, peak), "time_threads": time / 1e6}
            for step, time in zip(steps, shared, strict=True)
        ]
    return entries


def _at_greatest_sizes(plan: Plan, bucket: PlannedBucket, sizes: Sequence[int]) -> bool:
    """Whether a run of `sizes` of the plan's dimensions does all operations that the plan counts."""
    if bucket.strategy in ("exact", "pad"):
        return True
    greatest = {dim.name: bucket.dims[dim.name].max for dim in plan.dims if dim.name in bucket.dims}
    actual = dict(zip([dim.name for dim in plan.dims], sizes, strict=False))
    return all(actual.get(name, most) == most for name, most in greatest.items())


def _step(step: TimedStep, seconds: float, peak: float | None) -> dict[str, Any]:
    """The entry of profile.json for one step; `ms` and values computed from it are for one thread."""
    share = step.of_peak(None if peak is None else peak * 1e9)
    return {
        "index": step.index,
        "label": step.label,
        "ops": step.ops,
        "kernel": step.kernel,
        "family": step.family,
        "time": step.seconds * 1e3,
        "share": step.seconds / seconds,
        "operations": step.operations,
        "rate": step.rate,
        "of_peak": share,
        "params_bytes": step.params,
        "read_bytes": step.read,
        "written_bytes": step.written,
    }


def _print_steps(figures: Mapping[str, Any]) -> None:
    if figures["peak_gflops"] is not None:
        print(f"one core's peak: {figures['peak_gflops']:.0f} GFLOP/s in float32")
    slowest = sorted(figures["steps"], key=lambda step: -step["time"])[:_SLOWEST]
    listing.grid(
        ("bucket", "#", "step", figures["time_unit"], "of the time", figures["rate_unit"], "of peak"),
        [
            (
                *(s["bucket"], str(s["index"]), s["label"], f"{s['time']:.4g}", f"{s['share']:.1%}"),
                f"{s['rate']:.1f}" if s["operations"] else "",
                "" if s["of_peak"] is None else f"{s['of_peak']:.0%}",
            )
            for s in slowest
        ],
    )
