"""Effect of the build-time transforms of parameters on size: bytes in the graph, and bytes stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.params.formulas import ONCE
from kiln.plan.lifetimes import tensors_of


def origin(case: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Origin of the stored tensor `name` of a function in steps.json.

    {"made": the transform, "bytes_before": bytes of the tensor in the graph, "of": first 16 digits of the
    digest of that tensor}; 0 and no digest for a tensor that lowering made.
    """
    families = {kernel["symbol"]: kernel["family"] for kernel in case["kernels"]}
    stem, _, last = name.rpartition(".")
    source, made = (stem, f"packed for {families[last]}") if last in families else (name, "as it is")
    if last == ONCE:
        source, made = stem, "equal elements once"
    lifted = case["lifted"].get(source)
    if lifted is None:
        return {"made": "while lowering", "bytes_before": 0}
    return {"made": made, "bytes_before": lifted["bytes"], "of": lifted["sha256"][:16]}


def transforms(cases: Sequence[Mapping[str, Any]], stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summary of the transforms for plan.json, from all functions of steps.json and the stored tensors.

    `cases`: functions of all buckets. `stored`: tensors in params.bin, each with its origin. Returns
    lifted_bytes: bytes of the parameters of all functions; distinct_bytes: of these, with equal tensors
    counted once; stored_bytes: after packing, equal tensors once; transforms: by kind of transform, the
    number of tensors and their bytes before and after; several: result of `_several`.
    """
    total = 0
    bytes_of: dict[str, int] = {}
    for case in cases:
        read = {name for step in case["steps"] for name in tensors_of(step)}
        read |= {name.rpartition(".")[0] for name in read}
        for name in read & case["lifted"].keys():
            entry = case["lifted"][name]
            total += entry["bytes"]
            bytes_of[entry["sha256"]] = entry["bytes"]
    kinds: dict[str, dict[str, int]] = {}
    for tensor in stored:
        row = kinds.setdefault(tensor["made"], {"tensors": 0, "bytes_before": 0, "bytes_after": 0})
        row["tensors"] += 1
        row["bytes_before"] += tensor["bytes_before"]
        row["bytes_after"] += tensor["bytes"]
    return {
        "lifted_bytes": total,
        "distinct_bytes": sum(bytes_of.values()),
        "stored_bytes": sum(tensor["bytes"] for tensor in stored),
        "transforms": kinds,
        "several": _several(stored),
    }


def _several(stored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Parameters that are stored in more than one form, over all buckets and kernels; most bytes first."""
    forms: dict[str, list[Mapping[str, Any]]] = {}
    for tensor in stored:
        if "of" in tensor:
            forms.setdefault(tensor["of"], []).append(tensor)
    rows = [
        {
            "name": tensors[0]["name"].partition(".")[0],
            "forms": len(tensors),
            "bytes_before": tensors[0]["bytes_before"],
            "bytes_after": sum(tensor["bytes"] for tensor in tensors),
        }
        for tensors in forms.values()
        if len(tensors) > 1
    ]
    return sorted(rows, key=lambda row: (-row["bytes_after"], row["name"]))
