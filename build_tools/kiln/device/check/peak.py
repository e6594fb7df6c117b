"""Peak arithmetic rate of one core: programs/peak.c, which does only multiply-adds, run on the target."""

from __future__ import annotations

from pathlib import Path

from kiln.config import Target
from kiln.device.check.runners import Runner
from kiln.device.link import PROGRAMS, link, link_flags
from kiln.errors import KilnError
from kiln.toolchain import links_with_zig

_TIMEOUT = 60.0  # seconds; it takes less than one
# Kernels are compiled by LLVM; the C compiler's command may lack the flags for the vector unit, so they are
# added here, with the width in bits of a vector: of every compiler, of zig, and of others.
_FLAGS = {"sse4": "-msse4.2", "avx2": "-mavx2", "avx512": "-mavx512f", "sve": "-msve-vector-bits={bits}"}
_ZIG_FLAGS = {"sve": "-mcpu=generic+sve", "rvv": "-mcpu=baseline_rv64+v+zvl{bits}b"}
_OTHER_FLAGS = {"sve": "-march=armv8.2-a+sve", "rvv": "-march=rv64gcv_zvl{bits}b"}


def peak_program(target: Target, work: Path) -> Path:
    """Link the program that prints float32 GFLOP/s at the target's vector width; returns its path.

    Raises KilnError where it cannot be linked.
    """
    vector = target.vector
    tables = (_FLAGS, _ZIG_FLAGS if links_with_zig(target) else _OTHER_FLAGS)
    flags = [
        "-O2",
        "-ffp-contract=fast",  # a multiply-add where the processor has one
        *(table[vector.isa].format(bits=vector.bits) for table in tables if vector.isa in table),
        *(["-mfma"] if vector.fma and vector.isa in ("avx2", "avx512") else []),
        *link_flags(target, "none"),
        f"-DBITS={vector.bits}",
        f"-DREGISTERS={vector.registers}",
    ]
    return link(target, [PROGRAMS / "peak.c"], flags, work / "peak")


def measure_peak(target: Target, runner: Runner, work: Path) -> float:
    """Peak float32 GFLOP/s of one core of the machine behind `runner`.

    Raises KilnError where the program prints no number.
    """
    done = runner.run(peak_program(target, work), [], send={}, fetch={}, timeout=_TIMEOUT)
    try:
        return float(done.stdout)
    except ValueError:
        raise KilnError(f"{runner.description}: its peak cannot be measured, status {done.status}") from None
