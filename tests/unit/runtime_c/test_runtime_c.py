"""The runtime's C tests on this machine: two compilers, sanitizers, valgrind, fuzzing; its size and needs."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from c_programs import CORE, FUZZ, INCLUDES, RUNTIME, SANITIZE, TESTS, Builder, cpu_test, need, run
from elftools.elf.elffile import ELFFile
from kiln import packages
from kiln.config import load_target
from kiln.emit.headers import include_flags
from kiln.toolchain import compiler_command

pytestmark = pytest.mark.slow

Make = Callable[[str, str], Builder]
FLAGS = {
    "address": ("-O1", *SANITIZE),
    "thread": ("-O1", "-fsanitize=thread"),
    "fuzzer": ("-O1", *SANITIZE, "-fsanitize=fuzzer-no-link"),
    "plain": ("-O2",),
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make(compiler, kind of flags): one builder each, so that every file is compiled once."""
    builders: dict[tuple[str, str], Builder] = {}

    def maker(compiler: str, kind: str) -> Builder:
        if (compiler, kind) not in builders:
            folder = tmp_path_factory.mktemp(f"{compiler}-{kind}")
            path = need(compiler)
            package = packages.sanitizers_of(path) if compiler == "clang" else None
            if package is not None:
                pytest.fail(f"clang has no sanitizers; {packages.how_to_install(package)}", pytrace=False)
            builders[compiler, kind] = Builder([path], FLAGS[kind], folder)
        return builders[compiler, kind]

    return maker


GCC_TOO = pytest.param("gcc", marks=pytest.mark.heavy)  # clang's sanitizers find at least as much


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("compiler", [GCC_TOO, "clang"])
def test_under_address_and_undefined_sanitizer(make: Make, compiler: str, name: str, tmp_path: Path) -> None:
    program = make(compiler, "address").link(TESTS[name])
    assert ", 0 failures" in run([str(program), *TESTS[name].arguments], tmp_path)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_this_processor(make: Make, compiler: str) -> None:
    assert ", 0 failures" in run([str(make(compiler, "address").link(cpu_test(platform.machine())))])


@pytest.mark.parametrize("compiler", [GCC_TOO, "clang"])
def test_pool_under_thread_sanitizer(make: Make, compiler: str, tmp_path: Path) -> None:
    program = make(compiler, "thread").link(TESTS["threads_pthread"])
    for threads in ("2", "3", "8"):
        assert ", 0 failures" in run([str(program), threads], tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("name", TESTS)
def test_under_valgrind(make: Make, name: str, tmp_path: Path) -> None:
    valgrind = [need("valgrind"), "--quiet", "--error-exitcode=9", "--leak-check=full"]
    valgrind += ["--fair-sched=yes"]  # it runs one thread at a time: let a worker that spins give way
    program = make("gcc", "plain").link(TESTS[name])
    assert ", 0 failures" in run(
        [*valgrind, "--fair-sched=yes", str(program), *TESTS[name].arguments], tmp_path
    )


@pytest.mark.parametrize("name", FUZZ)
def test_fuzz_with_gcc(make: Make, name: str, tmp_path: Path) -> None:
    program = make("gcc", "address").link(FUZZ[name])
    assert run([str(program), "50000", "1"], tmp_path) == "50000 inputs\n"


@pytest.mark.heavy
@pytest.mark.parametrize("name", FUZZ)
def test_fuzz_with_libfuzzer(make: Make, name: str, tmp_path: Path) -> None:
    builder = make("clang", "fuzzer")
    target = FUZZ[name].__class__(FUZZ[name].main)  # without fuzz_main: libFuzzer has a main of its own
    program = builder.link(target, "-fsanitize=fuzzer")
    run([str(program), "-runs=50000", "-seed=1", "-max_len=300", "-timeout=10"], tmp_path)


def test_the_tests_can_fail(make: Make, tmp_path: Path) -> None:
    """A core with one check taken out is found by its test."""
    source = (RUNTIME / "core/params.c").read_text()
    broken = source.replace("if (read_u32(header + 8) != VERSION)", "if (read_u32(header + 8) > 1000)")
    assert broken != source
    (tmp_path / "params.c").write_text(broken)
    builder = make("gcc", "plain")
    objects = [
        str(builder.object(name)) for name in ("session", "check", "memory", "content", "text", "test_model")
    ]
    objects += [
        str(builder.object(name)) for name in ("threads_none", "cpu_none", "crc_small", "params_test")
    ]
    program = tmp_path / "broken"
    gcc = need("gcc")
    flags = ["-std=c11", *INCLUDES, *include_flags()]
    run([gcc, *flags, str(tmp_path / "params.c"), *objects, "-o", str(program)])
    with pytest.raises(pytest.fail.Exception, match=r"params_test\.c:\d+: failed"):
        run([str(program)], tmp_path)


def test_statuses_stand_in_the_order_of_their_values() -> None:
    header = (RUNTIME / "include/kiln.h").read_text()
    body = header.partition("typedef enum kiln_status {")[2].partition("}")[0]
    values = [int(value) for value in re.findall(r"^ *KILN_\w+ = (\d+)", body, re.MULTILINE)]
    assert len(values) > 40
    assert values == sorted(set(values))


def core_sizes(compiler: list[str], folder: Path) -> tuple[int, int, set[str]]:
    """Bytes of code and constants of the core without text.c, of text.c alone, and undefined symbols."""
    builder = Builder(compiler, ("-Os", "-g0", "-ffreestanding", "-ffunction-sections"), folder)
    sizes, undefined, defined = {}, set(), set()
    for name in (*CORE, "threads_none", "cpu_none", "crc_small"):
        with builder.object(name).open("rb") as stream:
            elf = ELFFile(stream)
            sections = [s for s in elf.iter_sections() if re.match(r"\.(text|rodata|data)", s.name)]
            sizes[name] = sum(section["sh_size"] for section in sections)
            for section in elf.iter_sections():
                written = re.match(r"\.(data(?!\.rel\.ro)|bss)", section.name)
                assert not written or section["sh_size"] == 0, f"{name}: {section.name} is written to"
            for symbol in elf.get_section_by_name(".symtab").iter_symbols():
                kind = undefined if symbol["st_shndx"] == "SHN_UNDEF" else defined
                kind.add(symbol.name)
    return sum(sizes.values()) - sizes["text"], sizes["text"], undefined - defined - {""}


# Bytes at -Os with zig 0.17's clang; a change that needs more must raise them here.
@pytest.mark.parametrize(("name", "most"), [("aarch64", (7050, 5550)), ("armv7", (9100, 5900))])
def test_core_is_small_and_freestanding(name: str, most: tuple[int, int], tmp_path: Path) -> None:
    code, text, undefined = core_sizes(compiler_command(load_target(name)), tmp_path)
    print(f"{name}: core {code} bytes, text of errors {text} bytes, needs {sorted(undefined)}")
    assert undefined <= {"memcpy", "memset", "__aeabi_unwind_cpp_pr0", "__aeabi_unwind_cpp_pr1"}
    assert code <= most[0]
    assert text <= most[1]
