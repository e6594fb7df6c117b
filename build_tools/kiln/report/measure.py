"""What a model costs on a target: from its plan alone, and exactly once there is a library to link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.config import Target
from kiln.device.link import link, link_flags
from kiln.report.elf import Program, read_program

_PROGRAMS = Path(__file__).resolve().parent / "programs"
# Sources of runtime_c: local functions of the runtime are known by the file they come from.
_RUNTIME_FILES = ("session.c", "check.c", "params.c", "text.c", "threads_", "platform_")


def plan_figures(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What plan.json alone tells: bytes of parameters, and of each bucket's arena and its lower bound."""
    return {
        "format": 1,
        "model": plan["name"],
        "params": {"bytes": plan["params"]["bytes"], "storage": plan["params"]["storage"]},
        "buckets": [
            {key: bucket[key] for key in ("name", "dims", "arena_bytes", "lower_bound_bytes")}
            | {"steps": len(bucket["steps"])}
            for bucket in plan["buckets"]
        ],
    }


def linked_figures(plan: Mapping[str, Any], bundle: Path, target: Target, work: Path) -> dict[str, Any]:
    """Bytes of the smallest program that uses the model, less those of an empty program, both linked alike.

    Static memory only: arena and tensors are the caller's. Kernels are listed by bytes of code, greatest
    first. Raises KilnError when the programs cannot be linked.
    """
    name = plan["name"]
    # -g keeps the symbol table, which zig drops otherwise; it adds nothing to the sections measured.
    flags = ["-Os", "-g", *link_flags(target, plan["threads"])]
    defines = [f'-DKILN_HEADER="{name}.h"', f"-DKILN_MODEL={name}"]
    library = bundle / "lib" / f"lib{name}.a"
    model = link(
        target,
        [_PROGRAMS / "model.c"],
        [*flags, *defines],
        include=[bundle / "include"],
        libraries=[library],
        work=work,
        name="size_model",
    )
    empty = link(target, [_PROGRAMS / "empty.c"], flags, work=work, name="size_empty")
    program, base = read_program(model), read_program(empty)
    added = program.sections - base.sections
    return {
        "sections": {key: getattr(added, key) for key in ("text", "rodata", "data", "bss")},
        "flash_bytes": added.flash,
        "ram_bytes": added.ram,
        **_code(plan, program, base),
    }


def _code(plan: Mapping[str, Any], program: Program, base: Program) -> dict[str, Any]:
    """Bytes of code of runtime, plan and each kernel, by the names of the functions that were linked."""
    labels = {kernel["symbol"]: operators(kernel) for kernel in plan["kernels"]}
    kernels = dict.fromkeys(labels, 0)
    totals = {"runtime": 0, "plan": 0, "other": 0}
    for name, (source, size) in program.functions.items():
        if name in base.functions or name == "main":
            continue
        owner = _kernel_of(name, kernels)
        if source == f"{plan['name']}_plan.c":
            totals["plan"] += size
        elif owner is not None:
            kernels[owner] += size
        elif name.startswith("kiln_") or source.startswith(_RUNTIME_FILES):
            totals["runtime"] += size
        elif name.startswith(f"{plan['name']}_"):
            totals["plan"] += size
        else:
            totals["other"] += size
    ranked = sorted(kernels.items(), key=lambda item: (-item[1], item[0]))
    return {
        "code": totals | {"kernels": sum(kernels.values())},
        "kernels": [{"symbol": s, "label": labels[s], "bytes": size} for s, size in ranked],
    }


def _kernel_of(function: str, kernels: Mapping[str, int]) -> str | None:
    """The kernel that a function is, or was split from by the compiler (`k_compute_`, `k.cold`)."""
    if function in kernels:
        return function
    for end in range(len(function) - 1, 0, -1):
        if function[end] in "._" and function[:end] in kernels:
            return function[:end]
    return None


def operators(kernel: Mapping[str, Any]) -> str:
    """The operators that a kernel of plan.json computes: `nn.conv2d + add + nn.relu`."""
    return " + ".join(op["name"].removeprefix("relax.") for op in kernel["ops"]) or kernel["symbol"]


def peak_step(bucket: Mapping[str, Any]) -> tuple[int, list[Mapping[str, Any]]]:
    """The first step at which most bytes are live, and the tensors live there, greatest first."""
    best, most = 0, -1
    for step in range(len(bucket["steps"])):
        live = sum(t["bytes"] for t in bucket["tensors"] if t["first"] <= step <= t["last"])
        if live > most:
            best, most = step, live
    live_there = [t for t in bucket["tensors"] if t["first"] <= best <= t["last"]]
    return best, sorted(live_there, key=lambda t: (-t["bytes"], t["name"]))
