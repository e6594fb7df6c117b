"""image: a model as one file that runs at any address, checked by the program that runs it.

1. The plan's C is generated and compiled for any address, with the parts of the runtime that its steps call,
   and with memcpy, memmove and memset of its own. LLVM's code of kernels is always of that kind.
2. Everything is linked at address 0, with the relocations kept.
3. The file is written: header, code, constants, parameters, tables, places of pointers (image_elf.py,
   image_file.py).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from kiln import templates
from kiln.config import Target, cpu_features, read_target
from kiln.config.images import check_images
from kiln.emit import c_text
from kiln.emit.bare_cpu import bare_mask
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.headers import include_flags
from kiln.emit.image_elf import LinkedImage, read_linked
from kiln.emit.image_file import HEADER_BYTES, ImageHeader, image_bytes
from kiln.emit.object_symbols import symbols
from kiln.emit.params_image import HEADER_BYTES as PARAMS_HEADER
from kiln.emit.plan_ports import interface_digest
from kiln.emit.plan_view import PlanView, plan_view
from kiln.files import atomic_write, write_json
from kiln.paths import data_dir
from kiln.plan.schema import Plan, read_plan
from kiln.runtime.structs import ABI
from kiln.scratch import scratch_folder
from kiln.stages.target import ImageStage
from kiln.toolchain import compiler_library, linker_command
from kiln.toolchain import run as run_tool

# The parts of the runtime that a plan calls; unused functions are left out.
_RUNTIME = (
    "core/check.c", "core/content.c", "core/counts.c", "core/dynamic.c", "core/indices.c", "core/memory.c",
    "core/params.c", "core/regions.c", "core/session.c", "core/state.c", "platform/crc_small.c",
    "platform/cpu_none.c", "image/image_memory.c", "image/image_parallel.c",
)  # fmt: skip
_FLAGS = (
    "-fPIC", "-ffreestanding", "-fno-builtin", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
)  # fmt: skip
_SCRIPT = """\
SECTIONS {
    . = %(header)d;
    .image : ALIGN(64) { *%(name)s_params.o(*) *(.text .text.* .rodata .rodata.* .srodata .srodata.*
        .sdata2 .sdata2.*) . = ALIGN(16); }
    .tables : ALIGN(16) { KEEP(*(.data.rel.ro.%(name)s)) *(.data.rel.ro .data.rel.ro.* .data.rel
        .data.rel.local .data.rel.ro.local .data.rel.ro.local.*) . = ALIGN(16); }
    /DISCARD/ : { *(.ARM.exidx .ARM.exidx.* .ARM.extab .ARM.extab.* .eh_frame .eh_frame_hdr .note .note.*
        .comment .debug_* .ARM.attributes .riscv.attributes .llvm_addrsig) }
}
"""


def run(args: ImageStage) -> None:
    """Write the image, and its figures as JSON."""
    target, plan = read_target(args.target), read_plan(args.plan / "plan.json")
    _refuse(target, plan)
    view = plan_view(plan, (args.plan / "params.raw").stat().st_size, in_image=True)
    with scratch_folder("image") as folder:
        linked = read_linked(_linked(args, target, plan, view, Path(folder)), plan.name)
    machine = linked.e_machine | linked.bits // 8 << 16 | _abi(target, linked) << 24
    pointers = struct.pack(f"<{len(linked.pointers)}I", *linked.pointers)
    body = linked.body + pointers
    header = ImageHeader(
        ABI, machine, _features(target, plan), HEADER_BYTES + len(body), 0, linked.align, zlib.crc32(body),
        linked.tables, len(linked.body) + HEADER_BYTES - linked.tables, HEADER_BYTES + len(linked.body),
        len(linked.pointers), linked.model, interface_digest(view.ports), bytes.fromhex(view.hash), plan.name,
    )  # fmt: skip
    content = image_bytes(header, body)
    atomic_write(args.out, content)
    facts = {
        "model": plan.name,
        "target": target.name,
        "bytes": len(content),
        "tables_bytes": header.tables_bytes,
        "pointers": len(linked.pointers),
        "align": linked.align,
        "params_bytes": 0 if plan.params.storage == "file" else plan.params.bytes,
        "arena_bytes": view.arena_bytes,
        "interface": header.digest.hex(),
        "model_hash": view.hash,
    }
    write_json(args.facts, {"format": 1, **facts})


def _refuse(target: Target, plan: Plan) -> None:
    """Raise KilnError for a plan or a target that an image cannot have."""
    external = [kernel.external for kernel in plan.kernels if kernel.external is not None]
    check_images(target, sorted({code.backend for code in external if code.own is None}))


def _linked(args: ImageStage, target: Target, plan: Plan, view: PlanView, folder: Path) -> bytes:
    """The ELF file of the image, linked at address 0."""
    environment = templates.environment(Path(__file__).resolve().parent / "templates")
    environment.filters.update(c=c_text.string, comment=c_text.comment, size=c_text.size, real=c_text.real)
    source = environment.get_template("plan.c.j2").render(m=view, header_bytes=PARAMS_HEADER)
    plan_c = folder / f"{plan.name}_image.c"
    plan_c.write_text(source)
    flags = [*c_flags(target, oldest_cpu=True), *_FLAGS, *include_flags(), f"-I{args.source}"]
    runtime = data_dir("runtime_c")
    sources = [plan_c, args.source / f"{plan.name}_params.S", *(runtime / name for name in _RUNTIME)]
    objects = []
    for path in sources:
        objects.append(folder / f"{path.stem}.o")
        compile_file(flags, path, objects[-1])
    own_kernels = {k.symbol: k for k in plan.kernels if k.external is not None and k.external.own is not None}
    for path in sorted(args.objects.glob("*.o")):
        if path.stem not in own_kernels:
            objects.append(path)
            continue
        objects.append(folder / path.name)  # a user's operator: compiled again, for any address
        variant = target.for_variant(own_kernels[path.stem].variant or target.base)
        compile_file([*c_flags(variant), "-fPIC", "-O3"], path.with_suffix(".c"), objects[-1])
    return _link(target, plan.name, objects, folder)


def _link(target: Target, name: str, objects: Sequence[Path], folder: Path) -> bytes:
    """The ELF file of `objects`, by LLVM's linker for every target, since it can keep the relocations."""
    script, out = folder / "image.ld", folder / "image.elf"
    script.write_text(_SCRIPT % {"name": name, "header": HEADER_BYTES})
    symbols_found = [symbol for path in objects for symbol in symbols(path.read_bytes())]
    defined = {symbol.name for symbol in symbols_found if symbol.defined}
    missing = {symbol.name for symbol in symbols_found if not symbol.defined} - defined
    library = [str(compiler_library(target, folder))] if any(map(_is_function, missing)) else []
    command = [
        *linker_command(),
        "-static",
        "--emit-relocs",
        "--gc-sections",
        "--no-relax",
        "--build-id=none",
    ]
    command_line = [*command, f"-T{script}", "-e", name, *map(str, objects), *library]
    run_tool([*command_line, "-o", str(out)], f"linking the image of {name}")
    return out.read_bytes()


def _is_function(symbol: str) -> bool:
    """Whether an undefined symbol has to be found in a library: not one of the linker's or of unwinding."""
    return bool(symbol) and not symbol.startswith(("_GLOBAL_OFFSET_TABLE_", "__aeabi_unwind_cpp_pr"))


def _features(target: Target, plan: Plan) -> int:
    """Bits of kiln_cpu_features that the image needs; 0: it needs no feature that can be queried."""
    if plan.cpu is not None:
        return cpu_features.mask(plan.cpu.arch, plan.cpu.variants[0].features)
    return bare_mask(target)


def _abi(target: Target, linked: LinkedImage) -> int:
    """The bits of the calling convention and instruction set that runtime_c/core/image.c compares."""
    if linked.e_machine == 243:  # RISC-V: the ABI of floats, and of fewer registers
        return linked.e_flags & 0xE
    return int(target.arch == "arm_m")
