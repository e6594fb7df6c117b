"""Convolutions and dense layers on 8- and 16-bit integers on microcontrollers: all bits of the sums, in QEMU.

Where the machine has a separate region of memory, x is at its end and then at its beginning: a read past
either end stops the program.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from kiln.config import Target, load_target
from kiln.device import bare
from kiln.device.check.runners import runner_for
from kiln.device.link import link, link_flags
from kiln.kernels.cpu.dot_packing import Slot, slots_of

from .int8_cases import Case, data_of, expression_of, sums_of
from .lowered import Array, Compiled, module


def _cases() -> Iterator[Case]:
    # Reductions of more values than the 24 bits of a shared sum hold, at their greatest magnitudes.
    for number, (x, w) in enumerate(itertools.product(("least", "most"), ("least", "most", "wide"))):
        yield Case((1, 1100), (1100, 5), ("int8", "uint8")[number % 2], x=x, w=w, heavy=number > 2)
        yield Case((1, 5, 4, 67), (3, 3, 67, 6), ("uint8", "int8")[number % 2], x=x, w=w, heavy=number < 3)
    yield Case((3, 520), (520, 4), x="least", w="most")
    # One row whose blocks are a loop, of an even and an odd number of them.
    yield Case((1, 257), (257, 8), w="wide")
    yield Case((1, 176), (176, 5))
    yield Case((1, 103), (103, 4), "int16")
    # Eight columns and more, which cores with few registers compute by bytes.
    yield Case((1, 300), (300, 9), x="least", w="most")
    yield Case((2, 5, 6, 7), (3, 2, 7, 10), "uint8", x="most", w="wide")
    # Short reductions, and runs of every length up to two quads or vectors and more.
    yield Case((1, 9, 9, 1), (3, 3, 1, 7), stride=2)
    yield Case((1, 9, 9, 1), (3, 3, 1, 4), "uint8", w="wide")
    yield Case((1, 6, 150, 1), (3, 3, 1, 4))  # rows too far apart for offsets of one byte
    # Groups of few channels: the values of each row of the kernel are a vector, of the larger kernel two.
    yield Case((1, 6, 40, 8), (3, 3, 4, 8), groups=2, w="wide")
    yield Case((1, 7, 30, 12), (5, 5, 4, 21), groups=3, heavy=True)
    yield Case((1, 6, 70, 8), (3, 3, 2, 24), stride=2, groups=4, heavy=True)
    yield Case((1, 12, 10, 1), (10, 4, 1, 6), stride=2)  # three vectors of four rows each
    yield Case((1, 6, 7, 3), (3, 3, 3, 5), stride=2)
    yield Case((1, 11, 9, 2), (5, 5, 2, 3), dilation=2, w="wide", heavy=True)
    yield Case((1, 5, 90, 3), (3, 3, 3, 5), heavy=True)  # rows too far apart for one vector
    yield Case((1, 5, 5, 3), (1, 1, 3, 8))
    yield Case((2, 5, 5, 8), (1, 1, 8, 3), "uint8")
    # int16: runs of every rest of a quad and a vector, short reductions, and the greatest sums.
    yield Case((1, 500), (500, 5), "int16", x="least", w="wide")
    yield Case((3, 37), (37, 4), "int16")
    yield Case((1, 5, 4, 19), (3, 3, 19, 6), "int16")
    yield Case((1, 9, 9, 1), (3, 3, 1, 7), "int16", stride=2)
    yield Case((1, 6, 7, 3), (3, 3, 3, 5), "int16", stride=2)
    yield Case((1, 5, 5, 5), (2, 2, 5, 3), "int16", dilation=2)
    for depth in (2, 3, 6, 8, 9, 10, 15):
        yield Case((2, depth), (depth, 3), "int16", heavy=depth % 4 == 2)
    rng = np.random.default_rng(7)
    for number, depth in enumerate((2, 3, 5, 6, 7, 13, 16, 17, 19, 32, 33)):
        size, stride, dilation = (int(n) for n in rng.integers([2, 1, 1], [4, 3, 3]))
        columns, groups = int(rng.integers(1, 12)), 2 if number == 4 else 1
        least = (size - 1) * dilation + 1
        height, width = (least + int(n) for n in rng.integers(0, 5, 2))
        yield Case(
            (1, height, width, depth * groups), (size, size, depth, columns * groups),
            ("int8", "uint8")[number % 2], stride, dilation, groups, heavy=number % 4 not in (0, 3),
        )  # fmt: skip
        yield Case(
            (1 + number % 2, depth), (depth, columns), w=("random", "wide")[number % 2], heavy=number % 5 > 0
        )


CASES = list(_cases())
GATE = [case for case in CASES if not case.heavy]

_LIMIT = 900  # seconds of a run in QEMU, which only a hang takes
_PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static FILE *blob;
static _Alignas(64) char memory[2][1 << 17];

static void *given(char *at, long bytes) {
    return fread(at, 1, (size_t)bytes, blob) == (size_t)bytes ? at : 0;
}

static int differs(const char *data, long bytes) {
    char want[64];
    int wrong = 0;
    for (long i = 0; i < bytes; i += 64) {
        const long part = bytes - i < 64 ? bytes - i : 64;
        wrong |= !given(want, part) || memcmp(data + i, want, (size_t)part) != 0;
    }
    return wrong;
}

%(prototypes)s
int main(int argc, char **argv) {
    blob = argc > 1 ? fopen(argv[1], "rb") : 0;
    if (!blob) return 2;
%(calls)s
    printf("end\\n");
    return 0;
}
"""


def _program(compiled: Compiled, cases: Sequence[tuple[Array, Array]]) -> tuple[str, bytes]:
    """C that runs each step twice, x at the end and at the beginning of a region; the data that it reads."""
    region = next(r for r in compiled.target.memory or () if "heap" in r.holds)
    prototypes, calls, blob = set(), [], b""
    for number, (step, (x, want)) in enumerate(zip(compiled.steps, cases, strict=True)):
        *_, output = step.args
        assert output in step.writes and not step.extent and want.nbytes <= 1 << 17
        arguments, reads, packed, used = [], "", b"", 0
        for name in step.args[:-1]:
            if compiled.tensors[name].kind == "input":
                arguments.append("x")
                continue
            data = np.ascontiguousarray(compiled.result.params[name]).tobytes()
            arguments.append(f"memory[0] + {used}")
            reads += f" || !given(memory[0] + {used}, {len(data)})"
            packed, used = packed + data, used + -(-len(data) // 64) * 64
        assert used <= 1 << 17
        prototypes.add(f"void {step.kernel}({', '.join(['void *'] * len(step.args))});\n")
        for place in (region.origin + region.bytes - x.nbytes, region.origin):
            calls.append(
                f"    {{ void *x = given((char *){place:#x}u, {x.nbytes});\n"
                f"      if (!x{reads}) return 3;\n"
                f"      {step.kernel}({', '.join(arguments)}, memory[1]);\n"
                f'      if (differs(memory[1], {want.nbytes})) printf("case {number} differs\\n"); }}\n'
            )
            blob += x.tobytes() + packed + want.tobytes()
    return _PROGRAM % {"prototypes": "".join(sorted(prototypes)), "calls": "".join(calls)}, blob


def run_steps(
    mod: tvm.IRModule, expected: Sequence[tuple[Array, Array]], target: Target, folder: Path
) -> set[str]:
    """Compare the outputs of `mod`, each of one step, with numpy on the target's machine.

    `expected`: input and output of each step. Returns the families of the kernels.
    """
    assert target.emulator is not None
    if shutil.which(target.emulator.command) is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    compiled = Compiled(mod, target, folder, threads="none")
    source, blob = folder / "program.c", folder / "blob"
    text, data_read = _program(compiled, expected)
    source.write_text(text)
    blob.write_bytes(data_read)
    parts = bare.parts(target, folder)
    # As Bundle.link_program has them: for other flags zig makes its library of functions again.
    flags = ["-Os", "-g", *link_flags(target, "none", entry=None), *parts.flags]
    program = link(
        target,
        [source, compiled.object, *parts.sources],
        flags,
        folder / "work" / "program",
        include=parts.include,
    )
    done = runner_for(target).run(program, ["blob"], send={"blob": blob}, fetch={}, timeout=_LIMIT)
    assert (done.status, done.stdout) == (0, "end\n"), done.stdout + done.stderr
    return set(compiled.families)


def run_cases(target: Target, cases: list[Case], folder: Path) -> set[str]:
    """Compare the sums of all cases with numpy on the target's machine; returns the kernels' families.

    But for uint8 with Helium, which is moved to int8 in a step of its own: see test_signed_tensors.py.
    """
    if target.vector.isa == "mve":
        cases = [case for case in cases if case.dtype != "uint8"]
    data = [data_of(case, seed) for seed, case in enumerate(cases)]
    shapes = [(case.shape, case.dtype) for case in cases]
    mod = module(
        shapes,
        lambda *xs: [expression_of(*item) for item in zip(cases, xs, [w for _, w in data], strict=True)],
    )
    expected = [(x, sums_of(case, x, w)) for case, (x, w) in zip(cases, data, strict=True)]
    return run_steps(mod, expected, target, folder)


def _target(name: str) -> Target:
    """A target, on a board that has a region apart from its variables: small cores' code runs on others.

    Skips the test where there is none.
    """
    target, board = load_target(name), load_target("cortex_m3" if name == "cortex_m0plus" else name)
    assert board.memory is not None
    if all("heap" not in region.holds or "data" in region.holds for region in board.memory):
        pytest.skip("the machine has no region apart from its variables")
    return target.model_copy(update={"emulator": board.emulator, "memory": board.memory})


@pytest.mark.parametrize("name", ["cortex_m0plus", "cortex_m4", "cortex_m55"])
def test_sums_are_exact(name: str, tmp_path: Path) -> None:
    assert run_cases(_target(name), GATE, tmp_path) == {"conv2d"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["cortex_m0plus", "cortex_m3", "cortex_m4", "cortex_m55", "riscv32_imac"])
def test_sums_of_all_cases_are_exact(name: str, tmp_path: Path) -> None:
    run_cases(_target(name), CASES, tmp_path)


def test_the_rest_of_a_run() -> None:
    """Every value of k is in one slot, and bytes are read of the run alone."""
    for run in range(1, 40):
        quads, rest = slots_of(run)
        assert all(slot.word == -1 or 0 <= slot.word <= run - 4 for slot in rest)
        found = [k for slot in rest for k in (slot.first, slot.second) if k >= 0]
        assert sorted([*range(4 * quads), *found]) == list(range(run))
        for number, slot in enumerate(rest):
            if slot.word >= 0:
                places = (slot.word + number, slot.word + number + 2)
                assert all(
                    k in (-1, place) for k, place in zip((slot.first, slot.second), places, strict=True)
                )
        quads, rest = slots_of(run, wide=True)
        found = [k for slot in rest for k in (slot.first, slot.second) if k >= 0]
        assert [*range(4 * quads), *found] == list(range(run))
        assert all(slot.second in (-1, slot.first + 1) for slot in rest)
    assert slots_of(3) == (0, [Slot(0, 1), Slot(2, -1)])
