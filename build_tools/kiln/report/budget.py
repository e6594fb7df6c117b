"""Budgets of flash, RAM and stack: whether they are exceeded, by how much, and the largest contributors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.config import Target
from kiln.config.memory import Holds, region_of, regions_of
from kiln.errors import KilnError
from kiln.plan.schema import Plan
from kiln.report.measure import operators, peak_step

_FLASH: tuple[Holds, ...] = ("code", "parameters")
_HEADER = 128  # bytes of an image before its parameters
_RAM: tuple[Holds, ...] = ("data", "heap")  # contents of regions, see config/memory.py


@dataclass(frozen=True)
class Line:
    """One budget and its use in bytes; before linking, `exact` is False and `used` counts the plan only.

    `owner` is the model or target that sets the limit, `kind` is `flash`, `ram` or
    `stack`.
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
    """Total bytes of flash (code, constants, params.bin) and RAM (largest arena, state of one session,
    variables) of size.json."""
    linked = figures.get("linked")
    arena = max(bucket["arena_bytes"] for bucket in figures["buckets"]) + figures.get("state_bytes", 0)
    params = figures["params"]["bytes"]
    if linked is None:
        return {"flash": params, "ram": arena}
    separate = params if figures["params"]["storage"] == "file" else 0
    stack = {"stack": linked["stack_bytes"]} if "stack_bytes" in linked else {}
    return {"flash": linked["flash_bytes"] + separate, "ram": linked["ram_bytes"] + arena, **stack}


def of_memory(target: Target) -> dict[str, dict[str, int]]:
    """The limits that follow from the target's regions of memory, as an entry of `check`'s budgets."""
    if target.memory is None:
        return {}
    flash = {region_of(target.memory, kind).name: region_of(target.memory, kind).bytes for kind in _FLASH}
    ram = {region_of(target.memory, kind).name: region_of(target.memory, kind).bytes for kind in _RAM}
    flash |= {region.name: region.bytes for region in regions_of(target.memory, "parameters")}
    ram |= {region.name: region.bytes for region in regions_of(target.memory, "arena")}
    limits = {"flash_bytes": sum(flash.values()), "ram_bytes": sum(ram.values())}
    return {f"the memory of target {target.name}": limits}


def check(figures: Mapping[str, Any], budgets: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """A Line for every limit in `budgets` (owner → {flash_bytes, ram_bytes, stack_bytes}, each may be None).

    Raises KilnError for a limit of the stack where the stack of a linked program is not known.
    """
    used = used_bytes(figures)
    if figures.get("linked") is not None and "stack" not in used:
        for owner, limits in budgets.items():
            if limits.get("stack_bytes") is not None:
                raise KilnError(
                    f"budget 'stack_bytes' of {owner}: the stack is not known on target "
                    f"'{figures.get('target')}', only on freestanding targets of arch arm_m or riscv32"
                )
    return [
        Line(owner, kind, limit, used[kind], figures.get("linked") is not None)
        for owner, limits in budgets.items()
        for kind in ("flash", "ram", "stack")
        if kind in used and (limit := limits.get(f"{kind}_bytes")) is not None
    ]


def of_regions(figures: Mapping[str, Any], plan: Plan, target: Target) -> list[Line]:
    """A Line for each region of the target, where the arena or the parameters are split over regions.

    What a region holds of the model: parts of arena and parameters, and, of a linked program, its code or
    variables.
    """
    if not plan.regions and not plan.params.parts:
        return []
    linked = figures.get("linked")
    flash = {part.name: part.bytes + _HEADER for part in plan.params.parts if part.bytes}
    ram = {region.name: region.bytes for region in plan.regions}
    lines = []
    for region in target.memory or ():
        more = 0
        if linked is not None and "code" in region.holds:
            embedded = 0 if plan.params.storage == "file" else plan.params.bytes
            more += max(0, linked["flash_bytes"] - embedded)
            more += 0 if plan.params.parts else embedded
        if linked is not None and "data" in region.holds:
            more += linked["ram_bytes"] + figures.get("state_bytes", 0)
        used = flash.get(region.name, 0) + ram.get(region.name, 0) + more
        if used:
            kind = "flash" if set(region.holds) & {"code", "parameters"} else "ram"
            lines.append(
                Line(f"region {region.name} of target {target.name}", kind, region.bytes, used, bool(linked))
            )
    return lines


def contributors(kind: str, figures: Mapping[str, Any], plan: Plan) -> list[tuple[str, int]]:
    """Label and bytes of the contributors to `kind`, largest first.

    For `flash`, parameters and code; for `ram`, the tensors alive at the peak of the largest arena, and the
    state; for `stack`, the functions' frames.
    """
    if kind == "stack":
        return [(f"frame of {row['function']}", row["bytes"]) for row in figures["linked"]["stack_frames"]]
    if kind == "flash":
        rows = [(f"parameter {tensor.name}", tensor.bytes) for tensor in plan.params.tensors]
        linked = figures.get("linked")
        if linked is not None:
            rows += [(f"code of {k['symbol']}: {k['label']}", k["bytes"]) for k in linked["kernels"]]
            runtime = sum(linked["code"][part] for part in ("runtime", "threads", "platform"))
            rows.append(("code of the runtime", runtime))
        return sorted(rows, key=lambda row: (-row[1], row[0]))
    bucket = max(plan.buckets, key=lambda bucket: bucket.all_arena_bytes)
    step, live = peak_step(bucket)
    kept = [(f"state {state.name}", state.bytes) for state in plan.states]
    if not live:
        return kept
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    at = bucket.steps[step]
    what = at.label or operators(kernels[at.kernel])
    rows = [(f"{tensor.kind} {tensor.name} at step {step} ({what})", tensor.bytes) for tensor in live]
    return sorted([*rows, *kept], key=lambda row: -row[1])
