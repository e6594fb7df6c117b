"""The plan of one bucket: the order of steps and the offset of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from kiln.plan.lifetimes import lifetimes, lower_bound, root_of
from kiln.plan.order import reorder
from kiln.plan.params import ParameterStore
from kiln.plan.place import place
from kiln.plan.transforms import origin


def plan_bucket(
    lowered: Mapping[str, Any], values: Mapping[str, npt.NDArray[Any]], parameters: ParameterStore
) -> dict[str, Any]:
    """Plan one lowered function: arena, steps and tensors as in plan.json.

    Adds the function's parameters, whose content is in `values`, to `parameters`. Offsets and sizes in bytes
    are for the greatest sizes of the bucket.
    """
    tensors = {tensor["name"]: tensor for tensor in lowered["tensors"]}
    # A tensor that an input is compared with is a parameter, but not an argument of any step.
    read = [name for name in values if name in tensors]
    placed = {root_of(tensors, name) for name in [*lowered["inputs"], *lowered["outputs"], *read]}
    steps = reorder(tensors, lowered["steps"], placed)
    parameter_offsets = parameters.place(tensors, steps, values, lambda name: origin(lowered, name))
    alive = lifetimes(tensors, steps, placed)
    offsets, arena = place(alive) if alive else ({}, 0)
    offsets |= {heir: offsets[item.name] for item in alive for heir in item.shared}

    inputs = {root_of(tensors, name): index for index, name in enumerate(lowered["inputs"])}
    outputs = {root_of(tensors, name): index for index, name in enumerate(lowered["outputs"])}

    def where(argument: Any) -> dict[str, Any]:
        """The entry of a step's argument in plan.json: a tensor's place in memory, or a size's expression."""
        if not isinstance(argument, str):
            return {"at": "dim", "expr": argument["dim"]}
        root = root_of(tensors, argument)
        size = tensors[root]["bytes"]
        if root in inputs:
            return {"at": "input", "index": inputs[root], "offset": 0, "bytes": size}
        if root in outputs:
            return {"at": "output", "index": outputs[root], "offset": 0, "bytes": size}
        if root in parameter_offsets:
            return {"at": "params", "offset": parameter_offsets[root], "bytes": size}
        return {"at": "arena", "offset": offsets[root], "bytes": size}

    return {
        "arena_bytes": arena,
        "lower_bound_bytes": lower_bound(alive, len(steps)),
        "steps": [
            {
                "kernel": step["kernel"],
                "extent": step["extent"],
                "args": [where(argument) for argument in step["args"]],
                "label": step["label"],
                "attrs": step["attrs"],
                "macs": step["macs"],
                **{key: step[key] for key in ("launch", "check") if key in step},
            }
            for step in steps
        ],
        "tensors": [
            {
                "name": item.name,
                "offset": offsets[item.name],
                "bytes": tensors[item.name]["bytes"],
                "first": item.first,
                "last": item.last,
                "kind": item.kind,
                "shared": list(item.shared),
            }
            for item in sorted(alive, key=lambda item: (item.first, item.name))
        ],
    }
