"""Scan: unrolled, where plan_loops.py does not make it a loop of the plan.

The tensors of operator set 8 have a batch axis before the axis of the steps; their Scans are always unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.extents import shape_of
from kiln.frontend.onnx import plan_loops
from kiln.frontend.onnx.body import INNER_OPSET


def scan(control: Any, nodes: int, most: int) -> None:
    """Convert the Scan of `control`, whose body has `nodes` nodes; at most `most` iterations in opset 8.

    Raises ValueError for sizes that must be known before the model runs and are not.
    """
    node, host = control.node, control.host
    count = int(control.attributes["num_scan_inputs"])
    first = len(node.input) - count
    sequences = list(node.input[first:])
    if host.opset < 9 and host.opset != INNER_OPSET:
        _scan_of_opset_8(control, list(node.input[1:first]), sequences, most)
        return
    axes = control.list_of("scan_input_axes", count)
    sizes = [shape_of(host._tensor(name))[axis] for name, axis in zip(sequences, axes, strict=True)]
    length = plan_loops.scan(control, sizes, nodes)
    if length is None:
        return
    backwards = control.list_of("scan_input_directions", count)
    reads = list(zip(sequences, axes, backwards, strict=True))
    states, rows = _unroll(control, control.where, list(node.input[:first]), reads, length)
    for name, state in zip(node.output, states, strict=False):
        if name:
            control.alias(name, state)
    output_axes, reverse = (
        control.list_of(key, len(rows)) for key in ("scan_output_axes", "scan_output_directions")
    )
    for index, name in enumerate(node.output[len(states) :]):
        if name:
            row_names = rows[index][::-1] if reverse[index] else rows[index]
            control.bind(name, control.stacked(row_names, output_axes[index], name))


def _unroll(
    control: Any, where: str, states: list[str], reads: Sequence[tuple[str, int, int]], steps: int
) -> tuple[list[str], list[list[str]]]:
    """The states after `steps` iterations, and for each scan output the rows of all iterations.

    where: the prefix of new tensors' names. reads: each scan input, its axis, and whether it is read
    backwards.
    """
    body = control.attributes["body"]
    names = [value.name for value in body.input]
    rows: list[list[str]] = [[] for _ in control.node.output[len(states) :]]
    for step in range(steps):
        inputs = [
            control.row(name, axis, steps - 1 - step if back else step, f"{where}/{step}/row{index}")
            for index, (name, axis, back) in enumerate(reads)
        ]
        bound = dict(zip(names, [*states, *inputs], strict=True))
        outputs = control.inline(body, f"{where}/{step}/", bound)
        states = outputs[: len(states)]
        for row_names, row in zip(rows, outputs[len(states) :], strict=True):
            row_names.append(row)
    return states, rows


def _scan_of_opset_8(control: Any, states: list[str], inputs: list[str], most: int) -> None:
    """Convert a Scan of opset 8, for each element of the batch; at most `most` iterations in all.

    Raises ValueError for an input `sequence_lens`, for dynamic sizes, and for too many iterations.
    """
    node, host = control.node, control.host
    if node.input[0]:
        raise ValueError(
            f"its input 'sequence_lens' ('{node.input[0]}') of opset 8 is not supported, allowed: left out; "
            "export the model with opset 9 or later"
        )
    sizes = {tuple(map(str, shape_of(host._tensor(name))[:2])) for name in inputs}
    batch, steps = shape_of(host._tensor(inputs[0]))[:2]
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
    backwards = control.list_of("directions", len(inputs))
    finals: list[list[str]] = [[] for _ in node.output]
    for image in range(batch):
        where = f"{control.where}/{image}"
        carried = [control.row(name, 0, image, f"{where}/state{index}") for index, name in enumerate(states)]
        sequences = [
            control.row(name, 0, image, f"{where}/input{index}") for index, name in enumerate(inputs)
        ]
        reads = [(name, 0, back) for name, back in zip(sequences, backwards, strict=True)]
        carried, rows = _unroll(control, where, carried, reads, steps)
        for index, name in enumerate(carried):
            finals[index].append(name)
        for index, names in enumerate(rows):
            name = f"{where}/output{index}"
            finals[len(states) + index].append(control.bind(name, control.stacked(names, 0, name)))
    for name, names in zip(node.output, finals, strict=True):
        if name:
            control.bind(name, control.stacked(names, 0, name))
