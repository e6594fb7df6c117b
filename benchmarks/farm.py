"""`./kiln bench farm`: how a build of many bundles scales with workers, measured here and simulated beyond.

1. All pairs of models and targets are built without a cluster, then with `cluster=local:N`, each time from
   nothing; KILN_STAGE_TIMES records the stages. The cost of Dask's scheduler is measured with empty tasks.
2. The simulation takes the stages of the build without a cluster, as often as needed for `--bundles`, and
   gives each to the first worker that is free as soon as its inputs exist. A stage takes its measured time,
   the transfer of its inputs, and the cost of a stage in the build's own process, which is serial: the
   processor time of that process in the last of the builds with a cluster, start and end included.

The bound is the greatest of three: the longest chain of stages, the work divided by the workers, and what the
build's process does alone.
"""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.command_line.number_types import not_negative, positive
from kiln.command_line.own_process import kiln_program
from kiln.errors import KilnError
from kiln.scons.server_process import stage_environment
from kiln.scons.times import VARIABLE
from kiln.scratch import scratch_folder

BANDWIDTH = 117e6  # bytes a second to a worker: Ethernet of 1 Gbit/s without its headers
EMPTY = 500  # tasks that measure the scheduler
SIMULATED = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Work:
    """One stage: seconds on a worker, bytes of its inputs, the stages before it, and whether it may move."""

    seconds: float
    transfer: float
    after: tuple[int, ...]
    shared: bool


@dataclass(frozen=True)
class Simulated:
    """A simulated build: seconds in all, and the three bounds of them."""

    workers: int
    seconds: float
    chain: float
    share: float
    alone: float

    @property
    def bound(self) -> str:
        """The name of the greatest bound."""
        bounds = {"longest chain": self.chain, "workers": self.share, "build's process": self.alone}
        return max(bounds, key=lambda name: bounds[name])


def read_stages(path: Path) -> list[Work]:
    """The stages of a file that KILN_STAGE_TIMES named; raises KilnError where it has none."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        records = [line for line in lines if "processor" not in line]
        makers = {out: number for number, one in enumerate(records) for out in one["outputs"]}
        stages = []
        for number, one in enumerate(records):
            places = [str(place) for name in one["inputs"] for place in (Path(name), *Path(name).parents)]
            before = {makers[place] for place in places if makers.get(place, number) < number}
            stages.append(
                Work(one["seconds"], sum(one["inputs"].values()) / BANDWIDTH, tuple(before), one["shared"])
            )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise KilnError(f"{path}: not a file that {VARIABLE} named: {error}") from error
    if not stages:
        raise KilnError(f"{path}: no stage was recorded")
    return stages


def processor_seconds(path: Path) -> float:
    """Processor seconds of the processes of the builds whose stages are in a file, a line for each.

    Raises KilnError without such a line, which a build writes at its end.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seconds = [float(line["processor"]) for line in lines if "processor" in line]
    if not seconds:
        raise KilnError(
            f"{path}: no line with the build's own processor time, which the build writes when it ends: "
            "give --cost SECONDS, or record the build again"
        )
    return sum(seconds)


def repeated(stages: Sequence[Work], times: int) -> list[Work]:
    """The stages of `times` builds that have nothing in common."""
    count = len(stages)
    return [
        replace(one, after=tuple(number + count * copy for number in one.after))
        for copy in range(times)
        for one in stages
    ]


def simulate(stages: Sequence[Work], workers: int, cost: float) -> Simulated:
    """Build `stages`, in an order in which each comes after its inputs; `cost`: seconds alone for each."""
    after: list[list[int]] = [[] for _ in stages]
    missing = [len(one.after) for one in stages]
    chain: list[float] = []
    for number, one in enumerate(stages):
        begin = max((chain[before] for before in one.after), default=0.0)
        chain.append(begin + one.seconds + cost + (one.transfer if one.shared else 0.0))
        for before in one.after:
            after[before].append(number)
    ready = [(0.0, number) for number, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    free, alone, end = [0.0] * workers, 0.0, 0.0
    while ready:
        earliest, number = heapq.heappop(ready)
        one = stages[number]
        alone = max(alone, earliest) + cost  # the build's process hands the stages out, one after the other
        if one.shared:
            begin = max(heapq.heappop(free), alone)
            done = begin + one.transfer + one.seconds
            heapq.heappush(free, done)
        else:
            alone = done = alone + one.seconds
        end = max(end, done)
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (done, other))
    moved = sum(one.seconds + one.transfer for one in stages if one.shared)
    serial = sum(cost + (0.0 if one.shared else one.seconds) for one in stages)
    return Simulated(workers, end, max(chain), moved / workers, serial)


def build(folder: Path, models: str, targets: str, cluster: str | None = None) -> tuple[float, Path]:
    """Build all pairs in a new folder; seconds, and the file of the stages that ran."""
    folder.mkdir()
    times = folder / "times.jsonl"
    words = [f"model={models}", f"target={targets}", "cache=none", "-s"]
    words += [f"cluster={cluster}"] if cluster else []
    environment = stage_environment(**{VARIABLE: str(times)})
    begin = time.monotonic()
    done = subprocess.run(kiln_program(words), cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise KilnError("bench farm: a build failed")
    return time.monotonic() - begin, times


def absolute_files(names: str) -> str:
    """The names of models or targets, with absolute paths of files: each build has a folder of its own."""
    return ",".join(str(Path(name).resolve()) if Path(name).is_file() else name for name in names.split(","))


def scheduler_cost() -> float:
    """Seconds that Dask takes for an empty task, with one worker: the mean of EMPTY, one after the other."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.submit(int, "1").result()
        begin = time.monotonic()
        for number in range(EMPTY):
            client.submit(int, str(number), pure=False).result()
        return (time.monotonic() - begin) / EMPTY


def table(rows: Sequence[Simulated]) -> str:
    """The simulated builds as Markdown."""
    one = rows[0].seconds
    lines = ["| workers | time, s | speed-up | bound by | the bound, s |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        bound = max(row.chain, row.share, row.alone)
        lines.append(
            f"| {row.workers} | {row.seconds:.0f} | {one / row.seconds:.1f} | {row.bound} | {bound:.0f} |"
        )
    return "\n".join(lines)


def run(options: Mapping[str, Any]) -> str:
    """Measure, or read `times`; simulate; returns the page in Markdown. `cost` replaces the measured one."""
    lines, path, cost = list[str](), options["times"], 0.0
    with scratch_folder("farm") as name:
        if path is None:
            pairs = absolute_files(options["models"]), absolute_files(options["targets"])
            seconds, path = build(Path(name, "0"), *pairs)
            bundles = len(pairs[0].split(",")) * len(pairs[1].split(","))
            stages = read_stages(path)
            lines += [
                f"{bundles} bundles, {len(stages)} stages, {os.cpu_count()} cores here:", "",
                "| workers | time, s | speed-up |", "| --- | --- | --- |",
                f"| none, one stage at a time | {seconds:.1f} | 1.00 |",
            ]  # fmt: skip
            for count in options["workers"]:
                clustered, ran = build(Path(name, str(count)), *pairs, f"local:{count}")
                lines.append(f"| {count} | {clustered:.1f} | {seconds / clustered:.2f} |")
                cost = processor_seconds(ran) / len(stages)
        else:
            bundles, stages = options["of"], read_stages(Path(path))
            if options["cost"] is None:
                cost = processor_seconds(Path(path)) / len(stages)
    empty = scheduler_cost()
    cost = options["cost"] if options["cost"] is not None else cost
    mean = sum(one.seconds for one in stages) / len(stages)
    copies = max(1, round(options["bundles"] / bundles))
    rows = [simulate(repeated(stages, copies), workers, cost) for workers in SIMULATED]
    lines += [
        "", f"Dask's scheduler: {1000 * empty:.1f} ms for an empty task.", "",
        f"Simulated: {copies * bundles} bundles, {copies * len(stages)} stages of {mean:.2f} s on average, "
        f"{1000 * cost:.1f} ms for each in the build's process:", "", table(rows),
    ]  # fmt: skip
    return "\n".join(lines).strip() + "\n"


def main(given: Sequence[str]) -> int:
    """The command line."""
    import argparse

    parser = argparse.ArgumentParser(prog="./kiln bench farm", description="builds with 1, 2, … 256 workers")
    text = "names or files, with commas"
    parser.add_argument("--models", default="anomaly_detection,micro_speech", help=text)
    parser.add_argument("--targets", default="cortex_m4,cortex_m3,riscv32_imac", help=text)
    parser.add_argument(
        "--workers", type=positive, nargs="+", default=[1, 2, 4], help="builds to measure here"
    )
    parser.add_argument("--bundles", type=positive, default=200, help="how many to simulate")
    parser.add_argument("--cost", type=not_negative, help="seconds of the build's process for a stage")
    parser.add_argument("--times", help=f"a file of {VARIABLE}: measure no build")
    parser.add_argument("--of", type=positive, default=1, help="bundles in that file")
    print(run(vars(parser.parse_args(given))), end="")
    return 0
