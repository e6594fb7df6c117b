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
from kiln.device.link import link, link_flags
from kiln.emit.headers import include_flags
from kiln.emit.object_symbols import symbols
from kiln.emit.source import runtime_sources
from kiln.report.elf import read_program
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


@pytest.mark.parametrize("compiler", [GCC_TOO, "clang"])
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
@pytest.mark.parametrize("compiler", [GCC_TOO, "clang"])
def test_fuzz(make: Make, compiler: str, name: str, tmp_path: Path) -> None:
    program = make(compiler, "address").link(FUZZ[name])
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
    builder = make("clang", "address")
    objects = [
        str(builder.object(name))
        for name in ("session", "check", "dynamic", "memory", "content", "text", "test_model")
    ]
    objects += [
        str(builder.object(name)) for name in ("threads_none", "cpu_none", "crc_small", "params_test")
    ]
    program = tmp_path / "broken"
    flags = ["-std=c11", *SANITIZE, *INCLUDES, *include_flags()]
    run([need("clang"), *flags, str(tmp_path / "params.c"), *objects, "-o", str(program)])
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
@pytest.mark.parametrize(
    ("name", "most"),
    [pytest.param("aarch64", (7040, 6350), marks=pytest.mark.heavy), ("armv7", (8700, 6700))],
)
def test_core_is_small_and_freestanding(name: str, most: tuple[int, int], tmp_path: Path) -> None:
    code, text, undefined = core_sizes(compiler_command(load_target(name)), tmp_path)
    print(f"{name}: core {code} bytes, text of errors {text} bytes, needs {sorted(undefined)}")
    assert undefined <= {"memcpy", "memset", "__aeabi_unwind_cpp_pr0", "__aeabi_unwind_cpp_pr1"}
    assert code <= most[0]
    assert text <= most[1]


@pytest.mark.parametrize("name", ["cortex_m0plus", "riscv32_imac", "armv7"])
def test_a_trace_needs_no_library(name: str, tmp_path: Path) -> None:
    """Times have 64 bits, which these processors neither divide nor multiply in an instruction."""
    compiler = compiler_command(load_target(name))
    trace = Builder(compiler, ("-Os", "-g0", "-ffreestanding"), tmp_path).object("trace")
    undefined = {symbol.name for symbol in symbols(trace.read_bytes()) if not symbol.defined}
    assert {"kiln_begin", "kiln_step"} <= undefined
    assert [name for name in undefined if not re.match(r"kiln_|__aeabi_(unwind|mem)|mem|$", name)] == []


# A program of one model, and of nothing else; with -DDYNAMIC it has dimensions, with -DSTATE state.
SMALLEST = """
#include "kiln.h"

static int32_t step(const kiln_frame *frame, uint32_t bucket, uint32_t at) {
    return frame == NULL || bucket + at > 0;
}

static const kiln_tensor tensors[] = {{"x", {kDLInt, 8, 1}, 0, NULL, 0, 0}};
static const kiln_bucket buckets[] = {{"all", 64, 1, NULL}};
static const kiln_variant variants[] = {{"base", 0, step}};
static const unsigned char hash[32];

#ifdef DYNAMIC
static const kiln_dim dims[] = {{"n", 1, 8, 1}};

static int32_t choose(const int64_t *given) {
    return given[0] > 4;
}
#endif

const kiln_model model = {.abi = KILN_ABI, .inputs_count = 1, .outputs_count = 1, .inputs = tensors,
                          .outputs = tensors, .buckets = buckets, .buckets_count = 1, .variants = variants,
                          .variants_count = 1, .arena_align = 64, .params_bytes = 64, .hash = hash,
#ifdef DYNAMIC
                          .dims_count = 1, .dims = dims, .select = choose, .dynamic = &kiln_dynamic,
#endif
#ifdef STATE
                          .open_state = kiln_open_state, .state_bytes = 64,
#endif
};

int main(int argc, char **argv) {
    static kiln_session session;
    kiln_config config = {.arena = argv[0], .arena_bytes = (size_t)argc, .params = argv[1]};
    const DLTensor *given = (const DLTensor *)(const void *)argv[2];
    if (kiln_open(&session, &model, &config) != KILN_OK)
        return 1;
#ifdef STATE
    if (kiln_reset(&session) != KILN_OK)
        return 1;
#endif
    return kiln_run(&session, given, given + 1) != KILN_OK;
}
"""
# Bytes of the core's functions in it on a Cortex-M4; see `test_core_is_small_and_freestanding`.
LINKED = {"": 3480, "-DDYNAMIC": 4080, "-DSTATE": 3780}


@pytest.mark.heavy
def test_programs_link_the_parts_of_the_core_that_their_model_needs(tmp_path: Path) -> None:
    target = load_target("cortex_m4")
    source = tmp_path / "smallest.c"
    source.write_text(SMALLEST)
    found = {}
    for define in LINKED:
        program = link(
            target,
            [source, *runtime_sources("none", target.deployment, target.arch, system=target.system)],
            ["-Os", "-g", *filter(None, [define]), *link_flags(target, "none")],
            tmp_path / f"program{define}",
            include=[Path(flag.removeprefix("-I")) for flag in include_flags()],
        )
        others = re.compile(r"main|step|choose|mem|__aeabi")
        sizes = read_program(program).functions
        assert ("kiln_derive" in sizes, "kiln_reset" in sizes) == (define == "-DDYNAMIC", define == "-DSTATE")
        assert "kiln_detail_text" not in sizes
        found[define] = sum(size for name, size in sizes.items() if not others.match(name))
    print(found)
    assert all(found[define] <= most <= 4096 for define, most in LINKED.items()), found
