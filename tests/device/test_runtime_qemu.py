"""The runtime's C tests and fuzz targets, and generated plans, on the ARM targets, under QEMU."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_programs import FUZZ, TESTS, WARNINGS, Builder, cpu_test
from c_programs import run as run_tool
from elftools.elf.elffile import ELFFile
from emitted import KERNELS, PAYLOAD, Plan
from emitted_sizes import CASES, CASES_PRINT, DERIVED, DERIVED_PRINTS, MARK, case_plan, derived_plan
from kiln.config import load_target
from kiln.device.check.runners.qemu_user import open_runner
from kiln.emit.headers import include_flags
from kiln.emit.source import emit, runtime_sources
from kiln.plan.schema import parse_plan
from kiln.toolchain import oldest_cpu_command

# As Bundle.link_program has them: for other flags zig makes its library of functions again.
ZIG_FLAGS = ("-Os", "-g", "-fno-sanitize=undefined")


# In the gate 32 bits; tests/unit/runtime_c runs the same programs on this machine, with 64.
@pytest.fixture(scope="module", params=[pytest.param("aarch64", marks=pytest.mark.heavy), "armv7"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Builder]:
    """A target's name and a builder for it."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, Builder(oldest_cpu_command(load_target(request.param)), ZIG_FLAGS, folder)


def _run(name: str, program: Path, *arguments: str) -> str:
    """Standard output of a program that must succeed; an error names a tool that is missing."""
    runner = open_runner(load_target(name))
    done = runner.run(program, arguments, send={}, fetch={}, timeout=300)
    assert done.status == 0, done.stdout + done.stderr
    return done.stdout


# Those of the gate have sizes, offsets or threads in them, which 32 bits may change.
GATE = {"check", "crc_sliced", "memory", "params", "session", "state", "threads_pthread"}


@pytest.mark.parametrize(
    "test", [pytest.param(name, marks=[] if name in GATE else [pytest.mark.heavy]) for name in TESTS]
)
def test_passes(machine: tuple[str, Builder], test: str) -> None:
    name, builder = machine
    assert ", 0 failures" in _run(name, builder.link(TESTS[test]), *TESTS[test].arguments)


def test_the_emulated_processor(machine: tuple[str, Builder]) -> None:
    name, builder = machine
    assert ", 0 failures" in _run(name, builder.link(cpu_test(name)))


@pytest.mark.parametrize("test", FUZZ)
def test_fuzz(machine: tuple[str, Builder], test: str) -> None:
    name, builder = machine
    assert _run(name, builder.link(FUZZ[test]), "5000", "2") == "5000 inputs\n"


@pytest.mark.parametrize(
    ("plan", "program", "prints"),
    [
        (derived_plan(), DERIVED, DERIVED_PRINTS),
        (case_plan(), CASES, CASES_PRINT.splitlines()),
    ],
    ids=["sizes", "cases"],
)
@pytest.mark.parametrize("name", [pytest.param("aarch64", marks=pytest.mark.heavy), "armv7"])
def test_generated_plan(name: str, plan: Plan, program: str, prints: list[str], tmp_path: Path) -> None:
    """A generated plan works as on this machine, and needs no function of the compiler's library."""
    for file, content in emit(parse_plan(plan), PAYLOAD).items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "kernels.c").write_text(KERNELS.replace("NAME", "tiny") + MARK)
    (tmp_path / "main.c").write_text(program)
    compiler = [*oldest_cpu_command(load_target(name)), *ZIG_FLAGS, f"-I{tmp_path}", *include_flags()]
    run_tool([*compiler, *WARNINGS, "-c", str(tmp_path / "tiny_plan.c"), "-o", str(tmp_path / "plan.o")])
    with (tmp_path / "plan.o").open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".symtab").iter_symbols()
        needed = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"} - {""}
    foreign = {symbol for symbol in needed if not symbol.startswith(("kiln_", "tiny_"))}
    assert foreign <= {"memcpy", "memset", "__aeabi_unwind_cpp_pr0", "__aeabi_unwind_cpp_pr1"}
    sources = [tmp_path / "plan.o", *(tmp_path / n for n in ("kernels.c", "main.c", "tiny_params.S"))]
    out = tmp_path / "program"
    run_tool(
        [*compiler, *map(str, [*runtime_sources("pthread", "hosted"), *sources]), "-pthread", "-o", str(out)]
    )
    assert _run(name, out).splitlines() == prints
