"""Builds the program that runs subjects on the target: kernels, a table of subjects in C, time_kernels.c."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm

from kiln.byoc.libraries.folder import LibraryFolder, with_rpath
from kiln.config import Target
from kiln.device.link import link_flags
from kiln.emit.objects import compile_call, compile_object
from kiln.emit.sysroot import program_flags
from kiln.toolchain import link as link_tool
from kiln.toolchain import oldest_cpu_command
from kiln.tune.subject import Call, Subject

PROGRAMS = Path(__file__).resolve().parent / "programs"


def link_program(
    subjects: Sequence[Subject], target: Target, folder: Path, libraries: Sequence[LibraryFolder] = ()
) -> Path:
    """Compile and link the program of `subjects` in `folder`; returns its path.

    Consecutive subjects with equal keys are a group. `libraries`: external libraries that subjects call.
    Raises KilnError with the compiler's first error.
    """
    functions: dict[str, tvm.tirx.PrimFunc] = {}
    for subject in subjects:
        functions.update(subject.functions)
    kernels, table, program = folder / "kernels.o", folder / "subjects.c", folder / "time_kernels"
    compile_object(functions, target, kernels)
    for subject in subjects:
        for symbol, code in subject.externals.items():
            compile_call(symbol, code, target, libraries, folder)
    calls = [str(path) for path in sorted(folder.glob("*.o")) if path != kernels]
    files = [str(path) for library in libraries for path in library.linked]
    folders = [str(library.path.resolve() / "lib") for library in libraries]
    external_flags = with_rpath(files, [*folders, "$ORIGIN"])
    table.write_text(table_of(subjects), encoding="utf-8")
    sources = [str(table), str(PROGRAMS / "time_kernels.c")]
    flags = [*link_flags(target, "none"), "-O2", f"-I{PROGRAMS}"]
    words = [*flags, *sources, str(kernels), *calls, *external_flags, *program_flags(target)]
    link_tool(
        target,
        [*oldest_cpu_command(target), *words, "-o", str(program)],
        f"linking candidates for target '{target.name}'",
    )
    return program


def table_of(subjects: Sequence[Subject]) -> str:
    """C source that declares the kernels and defines SUBJECTS (see programs/time_kernels.h)."""
    groups: dict[str, int] = {}
    head, rows = ['#include "time_kernels.h"', ""], []
    for subject in subjects:
        number = groups.setdefault(subject.key, len(groups))
        name = subject.name
        head += [
            f"void {call.symbol}({_parameter_types(call)});"
            for call in {c.symbol: c for c in subject.calls}.values()
        ]
        head += [
            f"static void run_{name}(unsigned char *const *m) {{",
            *(_call_statement(call) for call in subject.calls),
            "}",
            f"static const tensor tensors_{name}[] = {{",
            *(f"    {{{memory.bytes}u, {memory.kind}}}," for memory in subject.memory),
            "};",
            "",
        ]
        head += _open_function(subject)
        opens = f"open_{name}" if subject.opened else "NULL"
        rows.append(
            f'    {{"{name}", {number}, run_{name}, tensors_{name}, {len(subject.memory)}, {opens}}},'
        )
    return "\n".join(
        [*head, "const subject SUBJECTS[] = {", *rows, "};", f"const int SUBJECTS_COUNT = {len(rows)};", ""]
    )


def _open_function(subject: Subject) -> list[str]:
    """C lines of the function that calls the libraries' one-time preparation; empty where there is none."""
    if not subject.opened:
        return []
    declared_and_called: list[tuple[str, str]] = []
    for call in subject.opened:
        arguments = ", ".join(f"m[{index}]" for index in call.arguments)
        declaration = f"int {call.symbol}({_parameter_types(call) or 'void'});"
        declared_and_called.append((declaration, f"{call.symbol}({arguments})"))
    return [
        *(declared for declared, _ in declared_and_called),
        f"static int open_{subject.name}(unsigned char *const *m) {{",
        f"    return {' || '.join(f'{called} != 0' for _, called in declared_and_called)};",
        "}",
    ]


def _parameter_types(call: Call) -> str:
    """Types of a kernel's parameters in C: tensors, then the range of tasks if it is divided into tasks."""
    return ", ".join(["void *"] * len(call.arguments) + ["int32_t"] * (0 if call.tasks is None else 2))


def _call_statement(call: Call) -> str:
    """C statement that runs all tasks of a kernel on the tensors in `m`."""
    tasks = [] if call.tasks is None else ["0", str(call.tasks)]
    return f"    {call.symbol}({', '.join([*(f'm[{index}]' for index in call.arguments), *tasks])});"


def operands_of(subjects: Sequence[Subject], path: Path) -> Path:
    """Write the operands of all subjects to `path`, as `time_kernels check` reads them; returns `path`."""
    with path.open("wb") as out:
        for subject in subjects:
            out.write(subject.operands())
    return path


def by_group(subjects: Sequence[Subject]) -> Mapping[str, list[Subject]]:
    """The subjects grouped by key, in their original order."""
    groups: dict[str, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.key, []).append(subject)
    return groups
