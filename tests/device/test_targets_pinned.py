"""Each target's compiler makes programs that its emulator runs; newer instructions fault there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kiln.config import Target, list_targets, load_target

SUMS = """
#include <stdint.h>
int main(int argc, char **argv) {
    (void)argv;
    int32_t sum = 0;
    for (int32_t i = 0; i < 64; i++) sum += (i + argc) * 3;
    return sum == 6240 ? 0 : 1;
}
"""
AVX2 = 'int main(void) { __asm__ volatile("vpabsb %ymm0, %ymm0"); return 0; }'
SDOT = (
    'int main(void) { __asm__ volatile(".arch_extension dotprod\\nsdot v0.4s, v1.16b, v2.16b"); return 0; }'
)
FMA = 'int main(void) { __asm__ volatile(".fpu neon-vfpv4\\nvfma.f32 q0, q1, q2"); return 0; }'


def run(target: Target, code: str, folder: Path) -> int:
    """Exit status of a static program of this code under the target's emulator."""
    assert target.emulator is not None
    assert target.c_compiler.target is not None
    emulator = shutil.which(target.emulator.command)
    if emulator is None:
        pytest.skip(f"{target.emulator.command} is not installed")
    (folder / "x.c").write_text(code, encoding="utf-8")
    # Without a sysroot of the target only a static program can be started, and glibc has none of those.
    triple = target.c_compiler.target.split(".")[0].replace("-gnu", "-musl")
    caches = {name: str(folder / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, *target.c_compiler.flags]
    command += ["-static", "-O1", str(folder / "x.c"), "-o", str(folder / "x")]
    subprocess.run(command, check=True, env={**os.environ, **caches}, capture_output=True)
    started = [emulator, *target.emulator.args, str(folder / "x")]
    result = subprocess.run(started, capture_output=True, text=True, check=False)
    assert "warning" not in result.stderr
    return result.returncode


EMULATED = [entry.name for entry in list_targets() if load_target(entry.name).emulator is not None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pinned")


@pytest.mark.parametrize("name", EMULATED)
def test_programs_run(name: str, folder: Path) -> None:
    assert run(load_target(name), SUMS, folder) == 0


@pytest.mark.parametrize(
    ("name", "code", "runs"),
    [
        ("x86_64", AVX2, True),
        ("x86_64_v2", AVX2, False),
        ("aarch64", SDOT, False),
        ("aarch64_a53", SDOT, False),
        ("aarch64_a76", SDOT, True),
        ("armv7", FMA, False),
    ],
)
def test_newer_instructions_fault(name: str, code: str, runs: bool, folder: Path) -> None:
    assert run(load_target(name), code, folder) == (0 if runs else -signal.SIGILL)
