"""From recorded sizes to buckets: adds traffic files up, measures costs, and builds the model with them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.table import Table

from kiln.command_line.answer import AnswerPart, Reply
from kiln.command_line.costs import MeasuredTimes, dimension_of, measure
from kiln.command_line.outputs import writable
from kiln.config import Model, load_model
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import read_manifest
from kiln.runtime.traffic import CONTENTS, TrafficCounts, merged
from kiln.specialize.traffic import Range, read_checked
from kiln.tables import table_console

_TRAFFIC = ".csv"


def costs(arguments: Namespace) -> Reply:
    """Measure times at several sizes, and write the cost file."""
    from kiln.command_line.arguments import model_of

    writable("costs", Path(arguments.costs), model_of(arguments))
    destination = _target(arguments), arguments.device
    times = measure(model_of(arguments), *destination, arguments.dim, arguments.byoc)
    atomic_write(Path(arguments.costs), times.text())
    part = AnswerPart(
        goal="tune", model=times.model, target=arguments.target, device=arguments.device,
        files={"costs": arguments.costs}, data=_times(times),
    )  # fmt: skip
    return Reply(part, lambda: _show_times(times, arguments.costs))


def traffic(arguments: Namespace) -> Reply:
    """Add traffic files up; without --out into the file of the model, which is built again."""
    files = [Path(path) for path in arguments.files if path.endswith(_TRAFFIC)]
    models = [path for path in arguments.files if not path.endswith(_TRAFFIC)]
    if not files:
        fault = "no traffic file (.csv) is given"
        if len(models) > 1:
            fault = f"'{models[-1]}' does not end in .csv"
        raise KilnError(f"traffic: {fault}; kiln traffic net.yaml monday.csv tuesday.csv")
    if arguments.out is not None:
        if models or arguments.costs:
            raise KilnError("traffic: --out writes the sum of traffic files alone: no model, no --costs")
        writable("out", Path(arguments.out))
        counts = merged(files)
        atomic_write(Path(arguments.out), counts.text())
        part = AnswerPart(goal="traffic", files={"traffic": arguments.out}, data=_figures(counts))
        return Reply(part, lambda: _show_traffic(arguments.out, counts, None))
    if len(models) != 1:
        raise KilnError("traffic: one model is needed: kiln traffic net.yaml monday.csv tuesday.csv")
    return _update_model(arguments, models[0], files)


def _update_model(arguments: Namespace, name: str, files: list[Path]) -> Reply:
    """Write the sum of `files` to the traffic file of the model `name`, measure costs, and build it."""
    from kiln.command_line.build import build

    model, counts = load_model(name), merged(files)
    traffic_file = _file_of(model, "traffic")
    costs_file = _file_of(model, "costs") if arguments.costs else None
    unknown = [dim for dim in counts.dims if dim not in model.dims]
    if unknown:
        raise KilnError(
            f"traffic: model '{model.name}' has no dimension '{unknown[0]}', only {', '.join(model.dims)}"
        )
    if not counts.dims:
        raise KilnError(f"traffic: no column of a dimension of '{model.name}': {', '.join(model.dims)}")
    ranges = {name: Range(dim.min, dim.max, dim.multiple) for name, dim in model.dims.items()}
    for file in files:
        read_checked(file, ranges)  # before the model's file is overwritten
    if not any(counts.rows.values()):
        raise KilnError(f"{', '.join(map(str, files))}: nothing was counted: no row with a count above 0")
    options = {} if arguments.byoc is None else {"byoc": arguments.byoc}
    times = None
    if costs_file is not None:
        times = measure(name, _target(arguments), arguments.device, byoc=arguments.byoc)
        atomic_write(costs_file, times.text())
    atomic_write(traffic_file, counts.text())
    target = _target(arguments) or _target_of_device(arguments.device)
    built = build(name, target, **options)
    buckets = _buckets(built.folder)
    data = {**_figures(counts), "buckets": buckets, "times": None if times is None else _times(times)}
    part = AnswerPart(
        goal="traffic", model=model.name, target=target, device=arguments.device,
        files={"traffic": str(traffic_file), "folder": str(built.folder)}, data=data,
    )  # fmt: skip

    def show() -> None:
        _show_traffic(str(traffic_file), counts, model)
        if times is not None:
            _show_times(times, str(costs_file))
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
        problem = "none is named" if not paths else f"{len(paths)} are named"
        raise KilnError(f"traffic: model '{model.name}': dims.{name}.{key}: one file is needed, {problem}")
    return Path(str(next(iter(paths))))


def _target(arguments: Namespace) -> str | None:
    return arguments.target or (None if arguments.device else "host")


def _target_of_device(device: str | None) -> str:
    from kiln.command_line.running import destination_of

    return destination_of(None, device).named


def _buckets(bundle: Path) -> list[str]:
    return [bucket["name"] for bucket in read_manifest(bundle)["buckets"]]


def _figures(counts: TrafficCounts) -> dict[str, Any]:
    return {
        "runs": sum(counts.rows.values()),
        "sizes": len(counts.rows),
        "missed": counts.missed,
        "contents": counts.of_inputs(),
    }


def _counts_text(counts: TrafficCounts) -> str:
    missed = f", {counts.missed} of unknown sizes" if counts.missed else ""
    return f"{sum(counts.rows.values())} runs of {len(counts.rows)} different sizes{missed}"


def _show_traffic(path: str, recorded: TrafficCounts, model: Model | None) -> None:
    """Print the recorded runs, and how many had an input whose content `special_cases` can name."""
    print(f"{path}: {_counts_text(recorded)}")
    contents = recorded.of_inputs()
    if not contents:
        return
    table = Table(title="runs by the content of an input", title_justify="left")
    for title in ("input", "all zeros", "all ones", "other"):
        table.add_column(title, justify="left" if title == "input" else "right")
    for name, counts in contents.items():
        runs = sum(counts.values())
        table.add_row(name, *(f"{count} ({count / runs:.0%})" for count in counts.values()))
    table_console().print(table)
    for name, counts in contents.items():
        for kind in CONTENTS[:2]:
            if counts[kind] and model is not None and not _is_special(model, name, kind):
                print(f"not in special_cases of {model.name}: {{input: {name}, value: {kind}}}")


def _is_special(model: Model, name: str, kind: str) -> bool:
    conditions = [condition for case in model.special_cases for condition in case.conditions]
    return any(condition.input == name and condition.value == kind for condition in conditions)


def _times(times: MeasuredTimes) -> dict[str, Any]:
    return {"dim": times.dim, "exact": dict(times.exact), "open": dict(times.open)}


def _show_times(times: MeasuredTimes, path: str) -> None:
    """Print the measured times, and which code is faster at each size."""
    table = Table(title=f"{times.model}: microseconds of a run", title_justify="left")
    for title in (times.dim, "code for this size", "dynamic shapes", "faster", "padding up to it wins from"):
        table.add_column(title, justify="right")
    for size, exact in sorted(times.exact.items()):
        slower = [n for n, time in sorted(times.open.items()) if time > exact and n <= size]
        table.add_row(
            str(size), f"{exact / 1000:.1f}", f"{times.open[size] / 1000:.1f}",
            "this size" if exact < times.open[size] else "dynamic", str(slower[0]) if slower else "never",
        )  # fmt: skip
    table_console().print(table)
    print(f"{path}: times at {len(times.exact)} sizes")
