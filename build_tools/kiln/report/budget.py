"""Budgets of flash and RAM: whether they are exceeded, by how much, and the largest contributors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.plan.schema import Plan
from kiln.report.measure import operators, peak_step


@dataclass(frozen=True)
class Line:
    """One budget and its use in bytes; before linking, `exact` is False and `used` counts the plan only.

    `owner` is the model or target that sets the limit, `kind` is `flash` or `ram`.
    """

    owner: str
    kind: str
    limit: int
    used: int
    exact: bool

    @property
    def over(self) -> int:
        """Bytes beyond the limit; 0 or less when the budget is kept."""
        return self.used - self.limit


def used_bytes(figures: Mapping[str, Any]) -> dict[str, int]:
    """Total bytes of flash (code, constants, params.bin) and RAM (largest arena, variables) of size.json."""
    linked = figures.get("linked")
    arena = max(bucket["arena_bytes"] for bucket in figures["buckets"])
    params = figures["params"]["bytes"]
    if linked is None:
        return {"flash": params, "ram": arena}
    apart = params if figures["params"]["storage"] == "file" else 0
    return {"flash": linked["flash_bytes"] + apart, "ram": linked["ram_bytes"] + arena}


def check(figures: Mapping[str, Any], budgets: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """A Line for every limit in `budgets` (owner → {flash_bytes, ram_bytes}, each may be None)."""
    used = used_bytes(figures)
    return [
        Line(owner, kind, limit, used[kind], figures.get("linked") is not None)
        for owner, limits in budgets.items()
        for kind in ("flash", "ram")
        if (limit := limits.get(f"{kind}_bytes")) is not None
    ]


def contributors(kind: str, figures: Mapping[str, Any], plan: Plan) -> list[tuple[str, int]]:
    """Label and bytes of the contributors to `kind`, largest first.

    For `flash`, parameters and code; for `ram`, the tensors alive at the peak of the largest arena.
    """
    if kind == "flash":
        rows = [(f"parameter {tensor.name}", tensor.bytes) for tensor in plan.params.tensors]
        linked = figures.get("linked")
        if linked is not None:
            rows += [(f"code of {k['symbol']}: {k['label']}", k["bytes"]) for k in linked["kernels"]]
            runtime = sum(linked["code"][part] for part in ("runtime", "threads", "platform"))
            rows.append(("code of the runtime", runtime))
        return sorted(rows, key=lambda row: (-row[1], row[0]))
    bucket = max(plan.buckets, key=lambda bucket: bucket.arena_bytes)
    step, live = peak_step(bucket)
    if not live:
        return []
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    at = bucket.steps[step]
    what = at.label or operators(kernels[at.kernel])
    return [(f"{tensor.kind} {tensor.name} at step {step} ({what})", tensor.bytes) for tensor in live]
