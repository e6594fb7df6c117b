"""Kernels of products of integers in a C program, whose results are compared bit by bit on any target.

Tensors end or begin at pages that may not be accessed, so that a read past either end stops the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kiln import toolchain
from kiln.config import Target, load_target
from kiln.device.check.host_cpu import obstacle
from kiln.device.check.runners import wasi
from kiln.device.check.runners.local import LocalRunner
from kiln.device.check.runners.qemu_user import open_runner

from .lowered import Array, Compiled

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


def _program(compiled: Compiled, cases: Sequence[tuple[Array, Array, Array]]) -> tuple[str, bytes]:
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


def own(name: str) -> Target:
    """The target `name`, of several variants the one that runs."""
    target = TARGETS[name]()
    return target.for_variant(VARIANT_OF.get(name, target.base))


def runner_of(target: Target) -> LocalRunner:
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


def differing(
    name: str, mod: tvm.IRModule, cases: Sequence[tuple[Array, Array, Array]], folder: Path
) -> set[int]:
    """The numbers of the products of `mod` whose results on the target `name` are not the expected ones.

    `cases`: of each product its left operand, its right operand and the result. Skips the test if this
    machine lacks an instruction. A kernel that reads or writes outside of its tensors fails the test.
    """
    target, runner = TARGETS[name](), runner_of(own(name))
    compiled = Compiled(mod, target, folder, variant=VARIANT_OF.get(name))
    text, blob = _program(compiled, cases)
    source, program, values = folder / "main.c", folder / "main", folder / "values"
    source.write_text(text)
    values.write_bytes(blob)
    flags = ["-std=c11", "-O2", "-Wall", "-Werror"]
    command = toolchain.oldest_cpu_command(target)
    given = [*flags, str(source), str(compiled.object), "-o", str(program)]
    toolchain.link(target, [*command, *given], "linking")
    done = runner.run(program, ["values"], send={"values": values}, fetch={}, timeout=300)
    lines = done.stdout.splitlines()
    assert done.status == 0 and lines and lines[-1] == "end", done.stdout + done.stderr
    return {int(line.split()[1]) for line in lines[:-1]}
