"""plan: step order, arena offsets and the layout of the parameters."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import numpy as safetensors

from kiln.config import Target
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.plan.lifetimes import lifetimes, lower_bound, root_of
from kiln.plan.order import reorder
from kiln.plan.params import lay_out
from kiln.plan.place import place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", dest="source", type=Path, required=True, help="folder of the lower stage")
    parser.add_argument("--target", type=Path, required=True, help="target.json")
    parser.add_argument("--config", type=Path, required=True, help="slice of the model's configuration")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    lowered = read_json(args.source / "steps.json")
    config = read_json(args.config)
    target = Target.model_validate(read_json(args.target))
    values = safetensors.load((args.source / "params.safetensors").read_bytes())
    plan, payload = make_plan(lowered, values, config, target)
    module = (args.source / "module.json").read_bytes()
    plan["model_hash"] = hashlib.sha256(
        json.dumps(plan, sort_keys=True).encode() + b"\0" + module + b"\0" + payload
    ).hexdigest()
    with atomic_dir(args.out) as folder:
        write_json(folder / "plan.json", plan)
        atomic_write(folder / "params.raw", payload)


def make_plan(
    lowered: Mapping[str, Any],
    values: Mapping[str, npt.NDArray[Any]],
    config: Mapping[str, Any],
    target: Target,
) -> tuple[dict[str, Any], bytes]:
    """plan.json's content, without its hash, and the bytes of the parameters."""
    tensors = {tensor["name"]: tensor for tensor in lowered["tensors"]}
    placed = {root_of(tensors, name) for name in [*lowered["inputs"], *lowered["outputs"], *values]}
    steps = reorder(tensors, lowered["steps"], placed)
    stored, parameter_offsets, payload = lay_out(tensors, steps, values)
    alive = lifetimes(tensors, steps, placed)
    offsets, arena = place(alive) if alive else ({}, 0)
    offsets |= {heir: offsets[item.name] for item in alive for heir in item.shared}

    inputs = {root_of(tensors, name): index for index, name in enumerate(lowered["inputs"])}
    outputs = {root_of(tensors, name): index for index, name in enumerate(lowered["outputs"])}

    def where(name: str) -> dict[str, Any]:
        root = root_of(tensors, name)
        size = tensors[root]["bytes"]
        if root in inputs:
            return {"at": "input", "index": inputs[root], "offset": 0, "bytes": size}
        if root in outputs:
            return {"at": "output", "index": outputs[root], "offset": 0, "bytes": size}
        if root in parameter_offsets:
            return {"at": "params", "offset": parameter_offsets[root], "bytes": size}
        return {"at": "arena", "offset": offsets[root], "bytes": size}

    interface = lowered["interface"]
    params = config.get("params") or {}
    storage = params.get("storage") or target.params_storage
    section = params.get("section") or ".kiln_params"
    bucket = {
        "name": "static",
        "dims": {dim["name"]: dim["min"] for dim in interface.get("dims", [])},
        "arena_bytes": arena,
        "lower_bound_bytes": lower_bound(alive, len(steps)),
        "steps": [
            {
                "kernel": step["kernel"],
                "extent": step["extent"],
                "args": [where(name) for name in step["args"]],
                "label": step["label"],
                "attrs": step["attrs"],
                "macs": step["macs"],
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
    plan = {
        "format": 1,
        "name": config["name"],
        "target": target.name,
        "threads": lowered["threads"],
        "inputs": [_with_bytes(port) for port in interface["inputs"]],
        "outputs": [_with_bytes(port) for port in interface["outputs"]],
        "dims": interface.get("dims", []),
        "params": {
            "bytes": len(payload),
            "align": 64,
            "storage": storage,
            "section": section if storage == "section" else None,
            "tensors": stored,
        },
        "kernels": lowered["kernels"],
        "buckets": [bucket],
    }
    return plan, payload


def _with_bytes(port: Mapping[str, Any]) -> dict[str, Any]:
    dtype = "uint8" if port["dtype"] == "bool" else port["dtype"]
    size = int(np.prod(port["shape"], dtype=np.int64)) * np.dtype(dtype).itemsize
    return {**port, "bytes": size}
