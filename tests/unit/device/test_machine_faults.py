"""Failures of programs on emulated machines, in words."""

from __future__ import annotations

import pytest
from kiln.device.check.runners.machine_faults import cause_in_words, fatal_line


@pytest.mark.parametrize(
    ("arch", "cause", "told"),
    [
        ("arm_m", 0x10000, "an instruction that the emulated CPU lacks"),
        ("arm_m", 0x8200, "an address without memory"),
        ("arm_m", 0x1000, "more stack than the machine has"),
        ("arm_m", 0x1000000, "an address that is not aligned"),
        ("arm_m", 0, ""),
        ("riscv32", 2, "an instruction that the emulated CPU lacks"),
        ("riscv32", 7, "an address without memory"),
        ("riscv32", 11, ""),
    ],
)
def test_the_cause_of_an_exception(arch: str, cause: int, told: str) -> None:
    words = cause_in_words(arch, f"some line\nexception at 0x8000, cause {cause:#x}\n")
    assert words.startswith(told) and bool(words) == bool(told)
    assert cause_in_words(arch, "arena: 4160 bytes needed, 4096 given") == ""


def test_the_line_of_qemu_that_says_why() -> None:
    lockup = "qemu: fatal: Lockup: can't escalate 3 to HardFault\n\nR00=00000000\nFPSCR: 00000000\n"
    assert fatal_line(lockup) == "qemu: fatal: Lockup: can't escalate 3 to HardFault"
    unknown = "qemu-system-arm: unsupported machine type\nUse -machine help to list supported machines\n"
    assert fatal_line(unknown) == "qemu-system-arm: unsupported machine type"
    assert fatal_line("first\nlast\n") == "last" and fatal_line("") == ""
