"""The data flow of a bucket: its steps, and an edge from each step to the steps that read its result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.config import sizes
from kiln.lower.schema import KernelArgument, KernelRecord
from kiln.plan.schema import ExpressionArgument, Plan, PlannedBucket, PortArgument, StepArgument
from kiln.report.origins import StepOrigin

# What steps exchange: an input or output by its number, a tensor in the arena by its offset and first step.
_Place = tuple[str, int, int]


def graph(
    plan: Plan,
    bucket: PlannedBucket,
    rows: Sequence[Mapping[str, Any]],
    origins: Mapping[int, StepOrigin],
    times: Mapping[int, Mapping[str, Any]],
    errors: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Nodes and edges of a bucket as JSON: inputs, steps and outputs.

    `rows`: the rows of the step table. `times`: entries of profile.json by step. `errors`: entries of
    compare.json by the name of a tensor of the file.
    """
    edges = _edges(plan, bucket)
    steps = [
        {
            "id": f"s{index}",
            "step": index,
            "label": row["label"],
            "kernel": row["symbol"],
            "ops": [op["name"] for op in row["ops"]],
            "detail": row["detail"],
            "reads": [_shown(location) for location in row["places"] if not location["written"]],
            "writes": [_shown(location) for location in row["places"] if location["written"]],
            "arena": sum(p["bytes"] or 0 for p in row["places"] if p["written"] and p["at"] == "arena"),
            "params": row["params"],
            "flops": row["flops"],
            "code": row["code"],
            "nodes": list(origins[index].nodes) if index in origins else [],
            "tensor": origins[index].tensor if index in origins else "",
            "time": times[index]["time"] if index in times else None,
            "share": times[index]["share"] if index in times else None,
            "error": _error(origins.get(index), errors),
        }
        for index, row in enumerate(rows)
    ]
    ports = [
        {"id": f"{side}{index}", "port": side, "label": port.name,
         "shape": f"{port.dtype} {' × '.join(map(sizes.show, port.shape)) or 'scalar'}"}
        for side, ports in (("input", plan.inputs), ("output", plan.outputs))
        for index, port in enumerate(ports)
    ]  # fmt: skip
    figures = {"arena": bucket.all_arena_bytes, "lower_bound": bucket.lower_bound_bytes}
    return {"name": bucket.name, **figures, "nodes": [*ports, *steps], "edges": edges}


def _shown(location: Mapping[str, Any]) -> dict[str, Any]:
    return {key: location[key] for key in ("where", "bytes", "dtype", "shape")}


def _error(origin: StepOrigin | None, errors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The entry of compare.json for the tensor that a step writes."""
    row = errors.get(origin.tensor) if origin is not None else None
    if row is None:
        return None
    return {key: row[key] for key in ("tensor", "error", "limit", "snr_db", "passed")}


def _edges(plan: Plan, bucket: PlannedBucket) -> list[list[str]]:
    """Pairs [from, to] of ids, each once: inputs → steps, steps → steps, steps → outputs."""
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    writers: dict[_Place, list[str]] = defaultdict(list)
    for index in range(len(plan.inputs)):
        writers["input", index, 0] = [f"input{index}"]
    edges: dict[tuple[str, str], None] = {}
    for index, step in enumerate(bucket.steps):
        read, written = _exchanged(bucket, index, kernels[step.kernel])
        for location in read:
            edges |= {(writer, f"s{index}"): None for writer in writers[location] if writer != f"s{index}"}
        for location in written:
            # A step that changes a tensor in place replaces its writer; pieces of a tensor have many writers.
            writers_before = [] if location in read else writers[location]
            writers[location] = [*writers_before, f"s{index}"]
    for index in range(len(plan.outputs)):
        edges |= {(writer, f"output{index}"): None for writer in writers["output", index, 0]}
    return [list(edge) for edge in edges]


def _exchanged(bucket: PlannedBucket, index: int, kernel: KernelRecord) -> tuple[list[_Place], list[_Place]]:
    """The memory locations that step `index` reads, and the locations that it writes."""
    read: list[_Place] = []
    written: list[_Place] = []
    pairs: list[tuple[StepArgument, KernelArgument]] = list(
        zip(bucket.steps[index].args, kernel.args, strict=True)
    )
    for argument, declared in pairs:
        location = _place(bucket, index, argument)
        if location is not None:
            (read if declared.const else written).append(location)
    return read, written


def _place(bucket: PlannedBucket, index: int, argument: StepArgument) -> _Place | None:
    """The place of an argument; None for parameters, sizes and workspaces."""
    if isinstance(argument, ExpressionArgument) or argument.at == "params":
        return None
    if isinstance(argument, PortArgument):
        return argument.at, argument.index, 0
    for tensor in bucket.tensors:
        alive = tensor.first <= index <= tensor.last
        alive = alive and (argument.at != "arena" or tensor.region == argument.region)
        if alive and tensor.offset <= argument.offset < tensor.offset + max(tensor.bytes, 1):
            return None if tensor.kind == "workspace" else ("arena", bucket.flat_offset(tensor), tensor.first)
    return "arena", argument.offset, -1
