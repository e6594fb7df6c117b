"""`./kiln bench instructions`: instructions of a run on 64-bit ARM, of Kiln and of XNNPACK (LiteRT).

No ARM machine is needed: QEMU runs the same worker as on this machine, in Debian's Python for arm64, and the
plugin of plugin.py counts. The count of one run is subtracted from that of three, so the start, loading and
the first run are left out. Instructions are not times; they show the work for each multiply-add.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.config import Target, load_target
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.golden.sample_sizes import serving_bucket
from kiln.plan.schema import Plan, PlannedBucket, read_plan

from benchmarks.arm64 import Arm64, describe_processor, prepare
from benchmarks.contenders import Folders, LeftOutError, Subject, file_for, find_peer, kiln_for
from benchmarks.subjects import SizedModel, find
from benchmarks.tables import markdown
from benchmarks.workers import ROOT, say

PEER = "litert"
RUNS = (1, 3)
TIMEOUT = 1800.0  # seconds; QEMU computes one element of a vector after the other


@dataclass(frozen=True)
class Row:
    """Instructions of one run, by contender, and the model's multiply-adds."""

    model: str
    target: str
    macs: int
    counts: dict[str, int]

    def cells(self, names: Sequence[str]) -> list[str]:
        """A row of the table: millions, then instructions for each multiply-add, then a ratio."""
        counts = [self.counts.get(name) for name in names]
        cells = [f"{count / 1e6:.1f}" if count else "–" for count in counts]
        cells += [f"{count / self.macs:.3f}" if count and self.macs else "–" for count in counts]
        kiln, peer = counts
        ratio = f"{peer / kiln:.2f}" if kiln and peer else "–"
        return [self.model, self.target, f"{self.macs / 1e6:.1f}", *cells, ratio]


def run(args: argparse.Namespace, chosen: Sequence[SizedModel], folders: Folders, out: Path) -> None:
    """Count every model on every target; print the table and write instructions.md. Raises KilnError."""
    targets = [load_target(name) for name in args.target]
    for target in targets:
        if target.arch != "aarch64" or target.emulator is None:
            raise KilnError(f"--target '{target.name}': instructions are counted for 64-bit ARM, under QEMU")
    machine = prepare(folders)
    rows = []
    for one in chosen:
        for target in targets:
            try:
                rows.append(_row(find(one, folders, [target.name]), target, machine, folders))
            except LeftOutError as reason:
                say(str(reason))
    if not rows:
        raise KilnError("nothing could be counted; the lines above say why")
    names = ["Kiln", f"{PEER} (XNNPACK)"]
    head = [
        "model",
        "target",
        "Mmac",
        *(f"{name}, M" for name in names),
        *(f"{name} / mac" for name in names),
    ]
    table = markdown([*head, "XNNPACK / Kiln"], [row.cells(["kiln", PEER]) for row in rows])
    text = f"Instructions of one run on one thread; {machine.description}.\n\n{table}"
    atomic_write(out / "instructions.md", text)
    print(text)


def _row(subject: Subject, target: Target, machine: Arm64, folders: Folders) -> Row:
    counts = {}
    contenders = [(kiln_for(target.name), "kiln")]
    try:
        contenders.append((find_peer(PEER, folders), PEER))
    except LeftOutError as reason:
        say(str(reason))
    for contender, key in contenders:
        try:
            file = file_for(contender, subject, folders)
            request = {
                "do": "runs",
                "peer": contender.module,
                "file": str(file.resolve()),
                "interface": subject.interface,
                "threads": 1,
            }
            say(f"{subject.name} on {target.name}: {key}")
            few, many = (count(machine, target, {**request, "runs": runs}) for runs in RUNS)
            counts[key] = (many - few) // (RUNS[1] - RUNS[0])
        except LeftOutError as reason:
            say(str(reason))
    plan = read_plan(folders.build / ".stages" / target.name / subject.model / "plan/plan.json")
    return Row(subject.name, target.name, multiply_adds(plan, subject.interface["dims"]), counts)


def multiply_adds(plan: Plan, dims: dict[str, int]) -> int:
    """Multiply-adds of the bucket for `dims`, as the operators define them, also if Winograd saves some.

    Raises KilnError if no bucket serves the sizes.
    """
    number = serving_bucket([_box(bucket) for bucket in plan.buckets], dims)
    if number is None:
        raise KilnError(f"{plan.name}: no bucket for {dims}")
    return sum(step.macs or 0 for step in plan.buckets[number].steps)


def _box(bucket: PlannedBucket) -> Box:
    parts = {
        name: Segment(strategy="dynamic", min=interval.min, max=interval.max, multiple=interval.multiple)
        for name, interval in bucket.dims.items()
    }
    return Box(name=bucket.name, dims=parts)


def count(machine: Arm64, target: Target, request: dict[str, Any]) -> int:
    """Instructions of a whole process that loads a model and runs it. Raises LeftOutError."""
    assert target.emulator is not None
    describe_processor(machine.root, target.emulator.args)
    result = machine.folder / "count.txt"
    result.unlink(missing_ok=True)
    packages = f"{ROOT}:{ROOT / 'build_tools'}:{machine.packages}"  # the benchmark, Kiln, and the peer
    environment = (f"PYTHONPATH={packages}", "PYTHONHASHSEED=0", "OMP_NUM_THREADS=1")
    command = [
        *(target.emulator.command, *target.emulator.args),
        *("-plugin", f"{machine.plugin},out={result}", "-L", str(machine.root)),
        *(word for variable in environment for word in ("-E", variable)),
        *(str(machine.python), "-m", "benchmarks.worker", json.dumps(request)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise LeftOutError(f"{request['file']}: left out, no answer after {TIMEOUT:g} s") from None
    try:
        answer = json.loads(done.stdout)
        instructions = int(result.read_text())
    except (OSError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise LeftOutError(f"{request['file']}: left out, exit status {done.returncode}: {last}") from None
    if "failed" in answer:
        raise LeftOutError(f"{request['file']}: left out: {answer['failed']}")
    return instructions
