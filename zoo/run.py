"""Exports, builds and compares one model of the zoo."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from kiln.files import read_json

from zoo.environment import ROOT, WORK, variables
from zoo.record import Result

FORMS = [
    f"{exporter}-{sizes}" for exporter in ("archive", "dynamo", "script") for sizes in ("static", "dynamic")
]


@dataclass(frozen=True)
class Ended:
    """The output of a process, its status (None: it was stopped after `seconds`), and its run time."""

    output: str
    status: int | None
    seconds: float

    @property
    def reason(self) -> str:
        """The line of the output with the reason of the failure."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "test failed:" in line]
        return (errors or lines or ["it printed nothing"])[0 if errors else -1].removeprefix("kiln: error: ")


def run(name: str, form: str, args: argparse.Namespace) -> Result:
    """Export, build, test, and measure the model `name` in `form`."""
    suffix = ".pt2" if form.startswith("archive") else ".onnx"
    file = WORK / "exports" / form / f"{name}{suffix}"
    file.parent.mkdir(parents=True, exist_ok=True)
    exported = call([str(args.python), "-m", "zoo.export", name, form, str(file)], ROOT, args.limit)
    if exported.status != 0:
        return Result("not exported", exported.reason if exported.status is not None else _slow(exported))
    folder = WORK / "builds" / form / name
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"target={args.target}", f"model={file.with_suffix('.yaml')}", "test"]
    scons = [str(args.python), "-m", "SCons", "-Q", "-f", str(ROOT / "SConstruct")]
    built = call([*scons, *words], folder, args.limit)
    state, why = state_of(built)
    lower = re.search(r"^kiln: \S+: lower: done, (\d+) s", built.output, re.MULTILINE)
    seconds = round(built.seconds, 1), float(lower[1]) if lower else None
    bundle = folder / "build" / args.target / name
    if state != "ok":
        return Result(state, why, *seconds)
    buckets = read_json(bundle / "manifest.json")["buckets"]
    arena = max(bucket["arena_bytes"] for bucket in buckets)
    ratios = measured(file, bundle, args) if args.rounds and suffix == ".onnx" else []
    if not ratios:
        return Result("ok", "", *seconds, arena)
    return Result("ok", "", *seconds, arena, statistics.geometric_mean(ratios), min(ratios))


def measured(file: Path, bundle: Path, args: argparse.Namespace) -> list[float]:
    """ONNX Runtime's time over Kiln's for each size of the golden vectors; empty if it cannot be measured."""
    words = [str(file), str(bundle), str(args.rounds), str(args.cpu)]
    ended = call([str(args.python), "-m", "zoo.speed", *words], ROOT, args.limit)
    return [float(ratio) for ratio in json.loads(ended.output.splitlines()[-1])] if ended.status == 0 else []


def state_of(built: Ended) -> tuple[str, str]:
    """The state of a build, as in `Result`, and the reason."""
    if built.status == 0:
        return "ok", ""
    if built.status is None:
        return "slow", _slow(built)
    if "Traceback" in built.output or built.status < 0 or "killed by signal" in built.output:
        return "crashed", built.reason
    return ("wrong" if "test failed:" in built.output else "refused"), built.reason


def _slow(ended: Ended) -> str:
    return f"stopped after {ended.seconds:.0f} s"


def call(command: list[str], folder: Path, limit: float) -> Ended:
    """Run a command, with all its processes, for at most `limit` seconds."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return Ended(output, process.returncode, time.monotonic() - start)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return Ended(output, None, time.monotonic() - start)
