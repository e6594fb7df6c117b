"""Budgets of flash, RAM and stack: whether they are exceeded, by how much, and the largest contributors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kiln.config import Target
from kiln.config.memory import Holds, region_of, regions_of
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
    """Total bytes of flash (code, constants, params.bin) and of RAM (largest arena, state of one session,
    variables), and of the stack where it is known.
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
    flash = {region_of(target.memory, kind).name: region_of(target.memory, kind).bytes for kind in _FLASH}
    ram = {region_of(target.memory, kind).name: region_of(target.memory, kind).bytes for kind in _RAM}
    flash |= {region.name: region.bytes for region in regions_of(target.memory, "parameters")}
    ram |= {region.name: region.bytes for region in regions_of(target.memory, "arena")}
    limits = {"flash_bytes": sum(flash.values()), "ram_bytes": sum(ram.values())}
    return {f"the memory of target {target.name}": limits}


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
    """A Line for each region of the target, where the arena or the parameters are split over regions.

    What a region holds of the model: parts of arena and parameters, and, of a linked program, its code or
    variables.
    """
    if not plan.regions and not plan.params.parts:
        return []
    linked = figures.linked
    flash = {
        stored_part.name: stored_part.bytes + _HEADER
        for stored_part in plan.params.parts
        if stored_part.bytes
    }
    ram = {region.name: region.bytes for region in plan.regions}
    lines = []
    for region in target.memory or ():
        more = 0
        if linked is not None and "code" in region.holds:
            embedded = 0 if plan.params.storage == "file" else plan.params.bytes
            more += max(0, linked.flash_bytes - embedded)
            more += 0 if plan.params.parts else embedded
        if linked is not None and "data" in region.holds:
            more += linked.ram_bytes + figures.state_bytes
        used = flash.get(region.name, 0) + ram.get(region.name, 0) + more
        if used:
            kind: Kind = "flash" if set(region.holds) & {"code", "parameters"} else "ram"
            lines.append(
                Line(f"region {region.name} of target {target.name}", kind, region.bytes, used, bool(linked))
            )
    return lines


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
