"""Programs for machines without an operating system: Kiln's start-up code, C library and linker script.

The C files are in programs/bare. Their C library has only the functions that Kiln's own test programs call.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kiln import templates
from kiln.config import Target
from kiln.config.memory import region_of, regions_of
from kiln.errors import KilnError
from kiln.files import atomic_write

_BARE = Path(__file__).resolve().parent / "programs" / "bare"
_LEAST_STACK, _MOST_STACK = 4 << 10, 64 << 10  # bytes
_SMALL_HEAP, _SMALL_GUARD = 1 << 20, 64  # bytes: below this heap, guards of tensors are this long
_LIBRARIES = {"zig": ("-nostartfiles",), "gcc": ("-nostdlib", "-lgcc"), "clang": ("-nostdlib",)}


@dataclass(frozen=True)
class BareProgram:
    """The files and flags that a program for a bare machine is linked from, in addition to its own."""

    sources: tuple[Path, ...]
    include: tuple[Path, ...]
    flags: tuple[str, ...]


def stack_bytes(target: Target) -> int:
    """Bytes of stack of test programs: an eighth of the region that holds it, 4 to 64 KiB."""
    assert target.memory is not None
    return min(max(region_of(target.memory, "data").bytes // 8, _LEAST_STACK), _MOST_STACK)


def linker_script(target: Target) -> str:
    """The linker script of a target's memory. Raises KilnError where the target does not describe it."""
    if target.memory is None:
        raise KilnError(
            f"target '{target.name}': no program can be linked for it, because its memory is not described "
            "(key 'memory')"
        )
    environment = templates.environment(_BARE)
    held = {kind: region_of(target.memory, kind) for kind in ("code", "parameters", "data", "heap")}
    first, *more_regions = regions_of(target.memory, "parameters") or [held["parameters"]]
    sections = [
        (region, [region.section or f".rodata.*_params_{region.name}"]) for region in (first, *more_regions)
    ]
    return environment.get_template("memory.ld.j2").render(
        target=target,
        stack_bytes=stack_bytes(target),
        parts=sections,
        arenas=regions_of(target.memory, "arena"),
        **{**held, "parameters": first},
    )


def regions_source(target: Target) -> str:
    """C source of the table of regions that hold the arena, for programs/harness.c.

    A region that is the heap, too, is left out: its part of the arena comes from malloc.
    """
    assert target.memory is not None
    heap = region_of(target.memory, "heap").name
    names = [region.name for region in regions_of(target.memory, "arena") if region.name != heap]
    symbols = "".join(
        f"extern unsigned char kiln_arena_{name}_begin[], kiln_arena_{name}_end[];\n" for name in names
    )
    rows = "".join(f'    {{"{name}", kiln_arena_{name}_begin, kiln_arena_{name}_end}},\n' for name in names)
    table = f"machine_regions[] = {{\n{rows}    {{0, 0, 0}}}};\n"
    return f"{symbols}const struct {{\n    const char *name;\n    unsigned char *begin, *end;\n}} {table}"


def parts(target: Target, work: Path) -> BareProgram:
    """The parts of a program for `target`; writes the linker script into `work`. Raises KilnError."""
    script = linker_script(target)
    path = work.absolute() / f"memory-{hashlib.sha256(script.encode()).hexdigest()[:12]}.ld"
    if not path.is_file():
        atomic_write(path, script)
    assert target.memory is not None
    heap = region_of(target.memory, "heap")
    small = heap.bytes < _SMALL_HEAP
    arenas = regions_of(target.memory, "arena")
    table = []
    if arenas:
        text = regions_source(target)
        table = [work.absolute() / f"regions-{hashlib.sha256(text.encode()).hexdigest()[:12]}.c"]
        if not table[0].is_file():
            atomic_write(table[0], text)
    return BareProgram(
        (_BARE / "bare.c", _BARE / "library.c", _BARE / f"machine_{target.arch}.c", *table),
        (_BARE / "include", _BARE),
        (
            *_LIBRARIES[target.c_compiler.kind],
            "-ffreestanding",
            *(["-fno-sanitize=undefined"] if target.c_compiler.kind == "zig" else []),
            *([f"-DGUARD_BYTES={_SMALL_GUARD}u"] if small else []),
            f'-DHARNESS_HEAP_REGION="{heap.name}"',
            *(["-DHARNESS_REGIONS", f'-DHARNESS_ARENA_REGION="{arenas[0].name}"'] if arenas else []),
            "-Wl,-e,kiln_at_reset",
            f"-Wl,-T,{path}",
        ),
    )
