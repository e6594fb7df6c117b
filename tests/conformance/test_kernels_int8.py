"""Convolutions and dense layers on 8-bit integers: every bit of the int32 sums, on every instruction set.

Tensors end or begin at pages that may not be accessed, so that a read past either end stops the program.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln import toolchain
from kiln.config import Target, load_target
from kiln.device.check.host_cpu import obstacle
from kiln.device.check.runners import wasi
from kiln.device.check.runners.local import LocalRunner
from kiln.device.check.runners.qemu_user import open_runner
from kiln.kernels.cpu.gemm_int8 import MatmulSize, integer_product, merged, narrow
from kiln.kernels.cpu.gemm_tile import Loop
from kiln.kernels.cpu.int8_packing import GROUP
from kiln.lower.pipeline import machine_of
from kiln.tir.builder import Machine

from .int8_cases import CASES, GRIDS, TILE_CASES, Case, data_of, expression_of, sums_of
from .lowered import Array, Compiled, module

# Targets that multiply by the same method divide the gate's cases of random numbers between them.
DIVIDED = {"x86_64": 0, "x86_64_v2": 1, "aarch64": 0, "armv7": 1, "avx_vnni": 0, "avx512_vnni": 1,
           "aarch64_a76": 0, "aarch64_i8mm": 1, "rvv128": 0, "rvv256": 1,
           "sve256": 0, "wasm32": 0}  # fmt: skip
_PROGRAM = """#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __wasm__
#include <stdlib.h>
#else
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static FILE *blob;

#ifdef __wasm__
/* `bytes` of memory, read if `fill`: a WebAssembly module has no pages that it may not touch. */
static void *fenced(long bytes, int last, int fill) {
  char *all = malloc(bytes + 64), *data = all + 64 - (unsigned long)all %% 64;
  (void)last;
  return fill && fread(data, 1, bytes, blob) != (size_t)bytes ? 0 : data;
}
#else
/* `bytes` of memory that begin (or, with `last`, end) where an untouchable page does; read if `fill`. */
static void *fenced(long bytes, int last, int fill) {
  long page = sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
  char *all = mmap(0, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *data = all + page + (last ? whole - bytes : 0);
  if (all == MAP_FAILED || mprotect(all + page, whole, PROT_READ | PROT_WRITE)) return 0;
  if (fill && fread(data, 1, bytes, blob) != (size_t)bytes) return 0;
  return data;
}
#endif

static int differs(const void *got, long bytes) {
  const char *data = got;
  int wrong = 0;
  for (long i = 0; i < bytes; i++) wrong += data[i] != (char)getc(blob);
  return wrong != 0;
}

%(prototypes)s
int main(int argc, char **argv) {
  blob = argc > 1 ? fopen(argv[1], "rb") : 0;
  if (!blob) return 2;
#ifdef __x86_64__
  syscall(SYS_arch_prctl, 0x1023, 18); /* the right to use tile registers, where there are any */
#endif
%(calls)s
  puts("end");
  return 0;
}
"""


def _bytes_of(compiled: Compiled, name: str) -> int:
    tensor = compiled.tensors[name]
    return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize


def _program(compiled: Compiled, cases: list[tuple[Array, Array, Array]]) -> tuple[str, bytes]:
    """C that runs each step twice, its tensors against the page before and after; the data it reads."""
    prototypes, calls, blob = set(), [], b""
    for number, (step, (x, right, want)) in enumerate(zip(compiled.steps, cases, strict=True)):
        source, weights, output, *scratch = step.args
        assert compiled.tensors[source].kind == "input" and output in step.writes
        packed = np.ascontiguousarray(compiled.result.params.get(weights, right))
        extent = f", 0, {step.extent}" if step.extent else ""
        types = ", ".join(["void *"] * len(step.args)) + (", int32_t, int32_t" if extent else "")
        sizes = [_bytes_of(compiled, str(name)) for name in scratch]
        prototypes.add(f"void {step.kernel}({types});\n")
        for last in (0, 1):
            aligned = int(last and packed.nbytes % 64 == 0)
            more = "".join(f", fenced({size}, {int(last and size % 64 == 0)}, 0)" for size in sizes)
            calls.append(
                f"  {{ void *x = fenced({x.nbytes}, {last}, 1), *w = fenced({packed.nbytes}, {aligned}, 1);\n"
                f"    void *y = fenced({want.nbytes}, {last}, 0);\n"
                f"    if (!x || !w || !y) return 3;\n"
                f"    {step.kernel}(x, w, y{more}{extent});\n"
                f'    if (differs(y, {want.nbytes})) puts("case {number} differs"); }}\n'
            )
            blob += x.tobytes() + packed.tobytes() + want.tobytes()
    return _PROGRAM % {"prototypes": "".join(sorted(prototypes)), "calls": "".join(calls)}, blob


def _x86(features: list[str], **vector: Any) -> Target:
    """The x86_64 target with more instructions."""
    target = load_target("x86_64")
    cpu = "x86-64-v4" if vector.get("bits") == 512 else target.cpu
    return target.model_copy(
        update={"cpu": cpu, "features": features, "vector": target.vector.model_copy(update=vector)}
    )


def _longer(target: Target) -> Target:
    """The target on a processor whose registers are longer than its kernels need."""
    assert target.emulator is not None
    emulator = target.emulator.model_copy(update={"args": ["-cpu", "max,sve1024=on"]})
    return target.model_copy(update={"emulator": emulator})


TARGETS = {
    "x86_64": lambda: load_target("x86_64"),
    "x86_64_v2": lambda: load_target("x86_64_v2"),
    "avx_vnni": lambda: _x86(["+avxvnni"], dot="vnni"),
    "avx512_vnni": lambda: _x86(["+avx512vnni"], isa="avx512", bits=512, registers=32, dot="vnni"),
    "amx": lambda: _x86(["+avx512vnni", "+amx-int8"], isa="avx512", bits=512, registers=32, dot="amx"),
    "avx512": lambda: _x86([], isa="avx512", bits=512, registers=32),
    "aarch64": lambda: load_target("aarch64"),
    "aarch64_a76": lambda: load_target("aarch64_a76"),
    "aarch64_i8mm": lambda: load_target("aarch64").for_variant("i8mm"),
    "sve256": lambda: load_target("aarch64_sve").with_variants(["sve256", "sve512"]),
    "sve256_longer": lambda: _longer(load_target("aarch64_sve").for_variant("sve256")),
    "sve512": lambda: load_target("aarch64_sve").for_variant("sve512"),
    "aarch64_dotprod": lambda: load_target("aarch64"),
    "aarch64_base": lambda: load_target("aarch64"),
    "armv7": lambda: load_target("armv7"),
    "wasm32": lambda: load_target("wasm32"),
    "rvv128": lambda: load_target("riscv64").with_variants(["rvv128", "rvv256"]),
    "rvv256": lambda: load_target("riscv64").for_variant("rvv256"),
    "rv64gc": lambda: load_target("riscv64"),
}
# The variant that runs, of a target whose last variant packs the weights for all of them.
VARIANT_OF = {
    "aarch64_dotprod": "dotprod", "aarch64_base": "base", "rvv128": "rvv128", "rv64gc": "rv64gc",
    "sve256": "sve256",
}  # fmt: skip
# The gate has other targets that multiply by the same method; for WebAssembly zig would build a C library.
# SSE 4.2 is in test_kernels_variants.py.
HEAVY = ("x86_64_v2", "avx_vnni", "avx512", "aarch64", "aarch64_dotprod", "aarch64_base", "rvv128", "rvv256",
         "rv64gc", "wasm32", "sve256", "sve256_longer", "sve512")  # fmt: skip


def _own(name: str) -> Target:
    """The target `name`, of several variants the one that runs."""
    target = TARGETS[name]()
    return target.for_variant(VARIANT_OF.get(name, target.base))


def _runner(target: Target) -> LocalRunner:
    if target.arch == "wasm32":
        return wasi.open_runner(target)
    if target.arch != "x86_64":
        assert target.emulator is not None
        # The kernels alone need the instructions, not an emulator that tells programs of them.
        emulator = target.emulator.model_copy(update={"since": None})
        return open_runner(target.model_copy(update={"emulator": emulator}))
    reason = obstacle(target)
    if reason is not None:
        pytest.skip(reason)
    return LocalRunner("here", [], {})


def _cases_of(name: str, grid: str) -> list[Case]:
    """The cases of a target: in the gate those of extreme numbers and its share of the others."""
    if name == "amx":
        return TILE_CASES if grid == "gate" else CASES
    shared = [case.x == case.w == "random" for case in GRIDS["gate"]]
    own = [not shared[i] or i % 2 == DIVIDED.get(name, i % 2) for i in range(len(shared))]
    if grid == "gate":
        return [case for case, mine in zip(GRIDS["gate"], own, strict=True) if mine]
    return GRIDS["rest"] + [case for case, mine in zip(GRIDS["gate"], own, strict=True) if not mine]


@pytest.mark.parametrize("grid", ["gate", pytest.param("rest", marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if name in HEAVY else name for name in TARGETS]
)
def test_sums_are_exact(name: str, grid: str, tmp_path: Path) -> None:
    target, cases = TARGETS[name](), _cases_of(name, grid)
    runner = _runner(_own(name))
    data = [data_of(case, seed) for seed, case in enumerate(cases)]
    given = [array for case, item in zip(cases, data, strict=True) for array in item[: 1 + case.runtime]]

    def body(*inputs: Any) -> list[Any]:
        rest = iter(inputs)
        return [
            expression_of(case, next(rest), next(rest) if case.runtime else w)
            for case, (_, w) in zip(cases, data, strict=True)
        ]

    compiled = Compiled(
        module([(one.shape, one.dtype.name) for one in given], body),
        target,
        tmp_path,
        variant=VARIANT_OF.get(name),
    )
    expected = [sums_of(case, *item) for case, item in zip(cases, data, strict=True)]
    text, blob = _program(compiled, [(*item, want) for item, want in zip(data, expected, strict=True)])
    source, program, values = tmp_path / "main.c", tmp_path / "main", tmp_path / "values"
    source.write_text(text)
    values.write_bytes(blob)
    flags = ["-std=c11", "-O2", "-Wall", "-Werror"]
    command = toolchain.oldest_cpu_command(target)
    given = [*flags, str(source), str(compiled.object), "-o", str(program)]
    toolchain.link(target, [*command, *given], "linking")
    done = runner.run(program, ["values"], send={"values": values}, fetch={}, timeout=300)
    differing = {cases[int(line.split()[1])] for line in done.stdout.splitlines() if "differs" in line}
    assert not differing
    assert done.status == 0 and done.stdout == "end\n", done.stdout + done.stderr


def _machine(name: str) -> Machine:
    return machine_of(_own(name), "pthread")


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("x86_64", ("sign", None)),
        ("x86_64_v2", ("sign", None)),
        ("avx_vnni", ("vnni", "vnni")),
        ("avx512_vnni", ("vnni", "vnni")),
        ("amx", ("vnni", "vnni")),
        ("avx512", ("sign", None)),
        ("aarch64", ("mull", "mull")),
        ("aarch64_a76", ("sdot", "sdot")),
        ("aarch64_i8mm", ("smmla", "smmla")),
        ("sve256", ("sdot", "sdot")),
        ("armv7", ("mull", "mull")),
        ("rvv128", (None, None)),
        ("wasm32", ("dot", "dot")),
    ],
)
def test_the_method_follows_from_the_target(name: str, methods: tuple[str | None, str | None]) -> None:
    """With weights above -128, and with -128 among them."""
    found = [
        integer_product(_machine(name), ("int8", "int8"), small, MatmulSize(9, 20, [Loop(64, 1)], 9))
        for small in (True, False)
    ]
    assert tuple(item and item.method for item in found) == methods


def test_what_is_left_to_the_general_product() -> None:
    machine = _machine("x86_64")

    def found(dtypes: tuple[str, str], depth: int) -> object:
        size = MatmulSize(9, 20, [Loop(3, 90), Loop(depth, 1)], 9)
        return integer_product(machine, dtypes, True, size)

    assert found(("int8", "int8"), GROUP) is not None
    assert found(("uint8", "int8"), GROUP) is not None
    assert found(("int8", "int8"), GROUP - 1) is None
    assert found(("int8", "int16"), GROUP) is None
    assert found(("float32", "float32"), GROUP) is None


def test_runs_join_the_loops_that_lie_together() -> None:
    """An NHWC image of 10 columns by 4 channels under a 3x3 kernel; then one as wide as the image."""
    assert merged([Loop(3, 40), Loop(3, 4), Loop(4, 1)]) == (Loop(3, 40), Loop(12, 1))
    assert merged([Loop(3, 80), Loop(3, 8), Loop(4, 1)]) == (Loop(3, 80), Loop(3, 8), Loop(4, 1))
    assert merged([Loop(3, 40), Loop(10, 4), Loop(4, 1)]) == (Loop(120, 1),)
    assert merged([Loop(1, 40), Loop(1, 4), Loop(4, 1)]) == (Loop(4, 1),)
    assert merged([Loop(1, 1)]) == (Loop(1, 1),)


def test_narrow_weights() -> None:
    assert narrow(np.array([-127, 127], "int8"))
    assert not narrow(np.array([-128, 127], "int8"))
    assert not narrow(np.array([0], "int16"))
    assert not narrow(np.array([0.0], "float32"))
