"""Sizes of a model on a target: from its plan alone, and exact ones from a linked program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kiln.byoc.libraries import folder as external
from kiln.config import Target
from kiln.device.link import link, link_flags
from kiln.emit.run_time_library import in_software
from kiln.emit.size_schema import (
    CodeByPart,
    GpuUsage,
    LinkedFigures,
    LinkedKernel,
    LinkedSections,
    SizeFile,
    StackFrame,
    StoredParameters,
)
from kiln.errors import KilnError
from kiln.lower.schema import KernelRecord
from kiln.plan.schema import PlacedTensor, Plan, PlannedBucket
from kiln.report.archive import function_members
from kiln.report.buckets import code_rows, plan_rows, variant_rows
from kiln.report.elf import ElfProgram, read_program
from kiln.report.stack import Stack, is_readable, measure_stack

_PROGRAMS = Path(__file__).resolve().parent / "programs"
_FRAMES = 16  # most stack frames that are listed


def plan_figures(plan: Plan, target: str) -> SizeFile:
    """Figures from plan.json alone: bytes of parameters, and a row for each bucket. `target`: its name."""
    return SizeFile(
        model=plan.name,
        params=StoredParameters(bytes=plan.params.bytes, storage=plan.params.storage),
        several=plan.params.lifted.several,
        state_bytes=plan.state_bytes,
        buckets=plan_rows(plan),
        target=target,
    )


def linked_figures(plan: Plan, bundle: Path, target: Target, work: Path) -> LinkedFigures:
    """Bytes of the smallest program that uses the model, minus those of an empty program with the same flags.

    Static memory only: the caller provides arena and tensors. Kernels are sorted by bytes of code, largest
    first. Raises KilnError when the programs cannot be linked, or when the linker removed the model.
    """
    name = plan.name
    # -g keeps the symbol table, which zig otherwise removes; it adds nothing to the measured sections.
    flags = ["-Os", "-g", *link_flags(target, plan.threads)]
    known_stack = target.deployment == "freestanding" and is_readable(target.arch)
    defines = [f'-DKILN_HEADER="{name}.h"', f"-DKILN_MODEL={name}"]
    library = bundle / "lib" / f"lib{name}.a"
    model = link(
        target,
        [_PROGRAMS / "model.c"],
        [*flags, *defines],
        work / "size_model",
        include=[bundle / "include"],
        libraries=[library],
        more=external.link_flags(bundle),
    )
    empty = link(target, [_PROGRAMS / "empty.c"], flags, work / "size_empty")
    program, base = read_program(model), read_program(empty)
    if program.sections.text <= base.sections.text:
        raise KilnError(
            f"size: target '{target.name}': the linker of its C compiler kept nothing of model '{name}' in a "
            "program that runs it, so its size is not known and no budget can be checked; "
            "see 'c_compiler.flags' and 'deployment'"
        )
    added = program.sections - base.sections
    stack = _stack(plan, bundle, target, flags, work) if known_stack else None
    code, kernels = code_by_part(plan, program, base, function_members(library))
    labels = {kernel.symbol: operators(kernel) for kernel in plan.kernels}
    ranked = sorted(kernels.items(), key=lambda item: (-item[1], item[0]))
    return LinkedFigures(
        sections=LinkedSections(text=added.text, rodata=added.rodata, data=added.data, bss=added.bss),
        flash_bytes=added.flash,
        ram_bytes=added.ram,
        stack_bytes=None if stack is None else stack.bytes,
        stack_frames=None if stack is None else _largest(stack),
        code=code,
        kernels=[LinkedKernel(symbol=s, label=labels[s], bytes=size) for s, size in ranked],
        buckets=code_rows(plan, kernels),
        variants=variant_rows(plan, kernels),
    )


def _stack(plan: Plan, bundle: Path, target: Target, flags: list[str], work: Path) -> Stack:
    """The greatest depth of the stack below calls of the model, and the frames, largest first."""
    run = f"{plan.name}_run"
    program = link(
        target,
        [_PROGRAMS / "model.c"],
        [*flags, f'-DKILN_HEADER="{plan.name}.h"', f"-DKILN_MODEL={plan.name}", f"-Wl,-u,{run}"],
        work / "size_stack",
        include=[bundle / "include"],
        libraries=[bundle / "lib" / f"lib{plan.name}.a"],
        more=external.link_flags(bundle),
    )
    return measure_stack(program, ["kiln_open", "kiln_run", run])


def _largest(stack: Stack) -> list[StackFrame]:
    return [StackFrame(function=name, bytes=size) for name, size in stack.frames[:_FRAMES]]


def code_by_part(
    plan: Plan, program: ElfProgram, base: ElfProgram, members: Mapping[str, str]
) -> tuple[CodeByPart, dict[str, int]]:
    """Bytes of code of the parts of a linked program, and of each kernel by its symbol.

    `members`: function name → object of the library. Functions that `base` also contains are not counted;
    functions from outside of the library, such as the C library's, count as `other`, and so do conversions
    of 64-bit integers to floats and back where no other function computes floats in software.
    """
    kernels = {kernel.symbol: 0 for kernel in plan.kernels}
    totals: dict[str, int] = {}
    added = {name: size for name, size in program.functions.items() if name not in base.functions}
    floats = in_software([name for name in added if name not in members])
    for name, size in added.items():
        part_of_code = _part(members.get(name, ""), f"{plan.name}_plan.")
        if part_of_code == "other" and name in floats:
            part_of_code = "floats"
        # Mach-O's libraries do not list the functions that a kernel was split into.
        owner = _kernel_of(name, kernels) if part_of_code in ("kernels", "other") else None
        if owner is not None:
            part_of_code = "kernels"
            kernels[owner] += size
        totals[part_of_code] = totals.get(part_of_code, 0) + size
    return CodeByPart(**totals), kernels


def on_gpu(plan: Plan, linked: LinkedFigures, usage: GpuUsage) -> LinkedFigures:
    """The figures `linked` for kernels that run on a GPU, whose code is an image among the constants.

    `usage`: of emit-objects. A kernel's bytes are the sum over all architectures.
    """
    bytes_of = {
        kernel.symbol: sum(resources.bytes for resources in usage.kernels.get(kernel.symbol, {}).values())
        for kernel in plan.kernels
    }
    kernels = [
        kernel.model_copy(
            update={"bytes": bytes_of[kernel.symbol], "gpu": usage.kernels.get(kernel.symbol, {})}
        )
        for kernel in linked.kernels
    ]
    return linked.model_copy(
        update={
            "code": linked.code.model_copy(update={"kernels": usage.image_bytes}),
            "kernels": sorted(kernels, key=lambda kernel: (-kernel.bytes, kernel.symbol)),
            "buckets": code_rows(plan, bytes_of),
        }
    )


def _part(member: str, plan_member: str) -> str:
    """The part of the library, a field of CodeByPart, that an object belongs to by the prefix of its name."""
    if member.startswith("kiln_cpu_"):
        return "platform"
    if member.startswith(("kiln_threads_", "kiln_platform_")):
        return member.split("_")[1]
    if member.startswith("kiln_"):
        return "runtime"
    if member.startswith(plan_member):
        return "plan"
    return "kernels" if member else "other"


def _kernel_of(function: str, kernels: Mapping[str, int]) -> str | None:
    """The kernel that a function belongs to: itself, or the one it was split from (`k_compute_`, `k.cold`).

    None where the function belongs to no kernel.
    """
    if function in kernels:
        return function
    for end in range(len(function) - 1, 0, -1):
        if function[end] in "._" and function[:end] in kernels:
            return function[:end]
    return None


def operators(kernel: KernelRecord) -> str:
    """The operators that a kernel computes: `nn.conv2d + add + nn.relu`."""
    return " + ".join(op.name.removeprefix("relax.") for op in kernel.ops) or kernel.symbol


def peak_step(bucket: PlannedBucket) -> tuple[int, list[PlacedTensor]]:
    """The first step with the most bytes alive, and the tensors alive at it, largest first."""
    best, most_alive = 0, -1
    for step in range(len(bucket.steps)):
        live = sum(tensor.bytes for tensor in bucket.tensors if tensor.first <= step <= tensor.last)
        if live > most_alive:
            best, most_alive = step, live
    live_there = [tensor for tensor in bucket.tensors if tensor.first <= best <= tensor.last]
    return best, sorted(live_there, key=lambda tensor: (-tensor.bytes, tensor.name))
