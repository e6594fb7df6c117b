"""Budgets of flash and RAM: what exceeds them, by how much, and what takes the room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.report.measure import operators, peak_step


@dataclass(frozen=True)
class Line:
    """One budget. `exact` is False before linking, when `used` is what the plan alone needs."""

    owner: str
    kind: str
    limit: int
    used: int
    exact: bool

    @property
    def over(self) -> int:
        """Bytes beyond the limit; 0 or less when it is kept."""
        return self.used - self.limit


def used_bytes(figures: Mapping[str, Any]) -> dict[str, int]:
    """Flash (code, constants, params.bin) and RAM (arena, variables) that figures of `measure` add up to."""
    linked = figures.get("linked")
    arena = max(bucket["arena_bytes"] for bucket in figures["buckets"])
    params = figures["params"]["bytes"]
    if linked is None:
        return {"flash": params, "ram": arena}
    apart = params if figures["params"]["storage"] == "file" else 0
    return {"flash": linked["flash_bytes"] + apart, "ram": linked["ram_bytes"] + arena}


def check(figures: Mapping[str, Any], budgets: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """One line for every limit in `budgets` (owner → {flash_bytes, ram_bytes}, each may be None)."""
    used = used_bytes(figures)
    return [
        Line(owner, kind, limit, used[kind], figures.get("linked") is not None)
        for owner, limits in budgets.items()
        for kind in ("flash", "ram")
        if (limit := limits.get(f"{kind}_bytes")) is not None
    ]


def contributors(kind: str, figures: Mapping[str, Any], plan: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What takes most of it, greatest first: parameters and code, or the tensors live at the peak."""
    if kind == "flash":
        rows = [(f"parameter {t['name']}", t["bytes"]) for t in plan["params"]["tensors"]]
        linked = figures.get("linked")
        if linked is not None:
            rows += [(f"code of {k['symbol']}: {k['label']}", k["bytes"]) for k in linked["kernels"]]
            runtime = sum(linked["code"][part] for part in ("runtime", "threads", "platform"))
            rows.append(("code of the runtime", runtime))
        return sorted(rows, key=lambda row: (-row[1], row[0]))
    bucket = max(plan["buckets"], key=lambda b: b["arena_bytes"])
    step, live = peak_step(bucket)
    if not live:
        return []
    kernels = {kernel["symbol"]: kernel for kernel in plan["kernels"]}
    at = bucket["steps"][step]
    what = at.get("label") or operators(kernels[at["kernel"]])
    return [(f"{t['kind']} {t['name']} at step {step} ({what})", t["bytes"]) for t in live]
