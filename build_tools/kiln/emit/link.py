"""link: archive the objects as lib<model>.a, link lib<model>.so for hosted targets, and add the headers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kiln.byoc.libraries.folder import LIST, LibraryFolder, with_rpath
from kiln.config import Target, read_target
from kiln.emit.headers import dlpack_h, kiln_cuda_h, kiln_h, kiln_image_h
from kiln.emit.macho import hidden
from kiln.emit.object_symbols import symbols
from kiln.emit.source import LOADER
from kiln.emit.sysroot import shared_flags
from kiln.errors import KilnError
from kiln.files import atomic_dir, set_mode, write_json
from kiln.plan.schema import Plan, read_plan
from kiln.stages.target import LinkStage
from kiln.toolchain import archiver_command, oldest_cpu_command
from kiln.toolchain import link as link_tool
from kiln.toolchain import run as run_tool

_COPY = "hidden-"  # before the names of copied objects


def run(args: LinkStage) -> None:
    """Write the output folder, completely or not at all."""
    target, plan = read_target(args.target), read_plan(args.plan)
    objects = [path for folder in args.objects for path in sorted(folder.glob("*.o"))]
    if not objects:
        raise KilnError(f"{args.objects[0]}: holds no objects")
    with atomic_dir(args.out) as folder:
        (folder / "include").mkdir()
        (folder / "lib").mkdir()
        gpu = [kiln_cuda_h()] if target.cuda is not None else []
        for header in (args.source / f"{args.name}.h", kiln_h(), kiln_image_h(), dlpack_h(), *gpu):
            shutil.copyfile(header, folder / "include" / header.name)
        archive(objects, folder / "lib" / f"lib{args.name}.a")
        external = add_libraries([LibraryFolder.read(path) for path in args.libraries], plan, folder)
        if has_shared(target):
            on_gpu = target.cuda is not None  # kernels are then not symbols of the library
            kernels = [] if on_gpu else [kernel.symbol for kernel in plan.kernels if kernel.is_function]
            shared(
                target, plan.name, [plan.name], kernels, plan.threads, [*objects, *external], folder
            )  # fmt: skip
        if plan.params.storage == "file":
            shutil.copyfile(args.source / "params.bin", folder / "params.bin")


def add_libraries(libraries: Sequence[LibraryFolder], plan: Plan, folder: Path) -> list[Path]:
    """Copy the libraries that kernels call into lib/, and their licences; return the files to link with."""
    called = {kernel.external.backend for kernel in plan.kernels if kernel.external is not None}
    used = [library for library in libraries if library.description["backend"] in called]
    linked = []
    for library in used:
        for name in library.description["files"]:
            shutil.copyfile(library.path / "lib" / name, folder / "lib" / name)
        linked += [folder / "lib" / name for name in library.description["link"]]
        for text in sorted(library.path.glob("licence*.txt")):
            (folder / "licences").mkdir(exist_ok=True)
            name = library.description["backend"] + text.name.removeprefix("licence")
            shutil.copyfile(text, folder / "licences" / name)
    if used:
        write_json(folder / "lib" / LIST, {"libraries": [library.description for library in used]})
    return linked


def has_shared(target: Target) -> bool:
    """Whether the target gets a shared library: its system has them, and its C library is one."""
    return target.system.shared is not None and not target.libc.static


def archive(objects: Sequence[Path], out: Path) -> None:
    """Write a static library of `objects` in this order, without dates, owners or paths."""
    run_tool([*archiver_command(), "rcsD", str(out), *map(str, objects)], f"archiving {out.name}")
    set_mode(out)


def shared(
    target: Target, name: str, models: Sequence[str], kernels: Sequence[str], threads: str,
    objects: Sequence[Path], folder: Path,
) -> None:  # fmt: skip
    """Link the shared library; it exports the models' entry points and the runtime's API, not the kernels.

    It has no kiln_load, for which older systems would need a further library.
    """
    file = str(target.system.shared).format(name)
    out, script = (
        folder / "lib" / file,
        folder / ("exports.def" if target.system.format == "coff" else "exports"),
    )
    if target.system.format == "coff":
        names = _exported(models, kernels, objects)
        script.write_text(f"LIBRARY {file}\nEXPORTS\n" + "".join(f"    {name}\n" for name in names))
        flags_of_system = [f"-Wl,--out-implib,{folder / 'lib' / f'{name}.lib'}", str(script)]
    elif target.system.format == "macho":  # zig's linker has no list of what to export
        objects = [_hidden(path, kernels, folder) for path in objects]
        flags_of_system = [f"-Wl,-install_name,@rpath/{file}", target.system.remove]
    else:
        local = " ".join(f"{symbol};" for symbol in kernels)
        exported = " ".join(f"{model}; {model}_*;" for model in models)
        script.write_text(f"{{ global: {exported} kiln_*; local: {local} *; }};\n")
        flags_of_system = [f"-Wl,-soname,{file}", f"-Wl,--version-script={script}", "-Wl,--build-id=none"]
    flags = ["-shared", *flags_of_system, "-Wl,-s", *(["-pthread"] if threads == "pthread" else [])]
    linked = [path for path in objects if path.name.removeprefix(_COPY) != f"kiln_{Path(LOADER).stem}.o"]
    arguments = with_rpath([str(path) for path in linked], ["$ORIGIN"])
    words = [*flags, *arguments, *shared_flags(target), "-o", str(out)]
    link_tool(target, [*oldest_cpu_command(target), *words], f"linking {out.name}")
    script.unlink(missing_ok=True)
    for copy in folder.glob(f"{_COPY}*"):
        copy.unlink()
    set_mode(out)


def _hidden(path: Path, kernels: Sequence[str], folder: Path) -> Path:
    """A copy of an object in Mach-O in `folder`, whose kernels the shared library does not export."""
    copy = folder / f"{_COPY}{path.name}"
    copy.write_bytes(hidden(path.read_bytes(), frozenset(kernels)))
    return copy


def _exported(models: Sequence[str], kernels: Sequence[str], objects: Sequence[Path]) -> list[str]:
    """Sorted entries of a .def file: the models' entry points and the runtime's API that objects define."""
    defined = {
        symbol.name: symbol.function
        for path in objects
        for symbol in symbols(path.read_bytes())
        if symbol.defined
    }
    prefixes = ("kiln_", *(f"{model}_" for model in models))
    exported = {name for name in defined if name in models or name.startswith(prefixes)}
    # Without DATA, an imported variable would be the address of a jump stub instead of the variable.
    return sorted(name if defined[name] else f"{name} DATA" for name in exported - set(kernels))
