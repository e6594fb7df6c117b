"""Budgets of flash, RAM and stack: whether they are exceeded, by how much, and the largest contributors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kiln.config import Target
from kiln.config.memory import Holds, Region, region_of, regions_of
from kiln.emit.size_schema import SizeFile
from kiln.errors import KilnError
from kiln.plan.schema import Plan
from kiln.report.measure import operators, peak_step

_FLASH: tuple[Holds, ...] = ("code", "parameters")
_HEADER = 128  # bytes of an image before its parameters
_RAM: tuple[Holds, ...] = ("data", "heap")  # contents of regions, see config/memory.py
Kind = Literal["flash", "ram", "stack"]
_KINDS: tuple[Kind, ...] = ("flash", "ram", "stack")


@dataclass(frozen=True)
class Line:
    """One budget and its use in bytes; before linking, `exact` is False and `used` counts the plan only.

    `owner` is the model or target that sets the limit, `kind` is `flash`, `ram` or
    `stack`.
    """

    owner: str
    kind: Kind
    limit: int
    used: int
    exact: bool

    @property
    def excess(self) -> int:
        """Bytes beyond the limit; 0 or less when the budget is kept."""
        return self.used - self.limit


def used_bytes(figures: SizeFile) -> dict[str, int]:
    """Total bytes of flash, of RAM, and of the stack where it is known.

    Flash: code, constants, params.bin. RAM: the largest arena, the state of one session, variables.
    """
    linked, params = figures.linked, figures.params.bytes
    arena = max(bucket.arena_bytes for bucket in figures.buckets) + figures.state_bytes
    if linked is None:
        return {"flash": params, "ram": arena}
    separate = params if figures.params.storage == "file" else 0
    stack = {} if linked.stack_bytes is None else {"stack": linked.stack_bytes}
    return {"flash": linked.flash_bytes + separate, "ram": linked.ram_bytes + arena, **stack}


def of_memory(target: Target) -> dict[str, dict[str, int]]:
    """The limits that follow from the target's regions of memory, as an entry of `check`'s budgets."""
    if target.memory is None:
        return {}
    limits = {f"{kind}_bytes": sum(_regions(target, kind).values()) for kind in ("flash", "ram")}
    return {f"the memory of target {target.name}": limits}


def _regions(target: Target, kind: Kind) -> dict[str, int]:
    """Bytes of each region that holds something of the kind."""
    if target.memory is None:
        return {}
    regions = [region_of(target.memory, content) for content in (_FLASH if kind == "flash" else _RAM)]
    regions += regions_of(target.memory, "parameters" if kind == "flash" else "arena")
    return {region.name: region.bytes for region in regions}


def check(figures: SizeFile, budgets: Mapping[str, Mapping[str, Any]]) -> list[Line]:
    """A Line for every limit in `budgets` (owner → {flash_bytes, ram_bytes, stack_bytes}, each may be None).

    Raises KilnError for a limit of the stack where the stack of a linked program is not known.
    """
    used = used_bytes(figures)
    if figures.linked is not None and "stack" not in used:
        for owner, limits in budgets.items():
            if limits.get("stack_bytes") is not None:
                raise KilnError(
                    f"budget 'stack_bytes' of {owner}: the stack is not known on target "
                    f"'{figures.target}', only on freestanding targets of arch arm_m or riscv32"
                )
    return [
        Line(owner, kind, limit, used[kind], figures.linked is not None)
        for owner, limits in budgets.items()
        for kind in _KINDS
        if kind in used and (limit := limits.get(f"{kind}_bytes")) is not None
    ]


def of_regions(figures: SizeFile, plan: Plan, target: Target) -> list[Line]:
    """A Line for each region of the target that the model uses, where flash or RAM has several regions.

    What a region holds of the model: parts of arena and parameters, and, of a linked program, its code or
    variables. A region of RAM cannot lend bytes to another, so the sums of `of_memory` are not enough.
    """
    lines = []
    for region in target.memory or ():
        kind: Kind = "flash" if set(region.holds) & set(_FLASH) else "ram"
        used = _of_region(region, figures, plan, target)
        if used:
            owner = f"region {region.name} of target {target.name}"
            lines.append(Line(owner, kind, region.bytes, used, figures.linked is not None))
    regions = {kind: _regions(target, kind) for kind in ("flash", "ram")}
    return [line for line in lines if len(regions[line.kind]) > 1]


def _of_region(region: Region, figures: SizeFile, plan: Plan, target: Target) -> int:
    """Bytes of the model that are in the region: parameters, arena, code, variables and state."""
    linked, embedded = figures.linked, 0 if plan.params.storage == "file" else plan.params.bytes
    parts = {part.name: part.bytes + _HEADER for part in plan.params.parts if part.bytes}
    arenas = {placed.name: placed.bytes for placed in plan.regions}
    if not plan.params.parts and embedded:
        with_code = "code" in _held(target, "parameters").holds
        parts = {_held(target, "parameters").name: embedded + (0 if with_code else _HEADER)}
    if not plan.regions:
        arenas = {_held(target, "heap").name: max(bucket.arena_bytes for bucket in figures.buckets)}
    used = parts.get(region.name, 0) + arenas.get(region.name, 0)
    if linked is not None and "code" in region.holds:
        used += max(0, linked.flash_bytes - embedded)
    if linked is not None and "data" in region.holds:
        used += linked.ram_bytes + figures.state_bytes
    return used


def _held(target: Target, kind: Holds) -> Region:
    return region_of(target.memory or (), kind)


def contributors(kind: str, figures: SizeFile, plan: Plan) -> list[tuple[str, int]]:
    """Label and bytes of the contributors to `kind`, largest first.

    For `flash`, parameters and code; for `ram`, the tensors alive at the peak of the largest arena, and the
    state; for `stack`, the functions' frames.
    """
    linked = figures.linked
    if kind == "stack":
        frames = (linked and linked.stack_frames) or []
        return [(f"frame of {frame.function}", frame.bytes) for frame in frames]
    if kind == "flash":
        rows = [(f"parameter {tensor.name}", tensor.bytes) for tensor in plan.params.tensors]
        if linked is not None:
            rows += [(f"code of {k.symbol}: {k.label}", k.bytes) for k in linked.kernels]
            code = linked.code
            rows.append(("code of the runtime", code.runtime + code.threads + code.platform))
        return sorted(rows, key=lambda row: (-row[1], row[0]))
    bucket = max(plan.buckets, key=lambda bucket: bucket.all_arena_bytes)
    step, live = peak_step(bucket)
    contributions = [(f"state {state.name}", state.bytes) for state in plan.states]
    if not live:
        return contributions
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    planned_step = bucket.steps[step]
    label = planned_step.label or operators(kernels[planned_step.kernel])
    rows = [(f"{tensor.kind} {tensor.name} at step {step} ({label})", tensor.bytes) for tensor in live]
    return sorted([*rows, *contributions], key=lambda row: -row[1])
