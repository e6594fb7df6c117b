"""How fast a bundle is where it runs: whole runs and steps, timed there by the monotonic clock."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kiln.config import Target
from kiln.device import shown
from kiln.device.bundle import Bundle, open_bundle
from kiln.device.execute import TIMEOUT
from kiln.device.runners import Runner
from kiln.device.runners.remote import chosen_runner
from kiln.device.vectors import encode
from kiln.errors import KilnError
from kiln.files import read_json, write_json

_SECONDS = 2.0  # of runs for each bucket
_SLOWEST = 12  # steps that are shown


def add_arguments(p: argparse.ArgumentParser) -> None:
    """--bundle folder, --target target.json, --plan plan.json, --work folder, --out bench.json [--device]."""
    p.add_argument("--bundle", type=Path, required=True, help="the bundle's folder")
    p.add_argument("--target", type=Path, required=True, help="target.json")
    p.add_argument("--plan", type=Path, required=True, help="plan.json: what the steps are")
    p.add_argument("--work", type=Path, required=True, help="folder where linked programs are kept")
    p.add_argument("--device", type=Path, help="device.json: run there")
    p.add_argument("--steps", action="store_true", help="show the slowest steps")
    p.add_argument("--out", type=Path, required=True, help="all figures, as JSON")


def run(args: argparse.Namespace) -> None:
    """Print a line for each bucket and number of threads; with --steps the slowest steps on one thread."""
    target, plan = Target.model_validate(read_json(args.target)), read_json(args.plan)
    bundle = open_bundle(args.bundle)
    program = bundle.link_program(target, args.work, "time_runs")
    with chosen_runner(target, args.device, args.bundle.name) as runner:
        print(f"{bundle.name} on {target.name} ({runner.description})", flush=True)
        before = dict(runner.identity)
        cores = min(target.cores, int(before.get("cores", target.cores)))
        counts = [1, cores] if target.threads == "pthread" and cores > 1 else [1]
        timed = {threads: measure(bundle, program, runner, threads) for threads in counts}
        after = dict(runner.identity)
    figures = [
        {"bucket": name, "threads": threads, "runs": len(runs), **_summary(runs)}
        for threads, (by_bucket, _) in timed.items()
        for name, runs in by_bucket.items()
    ]
    steps = _steps(plan, timed[1][1])
    shown.grid(("bucket", "threads", "runs", "least", "median", "nine in ten"), [_row(f) for f in figures])
    if args.steps:
        _print_steps(steps)
    # The clock may fall while a device gets warm, so it is read at both ends.
    about = {"model": bundle.name, "target": target.name, "device": before, "device_after": after}
    write_json(args.out, {"format": 1, **about, "runs": figures, "steps": steps})


def measure(
    bundle: Bundle, program: Path, runner: Runner, threads: int
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Nanoseconds of every run, and the least of every step, by bucket. Raises KilnError as Runner.run."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        given = Path(folder, "inputs")
        given.write_bytes(encode([vector.inputs for vector in bundle.vectors()]))
        send = {"inputs.bin": given, **bundle.beside()}
        if bundle.params.is_file():
            send["params.bin"] = bundle.params
        words = ["inputs.bin", "params.bin", str(threads), str(int(_SECONDS * 1000))]
        done = runner.run(program, words, send=send, fetch={}, timeout=TIMEOUT)
    if done.status != 0:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise KilnError(f"{bundle.folder}: cannot be timed on {runner.description}: {reason}")
    runs: dict[str, list[int]] = defaultdict(list)
    steps: dict[str, list[int]] = defaultdict(list)
    for line in done.stdout.splitlines():
        match line.split("\t"):
            case ["run", bucket, time]:
                runs[bucket].append(int(time))
            case ["step", bucket, _, time]:
                steps[bucket].append(int(time))
            case _:
                raise KilnError(f"{bundle.folder}: the program printed a line of no known kind: {line!r}")
    if not runs:
        raise KilnError(f"{bundle.folder}: nothing was timed on {runner.description}")
    return dict(runs), dict(steps)


def _summary(runs: Sequence[int]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(runs)
    chosen = {
        "least": ordered[0],
        "median": median(ordered),
        "nine_in_ten": ordered[(len(ordered) * 9) // 10],
    }
    return {f"{name}_ms": value / 1e6 for name, value in chosen.items()}


def _row(figure: Mapping[str, Any]) -> list[str]:
    times = [f"{figure[f'{name}_ms']:.4g} ms" for name in ("least", "median", "nine_in_ten")]
    return [figure["bucket"], str(figure["threads"]), str(figure["runs"]), *times]


def _steps(plan: Mapping[str, Any], timed: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    found = []
    for bucket in plan["buckets"]:
        for step, time in zip(bucket["steps"], timed.get(bucket["name"], ()), strict=False):
            found.append({"bucket": bucket["name"], "label": step["label"], "ms": time / 1e6})
    return found


def _print_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    slowest = sorted(steps, key=lambda step: -step["ms"])[:_SLOWEST]
    shown.grid(("bucket", "step", "ms"), [(s["bucket"], s["label"], f"{s['ms']:.4g}") for s in slowest])
