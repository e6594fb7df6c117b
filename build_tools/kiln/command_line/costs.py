"""Measures the times of a model at several sizes of a dimension: the file that `costs` in `dims` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.command_line.model_files import keys_of_copy, write_copy
from kiln.command_line.timed_copies import Timing, bench_of, refuse_emulator
from kiln.config import Model, load_model
from kiln.config.source import PythonSource
from kiln.errors import KilnError
from kiln.runtime.traffic import read_counts
from kiln.sources import fetch

WORK = Path("build", ".costs")
SAMPLES = 6  # sizes at which times are measured
# Keys of a dimension that belong to `buckets: auto`; the copies that are measured list their buckets.
_AUTO_KEYS = ("auto", "traffic", "costs", "max_buckets", "code_budget", "auto_as", "auto_assume")


@dataclass(frozen=True)
class MeasuredTimes:
    """Median nanoseconds of a run by size: of code for that size alone, and of code for any size."""

    model: str
    dim: str
    exact: Mapping[int, float]
    open: Mapping[int, float]

    def text(self) -> str:
        """The content of the cost file."""
        rows = [f"{size},{self.exact[size]:.0f},{self.open[size]:.0f}" for size in sorted(self.exact)]
        return "\n".join([f"{self.dim},nanoseconds,open_nanoseconds", *rows, ""])


def dimension_of(model: Model, requested: str | None = None) -> str:
    """The dimension whose sizes are measured: `requested`, or the only one with `buckets: auto` or a range.

    Raises KilnError where the model has no such dimension, and for several of which none is `requested`.
    """
    dynamic = [name for name, dim in model.dims.items() if dim.min != dim.max]
    candidates = [name for name in dynamic if model.dims[name].auto] or dynamic
    if requested is not None:
        if requested not in dynamic:
            raise KilnError(
                f"model '{model.name}': no dimension '{requested}' with a range; {_dimensions_text(dynamic)}"
            )
        return requested
    if not candidates:
        raise KilnError(
            f"model '{model.name}': {_dimensions_text(candidates)}, so there is one time only, which "
            "`kiln bench` measures"
        )
    if len(candidates) != 1:
        raise KilnError(f"model '{model.name}': --dim is needed; {_dimensions_text(candidates)}")
    return candidates[0]


def _dimensions_text(names: Sequence[str]) -> str:
    return f"dimensions: {', '.join(names)}" if names else "it has no dynamic dimension"


def measure(
    name: str, target: str | None, device: str | None, dim: str | None = None, byoc: str | None = None
) -> MeasuredTimes:
    """Measure the model `name` (a name or a path) on `target` or `device`.

    Two copies of the model are built: with code for each of a few sizes, and with code for ranges
    that end at these sizes. Raises KilnError where a build fails, and where times mean nothing because
    the target is emulated.
    """
    timing = Timing(target, device, byoc)
    refuse_emulator("costs", timing)
    model = load_model(name)
    if isinstance(model.source, PythonSource):
        raise KilnError(f"model '{model.name}': costs accept .onnx and .tflite files, not a Python function")
    chosen, source = dimension_of(model, dim), fetch(model.source)
    sizes = _sizes(model, chosen)
    step, least = model.dims[chosen].multiple, model.dims[chosen].min
    starts = [least, *(size + step for size in sizes[:-1])]
    buckets: dict[str, list[dict[str, Any]]] = {
        "exact": [{"exact": size} for size in sizes],
        "open": [{"range": [start, size]} for start, size in zip(starts, sizes, strict=True)],
    }
    times = {
        kind: _measured_times(_write_copy(model, source, chosen, f"{model.name}_{kind}", listed), timing)
        for kind, listed in buckets.items()
    }
    names = {size: f"{chosen}{start}_{size}" for start, size in zip(starts, sizes, strict=True)}
    return MeasuredTimes(
        model.name,
        chosen,
        {size: _time_of_bucket(times["exact"], f"{chosen}{size}", size) for size in sizes},
        {size: _time_of_bucket(times["open"], name, size) for size, name in names.items()},
    )


def _sizes(model: Model, dim: str) -> list[int]:
    """A few sizes in geometric progression, from the least to the greatest recorded, or allowed, size."""
    dim_config = model.dims[dim]
    low, high = dim_config.min, dim_config.max
    if dim_config.traffic is not None and Path(dim_config.traffic).is_file():
        traffic = read_counts(Path(dim_config.traffic))
        if dim in traffic.dims and traffic.rows:
            seen = [sizes[traffic.dims.index(dim)] for sizes in traffic.rows]
            low, high = max(min(seen), dim_config.min), min(max(seen), dim_config.max)
    low, high = max(low, dim_config.multiple), max(high, dim_config.multiple)
    sizes = {low, high}
    for index in range(1, SAMPLES - 1):
        size = low * (high / low) ** (index / (SAMPLES - 1))
        sizes.add(min(max(round(size / dim_config.multiple) * dim_config.multiple, low), high))
    # Between two sizes there is another one: the range that ends at a size has code for any size.
    chosen_sizes, least = list[int](), dim_config.min
    for size in sorted({*sizes, min(low + dim_config.multiple, dim_config.max)}):
        if size >= least + dim_config.multiple:
            chosen_sizes.append(size)
            least = size + dim_config.multiple
    if len(chosen_sizes) < 2:
        raise KilnError(f"model '{model.name}': {dim} has too few sizes, {low}..{high}, for buckets")
    return chosen_sizes


def _write_copy(
    model: Model, source: Path, dim: str, name: str, buckets: Sequence[Mapping[str, Any]]
) -> Path:
    """Write the YAML file of a copy of the model with these buckets; its other dimensions have one size."""
    content = keys_of_copy(model, source, ["special_cases"])
    for dim_name, settings in content["dims"].items():
        for key in _AUTO_KEYS:
            settings.pop(key, None)
        if dim_name == dim:
            settings["buckets"] = list(buckets)
        else:
            settings.update(min=max(settings["min"], 1), max=max(settings["min"], 1), buckets=[])
            settings.pop("fallback", None)
    for port in content.get("inputs", {}).values():
        port.pop("pad", None)  # no bucket of a copy pads
    return write_copy(content, WORK, name)


def _measured_times(configuration: Path, timing: Timing) -> dict[str, Mapping[str, Any]]:
    """The figures of the runs on one thread, by bucket: `median` in milliseconds, and `sizes`."""
    data = bench_of("costs", configuration, timing.words())
    if data["time_unit"] != "ms" or data["emulated"]:
        raise KilnError(
            f"costs: target '{data['target']}' is emulated here, so its times mean nothing: measure on a "
            "device with --device NAME"
        )
    return {run["bucket"]: run for run in data["runs"] if run["threads"] == 1}


def _time_of_bucket(runs: Mapping[str, Mapping[str, Any]], bucket: str, size: int) -> float:
    """Nanoseconds of a run of `size` in a bucket, whose name may have further dimensions before it."""
    matching = [run for name, run in runs.items() if name == bucket or name.endswith(f"_{bucket}")]
    if len(matching) != 1:
        raise KilnError(f"costs: bucket '{bucket}' was not timed, only {', '.join(runs)}")
    if size not in matching[0]["sizes"]:  # a time at another size would mislead the choice of buckets
        raise KilnError(f"costs: bucket '{bucket}' was timed at {matching[0]['sizes']}, not at {size}")
    return 1e6 * float(matching[0]["median"])
