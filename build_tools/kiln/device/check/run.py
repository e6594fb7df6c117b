"""Run a bundle on one image, or on its first golden input, and print the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.table import Table

from kiln.arrays import Array
from kiln.config import Target, read_target, sizes
from kiln.config.data import Run
from kiln.config.interface import Interface, PortRecord, Quantisation
from kiln.config.records import read
from kiln.config.slice_records import RunConfig
from kiln.device.bundle import Bundle, open_bundle
from kiln.device.check.execute import BundleProgram, Outcome, execute
from kiln.device.check.runners import Runner, shown_time
from kiln.device.check.runners.remote import chosen_runner
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.golden.cases import check_size, match_sizes
from kiln.plan.schema import read_plan
from kiln.runtime.traffic import TrafficCounts, add_to_file
from kiln.stages.use import DeviceRunStage
from kiln.tables import table_console

_CLASSES = 5  # shown where the model does not say how many


def run(args: DeviceRunStage) -> None:
    """Classify the image and print the best classes; for other models print a summary of the outputs."""
    target = read_target(args.target)
    with chosen_runner(target, args.device, args.bundle.name) as runner:
        show(args, target, runner)


def show(args: DeviceRunStage, target: Target, runner: Runner) -> None:
    """Run the bundle on `runner`, print the result, and write it to `args.out`."""
    bundle = open_bundle(args.bundle)
    config, interface = read(RunConfig, args.config), read_plan(args.plan).interface
    tensors, source, is_image = _inputs(bundle, config, interface, args.image)
    program = bundle.link_program(target, args.work)
    dtypes = [port.dtype for port in interface.outputs]
    outcome = execute(BundleProgram(bundle, program, runner), [tensors], dtypes, timeout=args.timeout)
    shown: dict[str, Any] = {
        "model": bundle.name,
        "target": target.name,
        "input": source,
        "device": dict(runner.identity),
    }
    # Classes are only meaningful for an image, and need labels.
    if is_image and config.labels:
        shown["classes"] = _classes(outcome, config, interface)
        _print_classes(bundle, target, runner, source, shown["classes"], outcome.nanoseconds[0])
    else:
        shown["outputs"] = _summaries(outcome, interface)
        _print_summaries(bundle, target, runner, source, shown["outputs"], outcome.nanoseconds[0])
    if args.traffic:
        dims = sizes_of(interface, tensors)
        traffic = TrafficCounts(tuple(dims))
        names = [port.name for port in interface.inputs]
        traffic.count(tuple(dims.values()), dict(zip(names, tensors, strict=True)))
        add_to_file(args.traffic, traffic)
    if args.out:
        write_json(args.out, shown)


def sizes_of(interface: Interface, tensors: Sequence[Array]) -> dict[str, int]:
    """The sizes of all dimensions, in the model's order, of a run with these inputs."""
    size_of_dim: dict[str, int] = {}
    for port, tensor in zip(interface.inputs, tensors, strict=True):
        match_sizes(port, tensor.shape, size_of_dim)
    return {dim.name: size_of_dim[dim.name] for dim in interface.dims}


def _inputs(
    bundle: Bundle, config: RunConfig, interface: Interface, image: Path | None
) -> tuple[list[Array], str, bool]:
    """One tensor per input, the name of their source, and whether the source is an image.

    Without an image, the inputs are those of the first golden vector.
    """
    how = config.preprocess
    shown = config.run
    if how is None or (image is None and shown is None):
        if image is not None:
            raise KilnError(f"model '{bundle.name}' accepts no image: its configuration has no 'preprocess'")
        first = bundle.vectors()[0]
        return first.inputs, f"golden vector {first.name}", False
    from kiln.sources import fetch
    from kiln.sources.image import load_image, preprocess

    path = image if image is not None else fetch(cast(Run, shown).image)
    index = _named(interface.inputs, how.input, bundle.name)
    port = interface.inputs[index]
    quant = (port.quant.scale, port.quant.zero_point) if port.quant else None
    crop = shown.crop if image is None and shown is not None else None  # that of the model's own image
    tensor = preprocess(load_image(path, crop), how, port.dtype, quant)
    chosen = _sizes_of(tensor, port, interface)
    others = _others(bundle, chosen) if len(interface.inputs) > 1 else []
    tensors = [tensor if i == index else others[i] for i in range(len(interface.inputs))]
    return tensors, str(path), True


def _sizes_of(tensor: Array, port: PortRecord, interface: Interface) -> dict[str, int]:
    """Sizes of the dimensions that follow from an image's tensor. Raises KilnError where it does not fit."""
    size_of_dim: dict[str, int] = {}
    match_sizes(port, tensor.shape, size_of_dim)
    for dim in interface.dims:
        if dim.name in size_of_dim:
            check_size(dim, size_of_dim[dim.name], f"model '{interface.model}': the image, preprocessed")
    is_determined = all(sizes.names(size) <= size_of_dim.keys() for size in port.shape)
    if not is_determined or [sizes.evaluate(size, size_of_dim) for size in port.shape] != list(tensor.shape):
        shape = ", ".join(map(sizes.show, port.shape))
        raise KilnError(
            f"model '{interface.model}': 'preprocess' makes {list(tensor.shape)}, "
            f"input '{port.name}' takes [{shape}]"
        )
    return size_of_dim


def _others(bundle: Bundle, chosen: Mapping[str, int]) -> list[Array]:
    """All inputs of the first golden vector whose dimensions have the sizes `chosen`.

    Raises KilnError where no golden vector has them.
    """
    for vector in bundle.vectors():
        if all(vector.dims.get(name, size) == size for name, size in chosen.items()):
            return vector.inputs
    sizes_text = ", ".join(f"{name} {size}" for name, size in chosen.items())
    raise KilnError(
        f"model '{bundle.name}': no golden vector has {sizes_text}: nothing to give its other inputs"
    )


def _named(ports: Sequence[PortRecord], name: str | None, model: str) -> int:
    """Index of the tensor called `name`, or 0 where `name` is None. Raises KilnError for an unknown name."""
    for index, port in enumerate(ports):
        if name in (None, port.name, port.c_name):
            return index
    names = ", ".join(port.name for port in ports)
    raise KilnError(f"model '{model}': no input or output is called '{name}', there are: {names}")


def _classes(outcome: Outcome, config: RunConfig, interface: Interface) -> list[dict[str, Any]]:
    """The best classes by descending score.

    Scores are reals, after softmax where the configuration has it.
    """
    from kiln.sources.labels import load_labels

    assert config.labels is not None
    labels = load_labels(config.labels)
    shown = config.run
    index = _named(interface.outputs, shown.output if shown else None, config.name)
    scores = real_values(outcome.outputs[0][index], interface.outputs[index].quant).ravel()
    if len(labels) != scores.size:
        raise KilnError(f"model '{config.name}': {len(labels)} labels for {scores.size} scores")
    if shown and shown.softmax:
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    order = np.argsort(-scores, kind="stable")[: shown.top if shown else _CLASSES]
    return [{"class": labels[i], "index": int(i), "score": float(scores[i])} for i in order]


def real_values(tensor: Array, quant: Quantisation | None) -> Array:
    """The dequantised elements of a tensor as float64; without `quant`, the elements themselves."""
    values = tensor.astype(np.float64)
    return (values - quant.zero_point) * quant.scale if quant else values


def _summaries(outcome: Outcome, interface: Interface) -> list[dict[str, Any]]:
    return [
        {
            "name": port.name,
            "dtype": port.dtype,
            "shape": list(tensor.shape),
            "least": float(real_values(tensor, port.quant).min(initial=np.inf)),
            "mean": float(real_values(tensor, port.quant).mean()) if tensor.size else 0.0,
            "greatest": float(real_values(tensor, port.quant).max(initial=-np.inf)),
        }
        for tensor, port in zip(outcome.outputs[0], interface.outputs, strict=True)
    ]


def _title(bundle: Bundle, target: Target, runner: Runner, source: str, nanoseconds: int) -> str:
    took = shown_time(nanoseconds, runner.unit)
    return f"{bundle.name} on {target.name} ({runner.description}): {Path(source).name}, {took}"


def _print_classes(
    bundle: Bundle,
    target: Target,
    runner: Runner,
    source: str,
    classes: list[dict[str, Any]],
    nanoseconds: int,
) -> None:
    print(_title(bundle, target, runner, source, nanoseconds))
    table = Table()
    table.add_column("score", justify="right")
    table.add_column("class")
    for row in classes:
        table.add_row(f"{row['score']:.4f}", row["class"])
    table_console().print(table)


def _print_summaries(
    bundle: Bundle, target: Target, runner: Runner, source: str, rows: list[dict[str, Any]], nanoseconds: int
) -> None:
    print(_title(bundle, target, runner, source, nanoseconds))
    table = Table()
    for name in ("output", "type", "least", "mean", "greatest"):
        table.add_column(name, justify="right" if name in ("least", "mean", "greatest") else "left")
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        table.add_row(
            row["name"], f"{row['dtype']} {shape}", *(f"{row[k]:.5g}" for k in ("least", "mean", "greatest"))
        )
    table_console().print(table)
