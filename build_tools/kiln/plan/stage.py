"""plan: the order of steps, arena offsets and layout of parameters of every bucket."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from kiln.stages.target import PlanStage

Values = Mapping[str, npt.NDArray[Any]]


def _compared(_name: str) -> dict[str, Any]:
    """Entries in plan.json of a constant that an input is compared with, for `ParameterStore.add`."""
    return {"made": "for a special case", "bytes_before": 0}


@dataclass(frozen=True)
class Lowered:
    """Result of the lower stage for one bucket: content of steps.json, parameters of all special cases."""

    steps: Mapping[str, Any]
    values: Values


def run(args: PlanStage) -> None:
    """Read the results of the lower stage; write plan.json and params.raw into the folder args.out."""
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
    """The content of plan.json, without `model_hash`, and the bytes of the parameters.

    `buckets`: entries of buckets.json. `lowered`: one result of the lower stage for each, in order.
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
        "cpu": {"arch": target.arch, "variants": lowered[0].steps["variants"]},
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
    """Plans of the functions of one bucket: the general function, then one for each special case.

    `first`: index of the general function in the plan's buckets.
    """
    cases = lowered.steps["cases"]
    strategies = {part["strategy"] for part in bucket["dims"].values()}
    dims = {name: {k: p[k] for k in ("min", "max", "multiple")} for name, p in bucket["dims"].items()}
    common = {
        "strategy": next((s for s in ("dynamic", "range", "pad") if s in strategies), "exact"),
        "dims": dims,
    }
    planned = []
    for case in cases:
        prefix = case["params"]
        values = {n.removeprefix(prefix): v for n, v in lowered.values.items() if n.startswith(prefix)}
        when = None
        if case["when"]:
            conditions = [_condition(one, values, parameters) for one in case["when"]["all"]]
            when = {"bucket": first, "all": conditions}
        name = bucket["name"] + (f"_{case['name']}" if case["name"] else "")
        planned.append({"name": name, **common, "when": when, **plan_bucket(case, values, parameters)})
    # Which function runs is known only when the data is: the arena must be large enough for each.
    planned[0]["arena_bytes"] = max(entry["arena_bytes"] for entry in planned)
    return planned


def _condition(condition: Mapping[str, Any], values: Values, parameters: ParameterStore) -> dict[str, Any]:
    """A condition of a special case, with the offset of the constant that an input is compared with."""
    value = condition.get("value")
    if not isinstance(value, dict):
        return dict(condition)
    constant = values[value["param"]]
    offset = parameters.add(value["param"], constant, _compared)
    return {**condition, "value": {"offset": offset, "bytes": constant.nbytes}}


def _kernels(lowered: Sequence[Lowered]) -> list[dict[str, Any]]:
    """The kernels of all buckets, each once: equal kernels have the same symbol."""
    by_symbol: dict[str, dict[str, Any]] = {}
    for bucket in lowered:
        for case in bucket.steps["cases"]:
            for kernel in case["kernels"]:
                by_symbol.setdefault(kernel["symbol"], kernel)
    return list(by_symbol.values())


def _with_bytes(port: Mapping[str, Any], dims: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """`port` with the greatest size of its tensor as `bytes`; `dims`: range of each dynamic dimension."""
    dtype = "uint8" if port["dtype"] == "bool" else port["dtype"]
    elements = 1
    for size in port["shape"]:
        elements *= sizes.bounds(size, dims)[1]
    return {**port, "bytes": elements * np.dtype(dtype).itemsize}
