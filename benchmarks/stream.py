"""`./kiln bench stream`: a stream of differently sized inputs, through Kiln's buckets and through its peers.

The sizes are drawn from a histogram (a traffic file: a column for each dimension, and count). Every contender
is asked for the whole stream in the same order, in turns; total times, and the time of each size.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from kiln.config import load_model
from kiln.config.interface import Interface
from kiln.errors import KilnError
from kiln.files import atomic_write

from benchmarks import subjects
from benchmarks.compare import turn_order
from benchmarks.contenders import (
    Contender,
    Folders,
    LeftOutError,
    check_peers,
    file_for,
    find_peer,
    kiln_for,
)
from benchmarks.machine import description
from benchmarks.peers import STREAMING
from benchmarks.tables import markdown
from benchmarks.workers import Worker, WorkerError, say


@dataclass(frozen=True)
class Item:
    """One distinct size, and where its input tensors lie."""

    dims: Mapping[str, int]
    inputs: list[dict[str, Any]]


def read_histogram(path: Path, least: Mapping[str, int]) -> tuple[list[dict[str, int]], list[int]]:
    """The sizes in a traffic file, and the number of runs of each.

    `least`: by dimension, the size if the file has no column for it. Raises KilnError for a file of another
    form.
    """
    try:
        lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        # A row without sizes counts the runs that the recorder had no room for.
        rows = [row for row in lines if any(value for dim, value in row.items() if dim != "count")]
        seen = [{dim: int(row.get(dim, size)) for dim, size in least.items()} for row in rows]
        return seen, [int(row["count"]) for row in rows]
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        columns = ", ".join([*least, "count"])
        raise KilnError(f"{path}: not a table of whole numbers, columns {columns}: {error}") from error


def draw(weights: Sequence[int], count: int, seed: int) -> list[int]:
    """`count` positions, each drawn with its weight."""
    share = np.asarray(weights, np.float64) / np.sum(weights)
    return [int(n) for n in np.random.default_rng(seed).choice(len(weights), size=count, p=share)]


def make_items(
    model: str, interface: Interface, points: Sequence[Mapping[str, int]], folder: Path
) -> list[Item]:
    """An input for every size, drawn as the model's golden vectors are."""
    folder.mkdir(parents=True, exist_ok=True)
    items = []
    for number, dims in enumerate(points):
        values = subjects.draw_inputs(model, interface, dims)
        tensors = [
            subjects.write_tensor(folder / f"{number}.{at}.bin", port.name, value)
            for at, (port, value) in enumerate(zip(interface.inputs, values, strict=True))
        ]
        items.append(Item(dims, tensors))
    return items


def run(args: argparse.Namespace, folders: Folders, out: Path) -> None:
    """Measure one model; write stream-MODEL.md and .csv into `out`. Raises KilnError if that fails."""
    if len(args.model) != 1:
        raise KilnError("stream measures one --model")
    model = load_model(args.model[0])
    histogram = args.histogram or next((Path(d.traffic) for d in model.dims.values() if d.traffic), None)
    if histogram is None:
        raise KilnError(f"--histogram: model '{model.name}' names no traffic file of its own")
    points, weights = read_histogram(histogram, {name: dim.min for name, dim in model.dims.items()})
    chosen = draw(weights, args.count, seed=1)
    used = sorted(set(chosen))
    interface = subjects.interface_of(model.name, folders, args.target)
    items = make_items(
        args.model[0], interface, [points[n] for n in used], folders.work / "stream" / model.name
    )
    order = [used.index(n) for n in chosen]
    times = _play(args, folders, model.name, interface, items, order)
    if not times:
        raise KilnError("nothing could be measured; the lines above say why")
    text = _report(args, model.name, histogram, items, order, times)
    atomic_write(out / f"stream-{model.name}.md", text)
    atomic_write(out / f"stream-{model.name}.csv", _csv(items, order, times))
    print(text)


def _contenders(args: argparse.Namespace, folders: Folders, model: str) -> list[tuple[str, Contender, Path]]:
    """Name, contender and its file: the bundles of each target and of the --also models, and the peers."""
    contenders = []
    for target in args.target:
        for name in [model, *args.also]:
            contender = kiln_for(target)
            subject = subjects.find(subjects.SizedModel(name), folders, [target])
            contenders.append((f"{contender.name} {name}", contender, file_for(contender, subject, folders)))
    subject = subjects.find(subjects.SizedModel(model), folders, args.target)
    check_peers(args.peer)
    for peer in args.peer:
        try:
            if peer not in STREAMING:
                raise LeftOutError(f"{peer}: left out, it is asked for fixed sizes only")
            contender = find_peer(peer, folders)
            contenders.append((contender.name, contender, file_for(contender, subject, folders)))
        except LeftOutError as reason:
            say(str(reason))
    return contenders


def _play(
    args: argparse.Namespace,
    folders: Folders,
    model: str,
    interface: Interface,
    items: Sequence[Item],
    order: Sequence[int],
) -> dict[str, list[list[float]]]:
    """By contender, for every round the time of each item of the stream, in seconds."""
    times: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, contender, file in _contenders(args, folders, model):
            request = {
                "do": "stream",
                "peer": contender.module,
                "file": str(file.resolve()),
                "interface": interface.model_dump(),
                "threads": args.threads[0],
                "cpus": list(args.cpus)[: args.threads[0]],
                "items": [{"dims": dict(item.dims), "inputs": item.inputs} for item in items],
                "order": list(order),
                "clock": args.clock,
            }
            worker = stack.enter_context(Worker(folders.python_of(contender.module), request, folders.log))
            try:
                worker.answer()
                worker.pause()
                workers[name] = worker
            except WorkerError as error:
                say(f"{name}: left out: {error}")
        for number in range(args.rounds):
            for name in turn_order(list(workers), number):
                times.setdefault(name, []).append(workers[name].turn(0)["times"])
    return times


def _report(
    args: argparse.Namespace,
    model: str,
    histogram: Path,
    items: Sequence[Item],
    order: Sequence[int],
    times: Mapping[str, list[list[float]]],
) -> str:
    best = min(times, key=lambda name: median(map(sum, times[name])))
    rows = []
    for name, rounds in times.items():
        totals = [sum(one) for one in rounds]
        ratio = median(a / b for a, b in zip(totals, [sum(one) for one in times[best]], strict=True))
        spread = (max(totals) - min(totals)) / 2 / median(totals)
        rows.append([name, f"{median(totals):.3f}", f"{spread:.1%}", f"{ratio:.2f}"])
    clock = "processor time" if args.clock == "cpu" else "wall time"
    return (
        f"{description(args.cpus)}.\n\n"
        f"{model}: {len(order)} inputs of {len(items)} sizes drawn from {histogram.name}; "
        f"{len(next(iter(times.values())))} rounds in turns, {args.threads[0]} thread(s), {clock}.\n\n"
        + markdown(["contender", "total s (median)", "±", "times the fastest"], rows)
    )


def _csv(items: Sequence[Item], order: Sequence[int], times: Mapping[str, list[list[float]]]) -> str:
    """Median microseconds of every size, a column for each contender."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    dims = list(items[0].dims)
    writer.writerow([*dims, "inputs", *times])
    for number, item in enumerate(items):
        places = [at for at, which in enumerate(order) if which == number]
        cells = [
            f"{median(one[at] for one in rounds for at in places) * 1e6:.1f}" for rounds in times.values()
        ]
        writer.writerow([*(item.dims[dim] for dim in dims), len(places), *cells])
    return stream.getvalue()
