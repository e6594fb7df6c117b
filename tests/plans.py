"""Plans of which a test gives only the entries that matter to it."""

from __future__ import annotations

from typing import Any

from kiln.plan.schema import Plan, parse_plan


def plan_of(**entries: Any) -> Plan:
    """A plan with these entries of plan.json; its other entries are of a model that computes nothing."""
    port = {"name": "y", "c_name": "y", "dtype": "float32", "shape": [1]}
    whole: dict[str, Any] = {
        "format": 2,
        "name": "m",
        "target": "any",
        "threads": "none",
        "inputs": [],
        "outputs": [port],
        "params": {"bytes": 0, "storage": "embedded"},
        "kernels": [],
        "buckets": [{"steps": []}],
        "model_hash": "0" * 64,
        **entries,
    }
    buckets = [
        {"name": f"bucket{number}", "arena_bytes": 0, **bucket}
        for number, bucket in enumerate(whole["buckets"])
    ]
    kernels = [{"args": [], "parallel": False, **kernel} for kernel in whole["kernels"]]
    return parse_plan({**whole, "kernels": kernels, "buckets": buckets})
