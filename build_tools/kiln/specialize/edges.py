"""edges: stage that chooses the buckets of all dimensions with `buckets: auto`.

Inputs are the recorded traffic and the cost of each size: measured, or estimated by kiln.specialize.cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kiln.config import Target, read_target
from kiln.config.boxes import Box
from kiln.config.dims import Dim, Segment
from kiln.config.records import read
from kiln.config.slice_records import EdgesConfig
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.specialize.auto import BucketConstraints, BucketCost, ChosenBuckets, Interval, choose, table_text
from kiln.specialize.traffic import Range, Traffic, read_costs, read_traffic
from kiln.stages.model import EdgesStage

MOST = 4  # buckets of a dimension without `max_buckets`
CODE_BYTES = 2048  # typical code size of one operator's kernels in one bucket, for `code_budget`
SAMPLES = 5  # sizes of a dimension at which the cost is estimated; 3 where several are chosen together


def run(args: EdgesStage) -> None:
    """Write buckets_auto.json, and print the table of the selection."""
    config = read(EdgesConfig, args.config)
    target = read_target(args.target) if args.target else None
    try:
        content, text = edges(config, args.source, target)
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    write_json(args.out, content)
    print(text)


def edges(config: EdgesConfig, source: Path, target: Target | None = None) -> tuple[dict[str, Any], str]:
    """The content of buckets_auto.json, and a table to print.

    {"format": 1, "buckets": {dim: [{"pad": n} | {"exact": n} | {"range": [a, b]}]}, "expected_ns": {dim:
    {"chosen", "open", "one_fewer", "one_more"}}}. "expected_ns" holds mean nanoseconds of a call; "open" is
    the mean with the dynamic-shape function alone. Dimensions with a common traffic file are chosen together.
    Raises KilnError for an unusable traffic or cost file.
    """
    dims = config.dims
    groups: dict[str, list[str]] = {}
    for name, dim in dims.items():
        if dim.auto and dim.traffic is not None:
            groups.setdefault(dim.traffic, []).append(name)
    buckets: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    texts = []
    for path, names in groups.items():
        ranges = {name: Range(dim.min, dim.max, dim.multiple) for name, dim in dims.items()}
        _check_exists(
            path, f"dims.{names[0]}.traffic", "kiln traffic MODEL FILE.csv … writes it from recorded runs"
        )
        traffic = read_traffic(path, ranges)
        for name in names:
            if name not in traffic.dims:
                raise KilnError(f"{path}:1: no column '{name}', which dims.{name} reads its sizes from")
        chosen, text = _selection(config, source, target, traffic, names)
        for name in names:
            buckets[name] = [_bucket(dims[name], interval) for interval in chosen.buckets[name]]
            fewer, more = chosen.fewer[name], chosen.more[name]
            expected[name] = {
                "chosen": chosen.cost,
                "open": chosen.open,
                "one_fewer": fewer,
                "one_more": more,
            }
        texts.append(text)
    return {"format": 1, "buckets": buckets, "expected_ns": expected}, "\n".join(texts)


def _check_exists(path: str, key: str, remedy: str) -> None:
    """Raise KilnError, with its `remedy`, if the file `path` that the model's YAML names is missing."""
    if not Path(path).exists():
        raise KilnError(f"{path}: no such file, which {key} names; {remedy}")


def _bucket(dim: Dim, interval: Interval) -> dict[str, Any]:
    """A chosen bucket in the form in which the model's YAML lists it."""
    if interval.kind == "pad" and dim.auto_assume:
        return {"pad": {"to": interval.last, "assume": dim.auto_assume}}
    return dict(interval.bucket)


def _selection(
    config: EdgesConfig, source: Path, target: Target | None, traffic: Traffic, names: list[str]
) -> tuple[ChosenBuckets, str]:
    """The selection for the dimensions `names`, which are chosen together, and its table."""
    dims = config.dims
    # Dimensions that are not chosen here are costed at their most frequent size, or, without traffic, at
    # their least size.
    others = {name: dim.min for name, dim in dims.items() if name not in names}
    for name in set(others) & set(traffic.dims):
        counts = traffic.of(name)
        others[name] = max(counts, key=lambda size: counts[size])
    projected = _projected(traffic, names)
    cost, code = _cost(config, source, target, projected, names, others)
    constraints = {name: _constraint(name, dims[name], code) for name in names}
    chosen = choose(projected, constraints, cost, others)
    return chosen, table_text(projected, chosen)


def _projected(traffic: Traffic, names: list[str]) -> Traffic:
    """The traffic restricted to the dimensions `names`; counts of rows that become equal are added."""
    axes = [traffic.dims.index(name) for name in names]
    rows: dict[tuple[int, ...], int] = {}
    for sizes, count in traffic.rows.items():
        projected = tuple(sizes[axis] for axis in axes)
        rows[projected] = rows.get(projected, 0) + count
    return Traffic(tuple(names), dict(sorted(rows.items())), traffic.missed)


def _constraint(name: str, dim: Dim, code_bytes: int | None) -> BucketConstraints:
    """The constraints on the buckets of one dimension; `code_bytes`: bytes of code of one bucket, if known.

    Raises KilnError for a `code_budget` below the bytes of one bucket.
    """
    most = dim.max_buckets or MOST
    if dim.code_budget is not None and code_bytes:
        affordable = dim.code_budget // code_bytes
        if not affordable:
            raise KilnError(
                f"dims.{name}.code_budget: {dim.code_budget} bytes, one bucket needs about {code_bytes}: "
                "allow more, or remove the key"
            )
        most = min(most if dim.max_buckets else affordable, affordable)
    kind: Literal["pad", "exact"] = dim.auto_as or "pad"
    # Without a fallback, the buckets must cover the greatest size too.
    top = dim.max if dim.fallback == "error" else None
    return BucketConstraints(most, kind, top, dim.min, dim.multiple)


def _cost(
    config: EdgesConfig,
    source: Path,
    target: Target | None,
    traffic: Traffic,
    names: list[str],
    others: Mapping[str, int],
) -> tuple[BucketCost, int | None]:
    """The cost model in nanoseconds, and the code bytes of one bucket (None without a `code_budget`).

    Measured times (`costs`) are used if there are any; else the model is imported and estimated at samples.
    """
    from kiln.specialize.cost import operators

    dims = config.dims
    measured = {name: path for name in names if (path := dims[name].costs)}
    if measured and len(names) > 1:
        raise KilnError(
            f"dims.{next(iter(measured))}.costs: measured times are for one dimension, but the buckets of "
            f"{', '.join(names)} are chosen together: remove the key"
        )
    greatest = {name: max(traffic.of(name)) for name in names}
    code_bytes = None
    if any(dims[name].code_budget is not None for name in names):
        code_bytes = operators(_imported(config, source, {**others, **greatest})) * CODE_BYTES
    if measured:
        return _measured_cost(names[0], measured[names[0]]), code_bytes
    return _estimated_cost(config, source, target, traffic, names, others), code_bytes


def _measured_cost(name: str, path: str) -> BucketCost:
    """The cost model of dimension `name`: nanoseconds that were measured at some sizes, from a file."""
    from kiln.specialize.cost import Costs, Fit

    _check_exists(path, f"dims.{name}.costs", "kiln tune MODEL --costs FILE measures it")
    times = read_costs(path, name)
    grid = {name: list(times)}
    exact_times = Fit(grid, {(size,): time for size, (time, _) in times.items()})
    dynamic_times: dict[tuple[int, ...], float] = {
        (size,): time for size, (_, time) in times.items() if time is not None
    }
    return Costs(exact_times, None, Fit(grid, dynamic_times) if dynamic_times else None)


def _estimated_cost(
    config: EdgesConfig,
    source: Path,
    target: Target | None,
    traffic: Traffic,
    names: list[str],
    others: Mapping[str, int],
) -> BucketCost:
    """The cost model in nanoseconds, interpolated between estimates of the model imported at a few sizes."""
    from kiln.specialize.cost import (
        GENERIC,
        Costs,
        MachineFacts,
        interpolated,
        operator_cost,
        padding_cost,
    )

    dims = config.dims
    machine = GENERIC if target is None else MachineFacts.of(target)
    modules: dict[tuple[int, ...], Any] = {}

    def module(sizes: Mapping[str, int]) -> Any:
        key = tuple(sizes[name] for name in names)
        if key not in modules:
            modules[key] = _imported(config, source, {**others, **sizes})
        return modules[key]

    count = SAMPLES if len(names) == 1 else 3
    samples = {name: _samples(list(traffic.of(name)), dims[name], count) for name in names}
    exact = interpolated(samples, lambda sizes: operator_cost(module(sizes), machine) * 1e9)
    padding = interpolated(samples, lambda sizes: padding_cost(module(sizes), machine) * 1e9)
    return Costs(exact, padding)


def _samples(sizes: list[int], dim: Dim, number: int) -> list[int]:
    """About `number` sample sizes in geometric progression, rounded to the dimension's multiple.

    They range from the least recorded size to the greatest one (without a fallback: to the dimension's max).
    """
    low, high = sizes[0], dim.max if dim.fallback == "error" else sizes[-1]
    step = dim.multiple
    samples = {low, high}
    for index in range(1, number - 1):
        size = low * (high / low) ** (index / (number - 1))
        samples.add(min(max(round(size / step) * step, low), high))
    return sorted(samples)


def _imported(config: EdgesConfig, source: Path, sizes: Mapping[str, int]) -> Any:
    """The model as a Relax module with every dimension fixed to its size in `sizes`."""
    from kiln.frontend import options
    from kiln.frontend.importer import import_model

    segments = {
        name: Segment(strategy="exact", min=n, max=n, multiple=config.dims[name].multiple, size=n)
        for name, n in sizes.items()
    }
    return import_model(source, options.from_config(config.import_config, Box(name="exact", dims=segments)))[
        0
    ]
