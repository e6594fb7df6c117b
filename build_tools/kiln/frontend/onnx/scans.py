"""Scan: unrolled, where plan_loops.py does not make it a loop of the plan.

The tensors of operator set 8 have a batch axis before the axis of the steps; their Scans are always unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.frontend.onnx import plan_loops
from kiln.frontend.onnx.body import INNER_OPSET
from kiln.frontend.onnx.node import extents


def scan(control: Any, nodes: int, most: int) -> None:
    """Convert the Scan of `control`, whose body has `nodes` nodes; at most `most` iterations in opset 8.

    Raises ValueError for what is not known before the model runs.
    """
    node, host = control.node, control.host
    count = int(control.attributes["num_scan_inputs"])
    first = len(node.input) - count
    given = list(node.input[first:])
    if host.opset < 9 and host.opset != INNER_OPSET:
        _batched(control, list(node.input[1:first]), given, most)
        return
    axes = control.list_of("scan_input_axes", count)
    sizes = [extents(host._tensor(name))[axis] for name, axis in zip(given, axes, strict=True)]
    length = plan_loops.scan(control, sizes, nodes)
    if length is None:
        return
    backwards = control.list_of("scan_input_directions", count)
    each = list(zip(given, axes, backwards, strict=True))
    states, rows = _unrolled(control, control.where, list(node.input[:first]), each, length)
    for name, state in zip(node.output, states, strict=False):
        if name:
            control.alias(name, state)
    output_axes, reverse = (
        control.list_of(key, len(rows)) for key in ("scan_output_axes", "scan_output_directions")
    )
    for index, name in enumerate(node.output[len(states) :]):
        if name:
            found = rows[index][::-1] if reverse[index] else rows[index]
            control.bind(name, control.stacked(found, output_axes[index], name))


def _unrolled(
    control: Any, where: str, states: list[str], given: Sequence[tuple[str, int, int]], steps: int
) -> tuple[list[str], list[list[str]]]:
    """The states after `steps` iterations under names of `where`, and by scan output its row of each.

    given: each scan input, its axis, and whether it is read backwards.
    """
    body = control.attributes["body"]
    names = [value.name for value in body.input]
    rows: list[list[str]] = [[] for _ in control.node.output[len(states) :]]
    for step in range(steps):
        parts = [
            control.row(name, axis, steps - 1 - step if back else step, f"{where}/{step}/row{index}")
            for index, (name, axis, back) in enumerate(given)
        ]
        bound = dict(zip(names, [*states, *parts], strict=True))
        made = control.inline(body, f"{where}/{step}/", bound)
        states = made[: len(states)]
        for found, row in zip(rows, made[len(states) :], strict=True):
            found.append(row)
    return states, rows


def _batched(control: Any, states: list[str], given: list[str], most: int) -> None:
    """Convert a Scan of opset 8, for each element of the batch; at most `most` iterations in all.

    Raises ValueError for lengths of sequences, for sizes that are not known, and for too many iterations.
    """
    node, host = control.node, control.host
    if node.input[0]:
        raise ValueError(
            f"its input 'sequence_lens' ('{node.input[0]}') of opset 8 is not supported, allowed: left out; "
            "export the model with opset 9 or later"
        )
    sizes = {tuple(map(str, extents(host._tensor(name))[:2])) for name in given}
    batch, steps = extents(host._tensor(given[0]))[:2]
    if len(sizes) != 1 or not isinstance(batch, int) or not isinstance(steps, int):
        raise ValueError(
            f"its sequences have batches and steps of {sorted(sizes)}: allowed is one fixed pair in opset 8; "
            "export the model with opset 9 or later"
        )
    if batch * steps > most:
        raise ValueError(
            f"it has {batch * steps} iterations, allowed in opset 8: at most {most}; export the model with "
            "opset 9 or later"
        )
    backwards = control.list_of("directions", len(given))
    finals: list[list[str]] = [[] for _ in node.output]
    for image in range(batch):
        where = f"{control.where}/{image}"
        carried = [control.row(name, 0, image, f"{where}/state{at}") for at, name in enumerate(states)]
        sequences = [control.row(name, 0, image, f"{where}/input{at}") for at, name in enumerate(given)]
        each = [(name, 0, back) for name, back in zip(sequences, backwards, strict=True)]
        carried, rows = _unrolled(control, where, carried, each, steps)
        for index, name in enumerate(carried):
            finals[index].append(name)
        for index, found in enumerate(rows):
            name = f"{where}/output{index}"
            finals[len(states) + index].append(control.bind(name, control.stacked(found, 0, name)))
    for name, found in zip(node.output, finals, strict=True):
        if name:
            control.bind(name, control.stacked(found, 0, name))
