"""Compile C and assembly with the target's compiler: the runtime, or a model's plan and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiln.config import Target, read_target
from kiln.emit.bare_cpu import bare_mask
from kiln.emit.headers import include_flags
from kiln.errors import KilnError
from kiln.files import atomic_dir
from kiln.paths import data_dir
from kiln.stages.target import CompileStage
from kiln.toolchain import compiler_command, oldest_cpu_command
from kiln.toolchain import run as run_tool

# compile_file adds -ffile-prefix-map: an object must not contain paths of the build machine.
_FLAGS = ("-std=c11", "-Os", "-g0", "-ffunction-sections", "-fdata-sections")
_ZIG_FLAGS = ("-fno-sanitize=undefined", "-fno-stack-protector")


def run(args: CompileStage) -> None:
    """Write one object for each source file, all of them or none."""
    target = read_target(args.target)
    if args.runtime:
        from kiln.emit.source import runtime_sources

        gpu = target.cuda is not None
        sources = runtime_sources(args.runtime, target.deployment, target.arch, gpu, target.system)
        prefix = "kiln_"
    else:
        assert args.source is not None  # else the flags are rejected
        names = (f"{args.name}_plan.c", f"{args.name}_params.S")
        sources, prefix = [args.source / name for name in names], ""
    missing = [str(source) for source in sources if not source.is_file()]
    if missing:
        raise KilnError(f"{missing[0]}: no such file")
    include_source = [] if args.runtime else [f"-I{args.source}"]
    flags = c_flags(target, oldest_cpu=True)
    if args.runtime and (mask := bare_mask(target)):  # of the target that programs are linked for
        flags.append(f"-DKILN_CPU_FEATURES=UINT64_C({mask:#x})")
    with atomic_dir(args.out) as folder:
        if args.runtime:
            _try_flags(target, folder)
        for source in sources:
            out = folder / f"{prefix}{source.stem}.o"
            compile_file([*flags, *include_source, *include_flags()], source, out)


def _try_flags(target: Target, folder: Path) -> None:
    """Compile one file with all flags of the target, so that unknown flags fail early.

    The runtime itself is compiled without the flags that choose a processor. Raises KilnError.
    """
    tried = folder / "tried.o"
    flags = [*c_flags(target), *include_flags()]
    compile_file(flags, data_dir("runtime_c") / "platform" / "cpu_none.c", tried)
    tried.unlink()


def c_flags(target: Target, oldest_cpu: bool = False) -> list[str]:
    """Command line of the target's C compiler, with the flags for every object of a library.

    `oldest_cpu`: for code that runs before the processor's features have been checked.
    """
    command = oldest_cpu_command(target) if oldest_cpu else compiler_command(target)
    compiler_flags = _ZIG_FLAGS if target.c_compiler.kind == "zig" else ()
    return [*command, *_FLAGS, *target.system.flags, *compiler_flags]


def compile_file(flags: Sequence[str], source: Path, out: Path) -> None:
    """Compile `source` into the object `out`. Raises KilnError with the compiler's first error."""
    mapping = [f"-ffile-prefix-map={source.resolve().parent}=.", f"-ffile-prefix-map={source.parent}=."]
    run_tool([*flags, *mapping, "-c", str(source), "-o", str(out)], f"compiling {source.name}")
