"""plan: step order, arena offsets and the layout of the parameters, of every bucket."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.config import Target, sizes
from kiln.config.buckets import STATIC
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.params import tensors
from kiln.plan.bucket import plan_bucket
from kiln.plan.params import ParameterStore
from kiln.plan.transforms import transforms

Values = Mapping[str, npt.NDArray[Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in", dest="sources", type=Path, action="append", required=True,
        help="folder of the lower stage; once for each bucket, in the order of buckets.json",
    )  # fmt: skip
    parser.add_argument("--interface", type=Path, required=True, help="interface.json")
    parser.add_argument("--buckets", type=Path, help="buckets.json; a model without dimensions needs none")
    parser.add_argument("--target", type=Path, required=True, help="target.json")
    parser.add_argument("--config", type=Path, required=True, help="slice of the model's configuration")
    parser.add_argument("--out", type=Path, required=True)


def _compared(_name: str) -> dict[str, Any]:
    """What plan.json says of a tensor that an input is compared with."""
    return {"made": "for a special case", "bytes_before": 0}


@dataclass(frozen=True)
class Lowered:
    """What the lower stage made of one bucket: steps.json, and the parameters of each of its cases."""

    steps: Mapping[str, Any]
    values: Values


def run(args: argparse.Namespace) -> None:
    config = read_json(args.config)
    target = Target.model_validate(read_json(args.target))
    buckets = read_json(args.buckets)["buckets"] if args.buckets else [{"name": STATIC, "dims": {}}]
    lowered = [
        Lowered(
            read_json(folder / "steps.json"),
            tensors.load((folder / "params.safetensors").read_bytes()),
        )
        for folder in args.sources
    ]
    plan, payload = make_plan(lowered, buckets, read_json(args.interface), config, target)
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode() + b"\0")
    for folder in args.sources:
        digest.update((folder / "module.json").read_bytes() + b"\0")
    digest.update(payload)
    plan["model_hash"] = digest.hexdigest()
    with atomic_dir(args.out) as folder:
        write_json(folder / "plan.json", plan)
        atomic_write(folder / "params.raw", payload)


def make_plan(
    lowered: Sequence[Lowered],
    buckets: Sequence[Mapping[str, Any]],
    interface: Mapping[str, Any],
    config: Mapping[str, Any],
    target: Target,
) -> tuple[dict[str, Any], bytes]:
    """plan.json's content, without its hash, and the bytes of the parameters.

    `lowered` in the order of `buckets`: the entries of buckets.json.
    """
    parameters = ParameterStore()
    planned: list[dict[str, Any]] = []
    for bucket, one in zip(buckets, lowered, strict=True):
        planned += _cases(bucket, one, parameters, len(planned))
    params = config.get("params") or {}
    storage = params.get("storage") or target.params_storage
    section = params.get("section") or ".kiln_params"
    dims = {dim["name"]: (dim["min"], dim["max"]) for dim in interface.get("dims", [])}
    payload = parameters.content()
    plan = {
        "format": 2,
        "name": config["name"],
        "target": target.name,
        "threads": lowered[0].steps["threads"],
        "cpu": {"arch": target.arch, "features": lowered[0].steps["cpu_features"]},
        "inputs": [_with_bytes(port, dims) for port in interface["inputs"]],
        "outputs": [_with_bytes(port, dims) for port in interface["outputs"]],
        "dims": interface.get("dims", []),
        "params": {
            "bytes": len(payload),
            "align": 64,
            "storage": storage,
            "section": section if storage == "section" else None,
            "tensors": parameters.stored,
            "lifted": transforms([c for one in lowered for c in one.steps["cases"]], parameters.stored),
        },
        "kernels": _kernels(lowered),
        "buckets": planned,
        **({"cuda": target.cuda.model_dump()} if target.cuda is not None else {}),
    }
    return plan, payload


def _cases(
    bucket: Mapping[str, Any], lowered: Lowered, parameters: ParameterStore, first: int
) -> list[dict[str, Any]]:
    """The functions of one bucket: the general one, then those for special contents of an input."""
    cases = lowered.steps["cases"]
    strategies = {part["strategy"] for part in bucket["dims"].values()}
    dims = {name: {k: p[k] for k in ("min", "max", "multiple")} for name, p in bucket["dims"].items()}
    common = {
        "strategy": next((s for s in ("dynamic", "range", "pad") if s in strategies), "exact"),
        "dims": dims,
    }
    found = []
    for case in cases:
        prefix = case["params"]
        values = {n.removeprefix(prefix): v for n, v in lowered.values.items() if n.startswith(prefix)}
        when = None
        if case["when"]:
            conditions = [_condition(one, values, parameters) for one in case["when"]["all"]]
            when = {"bucket": first, "all": conditions}
        name = bucket["name"] + (f"_{case['name']}" if case["name"] else "")
        found.append({"name": name, **common, "when": when, **plan_bucket(case, values, parameters)})
    # Which of them runs is known only when the data is: the arena must do for each.
    found[0]["arena_bytes"] = max(entry["arena_bytes"] for entry in found)
    return found


def _condition(condition: Mapping[str, Any], values: Values, parameters: ParameterStore) -> dict[str, Any]:
    """A condition of a special case, with the place of the tensor that an input is compared with."""
    value = condition.get("value")
    if not isinstance(value, dict):
        return dict(condition)
    constant = values[value["param"]]
    offset = parameters.add(value["param"], constant, _compared)
    return {**condition, "value": {"offset": offset, "bytes": constant.nbytes}}


def _kernels(lowered: Sequence[Lowered]) -> list[dict[str, Any]]:
    """The kernels of all buckets; equal ones have the same symbol."""
    known: dict[str, dict[str, Any]] = {}
    for one in lowered:
        for case in one.steps["cases"]:
            for kernel in case["kernels"]:
                known.setdefault(kernel["symbol"], kernel)
    return list(known.values())


def _with_bytes(port: Mapping[str, Any], dims: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """`port` with its greatest size in bytes."""
    dtype = "uint8" if port["dtype"] == "bool" else port["dtype"]
    elements = 1
    for size in port["shape"]:
        elements *= sizes.bounds(size, dims)[1]
    return {**port, "bytes": elements * np.dtype(dtype).itemsize}
