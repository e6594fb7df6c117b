"""Scan of operator set 8, whose tensors have a batch axis before the axis of the steps: unrolled."""

from __future__ import annotations

from typing import Any

from kiln.frontend.onnx.node import extents


def batched_scan(control: Any, most: int) -> None:
    """Convert the Scan of `control`, for each element of the batch; at most `most` iterations in all.

    Raises ValueError for lengths of sequences, for sizes that are not known, and for too many iterations.
    """
    node, body, host = control.node, control.attributes["body"], control.host
    inputs = int(control.attributes["num_scan_inputs"])
    if node.input[0]:
        raise ValueError(
            f"its input 'sequence_lens' ('{node.input[0]}') of opset 8 is not supported, allowed: left out; "
            "export the model with opset 9 or later"
        )
    states, given = (
        list(node.input[1 : len(node.input) - inputs]),
        list(node.input[len(node.input) - inputs :]),
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
    backwards = control.list_of("directions", inputs)
    names = [value.name for value in body.input]
    finals: list[list[str]] = [[] for _ in node.output]
    for image in range(batch):
        where = f"{control.where}/{image}"
        carried = [control.row(name, 0, image, f"{where}/state{at}") for at, name in enumerate(states)]
        sequences = [control.row(name, 0, image, f"{where}/input{at}") for at, name in enumerate(given)]
        rows: list[list[str]] = [[] for _ in node.output[len(states) :]]
        for step in range(steps):
            parts = []
            for index, (name, back) in enumerate(zip(sequences, backwards, strict=True)):
                at = steps - 1 - step if back else step
                parts.append(control.row(name, 0, at, f"{where}/{step}/row{index}"))
            bound = dict(zip(names, [*carried, *parts], strict=True))
            made = control.inline(body, f"{where}/{step}/", bound)
            carried = made[: len(states)]
            for found, row in zip(rows, made[len(states) :], strict=True):
                found.append(row)
        for index, name in enumerate(carried):
            finals[index].append(name)
        for index, each in enumerate(rows):
            name = f"{where}/output{index}"
            finals[len(states) + index].append(control.bind(name, control.stacked(each, 0, name)))
    for name, found in zip(node.output, finals, strict=True):
        if name:
            control.bind(name, control.stacked(found, 0, name))
