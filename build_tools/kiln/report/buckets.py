"""Costs of each bucket of a model: arena, steps, and the code and parameters it uses, shared or its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def plan_rows(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row of figures from plan.json for each bucket.

    `params_bytes` are the bytes of all parameters that the bucket reads, also those that other buckets read.
    """
    names = [bucket["name"] for bucket in plan["buckets"]]
    rows = []
    for bucket in plan["buckets"]:
        when = bucket.get("when")
        rows.append(
            {
                **{key: bucket[key] for key in ("name", "dims", "arena_bytes", "lower_bound_bytes")},
                "strategy": bucket.get("strategy", "exact"),
                "case_of": names[when["bucket"]] if when else None,
                "steps": len(bucket["steps"]),
                "params_bytes": _params_bytes(bucket),
            }
        )
    return rows


def code_rows(plan: Mapping[str, Any], kernels: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each bucket the bytes of the kernels that it calls, and of the kernels that only it calls.

    `kernels`: linked bytes by symbol. The program contains each kernel once, so the sum over buckets may
    exceed the size of the code.
    """
    called = [{step["kernel"] for step in bucket["steps"]} for bucket in plan["buckets"]]
    users = Counter(symbol for symbols in called for symbol in symbols)
    return [
        {
            "name": bucket["name"],
            "code_bytes": sum(kernels.get(symbol, 0) for symbol in symbols),
            "own_code_bytes": sum(kernels.get(symbol, 0) for symbol in symbols if users[symbol] == 1),
        }
        for bucket, symbols in zip(plan["buckets"], called, strict=True)
    ]


def has_buckets(rows: list[Mapping[str, Any]]) -> bool:
    """Whether the model has more than one bucket, or one bucket with a range of sizes."""
    return len(rows) > 1 or any(_span(size)[0] != _span(size)[1] for r in rows for size in r["dims"].values())


def sizes_text(dims: Mapping[str, Any]) -> str:
    """The sizes of a bucket of plan.json as text: `batch 1, seq 17…64`."""
    shown = []
    for name, size in dims.items():
        low, high = _span(size)
        multiple = size.get("multiple", 1) if isinstance(size, Mapping) else 1
        step = f" by {multiple}" if multiple > 1 and low < high else ""
        shown.append(f"{name} {low}" if low == high else f"{name} {low}…{high}{step}")
    return ", ".join(shown)


def _span(size: Any) -> tuple[int, int]:
    return (size["min"], size["max"]) if isinstance(size, Mapping) else (size, size)


def _params_bytes(bucket: Mapping[str, Any]) -> int:
    read = {
        (arg["offset"], arg.get("bytes") or 0)
        for step in bucket["steps"]
        for arg in step["args"]
        if arg["at"] == "params"
    }
    return sum(size for _, size in read)
