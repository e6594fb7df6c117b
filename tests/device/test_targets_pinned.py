"""Each target's compiler makes programs that its emulator runs; newer instructions fault there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kiln.config import list_targets, load_target

EMULATED = [
    target.name
    for target in (load_target(entry.name) for entry in list_targets())
    if target.emulator is not None and target.system.runner == "qemu_user"
]

# A program without a C library, which zig would have to build first: one instruction, then exit(0).
EXIT = {
    "x86_64": r"mov $60, %eax\nxor %edi, %edi\nsyscall",
    "aarch64": r"mov x0, #0\nmov x8, #93\nsvc #0",
    "riscv64": r"li a0, 0\nli a7, 93\necall",
    "armv7": r"mov r0, #0\nmov r7, #1\nsvc #0",
}
AVX2 = r"vpabsb %ymm0, %ymm0"
SSE42 = r"pcmpgtq %xmm0, %xmm0"
DOT = r".arch_extension dotprod\nsdot v0.4s, v1.16b, v2.16b"
NEON = r"vmla.f32 q0, q1, q2"
VECTORS = r".word 0x0c7072d7"  # vsetvli t0, zero, e8, mf2, ta, ma
DIVIDE = r".arch_extension idiv\nsdiv r1, r2, r3"


def run(name: str, instruction: str, folder: Path) -> int:
    """Exit status of the instruction's program under the target's emulator, negative for a signal."""
    target = load_target(name)
    assert target.emulator is not None
    assert target.c_compiler.target is not None
    emulator = shutil.which(target.emulator.command)
    if emulator is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    code = f'__attribute__((naked)) void _start(void) {{ __asm__("{instruction}\\n{EXIT[target.arch]}"); }}\n'
    (folder / "x.c").write_text(code, encoding="utf-8")
    caches = {key: str(folder / "zig") for key in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target.c_compiler.target]
    command += [
        *target.c_compiler.flags,
        "-nostdlib",
        "-static",
        "-o",
        str(folder / "x"),
        str(folder / "x.c"),
    ]
    done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    started = [emulator, *target.emulator.args, str(folder / "x")]
    result = subprocess.run(started, capture_output=True, text=True, check=False)
    assert "warning" not in result.stderr
    return result.returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pinned")


@pytest.mark.parametrize("name", EMULATED)
def test_programs_run(name: str, folder: Path) -> None:
    assert run(name, "nop", folder) == 0


@pytest.mark.parametrize(
    ("name", "instruction", "runs"),
    [
        ("x86_64", AVX2, True),
        ("x86_64_v2", SSE42, True),
        ("x86_64_v2", AVX2, False),
        ("aarch64", DOT, False),
        ("aarch64_a53", DOT, False),
        ("aarch64_a76", DOT, True),
        ("riscv64", VECTORS, False),
        ("armv7", NEON, True),
        ("armv7", DIVIDE, False),
    ],
)
def test_newer_instructions_fault(name: str, instruction: str, runs: bool, folder: Path) -> None:
    assert run(name, instruction, folder) == (0 if runs else -signal.SIGILL)
