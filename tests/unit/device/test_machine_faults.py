"""Failures of programs on emulated machines, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.device.check.runners import machine_faults
from kiln.device.check.runners.machine_faults import cause_in_words, fatal_line, missing_memory
from kiln.errors import KilnError


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


# What QEMU says of a machine's memory, by a program that counts how often it is asked.
ANSWER = """#!/bin/sh
echo asked >> "$0.log"
echo "  0000000000000000-{end:016x} (prio 0, ram): all"
"""


def test_a_machine_is_asked_for_its_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is kept for the program that gave it, and an answer without memory is not kept."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    target, program = load_target("cortex_m4"), tmp_path / "qemu"
    log = tmp_path / "qemu.log"

    def asked(end: int) -> str:
        program.write_text(ANSWER.format(end=end))
        program.chmod(0o755)
        for _ in range(2):
            machine_faults._memory_of.cache_clear()  # as in another process
            told = missing_memory(target, [str(program), "-M", "any"])
        return told

    assert asked(0xFFFFFFFF) == "" and log.read_text().count("asked") == 1
    assert "the machine has no memory at" in asked(0xFF) and log.read_text().count("asked") == 2
    program.write_text("#!/bin/sh\nexit 1\n")
    machine_faults._memory_of.cache_clear()
    assert missing_memory(target, [str(program), "-M", "any"]) == ""
    assert len(list((tmp_path / "cache/machines").iterdir())) == 2


@pytest.mark.parametrize(
    "told",
    [
        "unsupported machine type\nUse -machine help",
        "unable to find CPU model 'm99'",
        "-nope: invalid option",
    ],
)
def test_a_machine_that_qemu_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "qemu"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nqemu: {told}\nEND\nexit 1\n")
    program.chmod(0o755)
    machine_faults._memory_of.cache_clear()
    with pytest.raises(KilnError) as caught:
        missing_memory(load_target("cortex_m4"), [str(program), "-M", "any"])
    line = told.splitlines()[0]
    assert str(caught.value) == f"target 'cortex_m4': -M any (key 'emulator'): qemu: {line}"


def test_memory_behind_a_protection_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of mps2-an505 counts as memory although QEMU lists it as i/o, except for the missing range."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    ranges = {0x10000000: 0x107FFFFF, 0x38000000: 0x383FFFFF}
    lines = [f"  {first:016x}-{last:016x} (prio 0, i/o): tz-mpc-upstream" for first, last in ranges.items()]
    lines += ["  0000000080000000-0000000080ffffff (prio 0, ram): mps.ram"]
    program = tmp_path / "qemu"
    for present, message in ((lines, ""), (lines[1:], "no memory at 0x10000000 to 0x10400000")):
        program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(present) + "\nEND\n# " + message)
        program.chmod(0o755)
        machine_faults._memory_of.cache_clear()
        found = missing_memory(load_target("cortex_m33"), [str(program), "-M", "any"])
        assert bool(found) == bool(message) and message in found
