"""The depth of the stack, read from machine code, of programs whose frames are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kiln import toolchain
from kiln.errors import KilnError
from kiln.report.stack import measure_stack
from kiln.report.stack_thumb import expanded

PROGRAM = """
#define NOT_INLINE __attribute__((noinline))
NOT_INLINE void touch(volatile char *data) { data[0] = 1; }
NOT_INLINE int small(int x) { volatile char a[100]; touch(a); return a[0] + x; }
NOT_INLINE int large(int x) { volatile char a[5000]; touch(a); return small(a[0]) + x; }
NOT_INLINE int pointed(int x) { volatile char a[9000]; touch(a); return a[0] + x; }
int (*volatile chosen)(int) = pointed;
NOT_INLINE int direct(int x) { return large(x) * 3 + small(x); }
NOT_INLINE int by_pointer(int x) { return chosen(x) + 1; }
NOT_INLINE int leaf(int x) { return x + 1; }
NOT_INLINE int recursive(int x) { volatile char a[9]; touch(a); return x > 0 ? recursive(a[0]) + a[1] : 1; }
NOT_INLINE int variable(int x) { char a[x]; touch(a); return a[0]; }
NOT_INLINE int jumping(int x) { if (x > 0) __asm__ volatile("LINES"); return small(x) + 1; }
int main(int x, char **words) {
    (void)words;
    return direct(x) + by_pointer(x) + leaf(x) + EXTRA;
}
""".replace("LINES", r"nop\n" * 1500)
CORES = {
    "m0plus": ["thumb-freestanding-eabi", "-mcpu=cortex_m0plus"],
    "m55": ["thumb-freestanding-eabihf", "-mcpu=cortex_m55+fp_armv8d16+mve_fp"],
    "riscv32": ["riscv32-freestanding-none", "-mcpu=generic_rv32+m+a+c"],
}


def linked(folder: Path, core: str, extra: str = "0") -> Path:
    source, out = folder / "x.c", folder / f"{core}.elf"
    source.write_text(PROGRAM)
    target, cpu = CORES[core]
    words = ["-target", target, cpu, "-O1", "-g", "-fno-sanitize=undefined", "-ffreestanding", "-nostdlib"]
    words += [f"-DEXTRA={extra}", "-Wl,-e,main", "-Wl,--gc-sections", str(source), "-o", str(out)]
    toolchain.run([sys.executable, "-m", "ziglang", "cc", *words], "program")
    return out


@pytest.mark.parametrize("core", CORES)
def test_depths(core: str, tmp_path: Path) -> None:
    program = linked(tmp_path, core)
    for root, least in (("leaf", 0), ("small", 100), ("direct", 5100), ("by_pointer", 9000), ("main", 9000)):
        depth = measure_stack(program, [root]).bytes
        assert least <= depth <= least + (16 if root == "leaf" else 160), (root, depth)
    found = measure_stack(program, ["main"])
    assert found.frames[0][0] == "pointed" and found.frames[1][1] >= 5000
    with pytest.raises(KilnError, match="no function 'absent'"):
        measure_stack(program, ["absent"])


@pytest.mark.parametrize("core", CORES)
def test_a_jump_over_more_than_a_branch_reaches_is_no_call(core: str, tmp_path: Path) -> None:
    depth = measure_stack(linked(tmp_path, core, "jumping(x)"), ["jumping"]).bytes
    assert 100 <= depth <= 260


def test_depths_that_no_program_has(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match="function 'recursive' calls itself"):
        measure_stack(linked(tmp_path, "m0plus", "recursive(x)"), ["main"])
    for core in CORES:
        with pytest.raises(KilnError, match="stack of function 'variable': its size is not constant"):
            measure_stack(linked(tmp_path, core, "variable(x)"), ["main"])
    (tmp_path / "text").write_text("no program")
    with pytest.raises(KilnError, match="cannot be read as an ELF file"):
        measure_stack(tmp_path / "text", ["main"])


def test_constants_of_thumb_instructions() -> None:
    cases = {0x0AB: 0xAB, 0x1AB: 0x00AB00AB, 0x2AB: 0xAB00AB00, 0x3AB: 0xABABABAB, 0x47F: 0xFF000000}
    assert {number: expanded(number) for number in cases} == cases
    assert expanded(0xE7F) == 0xFF0 and expanded(0xF80) == 0x100
