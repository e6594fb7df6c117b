"""From recorded sizes to buckets: adds traffic files up, measures costs, and builds the model with them."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kiln.command_line.answer import AnswerPart, Reply
from kiln.command_line.costs import MeasuredTimes, dimension_of, measure
from kiln.config import Model, load_model
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import read_manifest
from kiln.runtime.traffic import CONTENTS, TrafficCounts, merged
from kiln.specialize.traffic import Range, read_checked

_TRAFFIC = ".csv"


def costs(given: Namespace) -> Reply:
    """Measure times at several sizes, and write the cost file."""
    from kiln.command_line.arguments import model_of

    options = {} if given.byoc is None else {"byoc": given.byoc}
    found = measure(model_of(given), _target(given), given.device, given.dim, **options)
    atomic_write(Path(given.costs), found.text())
    part = AnswerPart(
        goal="tune", model=found.model, target=given.target, device=given.device,
        files={"costs": given.costs}, data=_times(found),
    )  # fmt: skip
    return Reply(part, lambda: _show(found, given.costs))


def traffic(given: Namespace) -> Reply:
    """Add traffic files up; without --out into the file of the model, which is built again."""
    files = [Path(path) for path in given.given if path.endswith(_TRAFFIC)]
    models = [path for path in given.given if not path.endswith(_TRAFFIC)]
    if not files:
        raise KilnError("traffic: no traffic file (.csv) is given")
    if given.out is not None:
        if models or given.costs:
            raise KilnError("traffic: --out writes the sum of traffic files alone: no model, no --costs")
        whole = merged(files)
        atomic_write(Path(given.out), whole.text())
        part = AnswerPart(goal="traffic", files={"traffic": given.out}, data=_figures(whole))
        return Reply(part, lambda: _show_traffic(given.out, whole, None))
    if len(models) != 1:
        raise KilnError("traffic: one model is needed: kiln traffic net.yaml monday.csv tuesday.csv")
    return _into_model(given, models[0], files)


def _into_model(given: Namespace, name: str, files: list[Path]) -> Reply:
    from kiln.command_line.build import build

    model, whole = load_model(name), merged(files)
    place = _file_of(model, "traffic")
    costs_file = _file_of(model, "costs") if given.costs else None
    unknown = [one for one in whole.dims if one not in model.dims]
    if unknown:
        raise KilnError(
            f"traffic: model '{model.name}' has no dimension '{unknown[0]}', only {', '.join(model.dims)}"
        )
    if not whole.dims:
        raise KilnError(f"traffic: no column of a dimension of '{model.name}': {', '.join(model.dims)}")
    ranges = {name: Range(dim.min, dim.max, dim.multiple) for name, dim in model.dims.items()}
    for file in files:
        read_checked(file, ranges)  # before the model's file is overwritten
    if not any(whole.rows.values()):
        raise KilnError(f"{', '.join(map(str, files))}: nothing was counted: no row with a count above 0")
    options = {} if given.byoc is None else {"byoc": given.byoc}
    atomic_write(place, whole.text())
    times = None
    if costs_file is not None:
        times = measure(name, _target(given), given.device, **options)
        atomic_write(costs_file, times.text())
    target = _target(given) or _of_device(given.device)
    built = build(name, target, **options)
    buckets = _buckets(built.folder)
    data = {**_figures(whole), "buckets": buckets, "times": None if times is None else _times(times)}
    part = AnswerPart(
        goal="traffic", model=model.name, target=target, device=given.device,
        files={"traffic": str(place), "folder": str(built.folder)}, data=data,
    )  # fmt: skip

    def show() -> None:
        _show_traffic(str(place), whole, model)
        if times is not None:
            _show(times, str(costs_file))
        print(f"{built.folder}: buckets {', '.join(buckets)}")

    return Reply(part, show)


def _file_of(model: Model, key: str) -> Path:
    """The path of the traffic or cost file of the dimensions with `buckets: auto`."""
    auto = {name: dim for name, dim in model.dims.items() if dim.auto}
    if not auto:
        raise KilnError(f"traffic: model '{model.name}' has no dimension with 'buckets: auto'")
    paths = {getattr(dim, key) for dim in auto.values()} - {None}
    if len(paths) != 1:
        name = dimension_of(model) if key == "costs" and len(auto) == 1 else ", ".join(auto)
        what = "none is named" if not paths else f"{len(paths)} are named"
        raise KilnError(f"traffic: model '{model.name}': dims.{name}.{key}: one file is needed, {what}")
    return Path(str(next(iter(paths))))


def _target(given: Namespace) -> str | None:
    return given.target or (None if given.device else "host")


def _of_device(device: str | None) -> str:
    from kiln.command_line.running import destination_of

    return destination_of(None, device).named


def _buckets(bundle: Path) -> list[str]:
    return [bucket["name"] for bucket in read_manifest(bundle)["buckets"]]


def _figures(whole: TrafficCounts) -> dict[str, Any]:
    return {
        "runs": sum(whole.rows.values()),
        "sizes": len(whole.rows),
        "missed": whole.missed,
        "contents": whole.of_inputs(),
    }


def _words(whole: TrafficCounts) -> str:
    missed = f", {whole.missed} of unknown sizes" if whole.missed else ""
    return f"{sum(whole.rows.values())} runs of {len(whole.rows)} different sizes{missed}"


def _show_traffic(path: str, whole: TrafficCounts, model: Model | None) -> None:
    """Print what was counted, and how often contents of inputs came that `special_cases` can name."""
    print(f"{path}: {_words(whole)}")
    contents = whole.of_inputs()
    if not contents:
        return
    table = Table(title="runs by the content of an input", title_justify="left")
    for title in ("input", "all zeros", "all ones", "other"):
        table.add_column(title, justify="left" if title == "input" else "right")
    for name, counts in contents.items():
        runs = sum(counts.values())
        table.add_row(name, *(f"{count} ({count / runs:.0%})" for count in counts.values()))
    Console(file=sys.stdout, highlight=False, markup=False).print(table)
    for name, counts in contents.items():
        for kind in CONTENTS[:2]:
            if counts[kind] and model is not None and not _is_special(model, name, kind):
                print(f"not in special_cases of {model.name}: {{input: {name}, value: {kind}}}")


def _is_special(model: Model, name: str, kind: str) -> bool:
    conditions = [one for case in model.special_cases for one in case.conditions]
    return any(one.input == name and one.value == kind for one in conditions)


def _times(found: MeasuredTimes) -> dict[str, Any]:
    return {"dim": found.dim, "exact": dict(found.exact), "open": dict(found.open)}


def _show(found: MeasuredTimes, path: str) -> None:
    """Print the measured times, and which code is faster at each size."""
    table = Table(title=f"{found.model}: microseconds of a run", title_justify="left")
    for title in (found.dim, "code for this size", "dynamic shapes", "faster", "padding up to it wins from"):
        table.add_column(title, justify="right")
    for size, exact in sorted(found.exact.items()):
        slower = [n for n, time in sorted(found.open.items()) if time > exact and n <= size]
        table.add_row(
            str(size), f"{exact / 1000:.1f}", f"{found.open[size] / 1000:.1f}",
            "this size" if exact < found.open[size] else "dynamic", str(slower[0]) if slower else "never",
        )  # fmt: skip
    Console(file=sys.stdout, highlight=False).print(table)
    print(f"{path}: times at {len(found.exact)} sizes")
