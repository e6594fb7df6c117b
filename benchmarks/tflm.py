"""A model in TensorFlow Lite Micro on an emulated microcontroller: instructions, flash, RAM and outputs.

The library is made by tflm_sources.py. Start-up code, linker script, machine and clock are those of Kiln's
own test programs; flash and RAM are those of the smallest program with the model less those of an empty one,
as `size` measures Kiln's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kiln.arrays import Array
from kiln.config import Target
from kiln.device import bare
from kiln.device.bundle import GoldenVector
from kiln.device.check.runners import runner_for
from kiln.device.link import link_flags
from kiln.device.vector_files import encode
from kiln.errors import KilnError
from kiln.report.elf import read_program
from kiln.scratch import scratch_folder
from kiln.toolchain import compiler_command
from kiln.toolchain import run as run_tool

from benchmarks.tflm_sources import PROGRAMS, Sources, cxx_flags, flags, library, operator_methods

_EMPTY = Path(bare.__file__).resolve().parents[1] / "report/programs/empty.c"
_TIMEOUT = 600.0  # seconds for all vectors of a model
_FILE = """    .section .rodata.tflm_params, "a"
    .balign 16
    .globl tflm_file
tflm_file:
    .incbin "{path}"
"""


@dataclass(frozen=True)
class Figures:
    """A model in TFLM: the most instructions of a vector, bytes of flash, RAM and the arena in it.

    `outputs`: the outputs of every vector.
    """

    instructions: int
    flash: int
    ram: int
    arena: int
    outputs: list[list[Array]]


def operators(model: Path) -> list[str]:
    """The builtin operators of a .tflite file, sorted. Raises KilnError for custom ones."""
    import tflite

    names = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}
    content = tflite.Model.GetRootAs(model.read_bytes(), 0)
    found = set()
    for graph in (content.Subgraphs(at) for at in range(content.SubgraphsLength())):
        for at in range(graph.OperatorsLength()):
            code = content.OperatorCodes(graph.Operators(at).OpcodeIndex())
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            if number == tflite.BuiltinOperator.CUSTOM:
                raise KilnError(f"{model}: operator {code.CustomCode().decode()!r} is no operator of TFLM")
            found.add(names[number])
    return sorted(found)


def measure(
    model: Path, vectors: list[GoldenVector], runs: int, target: Target, sources: Sources, work: Path
) -> Figures:
    """Build TFLM and the model for the target, and run the vectors on its emulated machine.

    `runs`: vectors that follow one another before variables begin again. Raises KilnError where TFLM lacks an
    operator of the model, cannot be compiled, or fails.
    """
    archive = library(target, sources, operators(model), work)
    with scratch_folder("tflm") as folder:
        objects = _objects(model, target, sources, folder)
        flash, ram = _sizes(target, [*objects, archive], folder)
        program = _link_test(target, [*objects, archive], folder, work)
        counts, arena, outputs = _run(program, vectors, runs, target, folder)
    return Figures(max(counts), flash, ram + arena, arena, outputs)


def _objects(model: Path, target: Target, sources: Sources, folder: Path) -> list[Path]:
    """Objects of the model's file and of tflm_model.cc, which adds its operators."""
    methods, wanted = operator_methods(sources), operators(model)
    missing = [name for name in wanted if name not in methods]
    if missing:
        raise KilnError(f"{model}: TFLM has no operator {', '.join(missing)}")
    added = " ".join(f"ADD({methods[name]})" for name in wanted)
    defines = [f"-DTFLM_OPERATORS={added}", f"-DTFLM_OPERATOR_COUNT={len(wanted)}"]
    source = folder / "tflm_file.S"
    source.write_text(_FILE.format(path=model.resolve()))
    command, objects = compiler_command(target), [folder / "tflm_file.o", folder / "tflm_model.o"]
    run_tool([*command, "-c", str(source), "-o", str(objects[0])], "compiling a model's file for TFLM")
    unit = [*flags(target, sources), "-Os", *cxx_flags(), *defines, str(PROGRAMS / "tflm_model.cc")]
    run_tool([*command, *unit, "-c", "-o", str(objects[1])], "compiling a model's program for TFLM")
    return objects


def _sizes(target: Target, linked: list[Path], folder: Path) -> tuple[int, int]:
    """Bytes of flash and of static RAM that TFLM and the model add to an empty program."""
    base = [*compiler_command(target), "-Os", "-g", *link_flags(target, "none")]
    model, empty = folder / "size_model", folder / "size_empty"
    own_flags = [f"-I{PROGRAMS}", str(PROGRAMS / "tflm_size.c"), *map(str, linked)]
    run_tool([*base, *own_flags, "-o", str(model)], "linking TFLM")
    run_tool([*base, str(_EMPTY), "-o", str(empty)], "linking an empty program")
    added = read_program(model).sections - read_program(empty).sections
    return added.flash, added.ram


def _link_test(target: Target, linked: list[Path], folder: Path, work: Path) -> Path:
    parts = bare.parts(target, work)
    include = [f"-I{path}" for path in (PROGRAMS, *parts.include)]
    given = [
        *include,
        str(PROGRAMS / "tflm_run.c"),
        *map(str, parts.sources),
        *map(str, linked),
        *parts.flags,
    ]
    program = folder / "tflm_run"
    command = [*compiler_command(target), "-O2", *link_flags(target, "none", entry=None), *given]
    run_tool([*command, "-o", str(program)], "linking TFLM's test program")
    return program


def _run(
    program: Path, vectors: list[GoldenVector], runs: int, target: Target, folder: Path
) -> tuple[list[int], int, list[list[Array]]]:
    """Instructions of each vector, bytes of the arena in use, and the outputs."""
    input_file, output_file = folder / "inputs.bin", folder / "outputs.bin"
    input_file.write_bytes(encode([vector.inputs for vector in vectors]))
    done = runner_for(target).run(
        program,
        [str(runs)],
        send={input_file.name: input_file},
        fetch={output_file.name: output_file},
        timeout=_TIMEOUT,
    )
    if done.status != 0 or not output_file.is_file():
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise KilnError(f"TFLM failed with status {done.status}: {reason}")
    counts = [int(count) for count in re.findall(r"^run\t(\d+)$", done.stdout, re.MULTILINE)]
    arena = re.search(r"^arena\t(\d+)$", done.stdout, re.MULTILINE)
    if arena is None or len(counts) != len(vectors):
        raise KilnError(f"TFLM's test program printed something else: {done.stdout!r}")
    content, offset, outputs = output_file.read_bytes(), 0, list[list[Array]]()
    for vector in vectors:
        outputs.append([])
        for want in vector.outputs:
            output_bytes = content[offset : offset + want.nbytes]
            if len(output_bytes) != want.nbytes:
                raise KilnError(f"TFLM's outputs have {len(content)} bytes, more expected")
            outputs[-1].append(np.frombuffer(output_bytes, want.dtype.newbyteorder("<")).reshape(want.shape))
            offset += want.nbytes
    if offset != len(content):
        raise KilnError(f"TFLM's outputs have {len(content)} bytes, {offset} expected")
    return counts, int(arena[1]), outputs
