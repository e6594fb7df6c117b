"""Explains why a program without an operating system failed on an emulated machine.

A program that ends at an exception says its address and cause (programs/bare). One whose memory does not
exist cannot even say that, or never ends. So QEMU is asked before what memory the machine has.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kiln.config import Target
from kiln.config.memory import Region
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.paths import cache_dir

_EXCEPTION = re.compile(r"exception at 0x[0-9a-f]+, cause 0x([0-9a-f]+)")
_FATAL = re.compile(r"\bfatal\b|unsupported|unable|can only be used|invalid option", re.IGNORECASE)
# What QEMU says where it starts no machine, whatever the program.
_NO_MACHINE = re.compile(
    r"unsupported machine type|unable to find CPU model|can only be used with CPU|invalid option"
)
_LACKING = "an instruction that the emulated CPU lacks: compare keys 'cpu', 'features' and 'emulator'"
_NOTHING = "an address without memory: compare key 'memory' with the machine"
_STACK = "more stack than the machine has: key 'memory'"
_ALIGNED = "an address that is not aligned"
# Of Arm's CFSR: the number of a bit → what it stands for. https://developer.arm.com/documentation/ddi0403
_BITS = {
    0: _NOTHING, 1: _NOTHING, 4: _STACK, 8: _NOTHING, 9: _NOTHING, 10: _NOTHING, 12: _STACK,
    16: _LACKING, 17: "a jump to code that is not Thumb code", 19: _LACKING, 20: _STACK, 24: _ALIGNED,
}  # fmt: skip
# Of RISC-V's mcause.
_CAUSES = {0: _ALIGNED, 1: _NOTHING, 2: _LACKING, 4: _ALIGNED, 5: _NOTHING, 6: _ALIGNED, 7: _NOTHING}
# Of memory, and of memory behind a protection controller of TrustZone, which QEMU calls i/o.
_RANGE = re.compile(
    r"^\s*([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, (?:(?:ram|rom|romd|nv-ram)\)|i/o\): tz-mpc-upstream$)",
    re.MULTILINE,
)
_QUESTION = "info mtree -f\nquit\n"
_LIMIT = 20.0  # seconds for QEMU's answer


def cause_in_words(arch: str, text: str) -> str:
    """The cause of the exception in `text`, a program's last output, in words; empty if it is not known."""
    match = _EXCEPTION.search(text)
    if match is None:
        return ""
    cause = int(match[1], 16)
    if arch == "arm_m":
        return next((words for bit, words in _BITS.items() if cause >> bit & 1), "")
    return _CAUSES.get(cause, "")


def fatal_line(stderr: str) -> str:
    """The line of QEMU's output with the reason of its end; the last line if none has a reason."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return next((line for line in lines if _FATAL.search(line)), lines[-1] if lines else "")


def missing_memory(target: Target, command: Sequence[str]) -> str:
    """The region of the target's memory that the machine of QEMU's `command` lacks, as text; or empty.

    Raises KilnError where QEMU lacks the machine or its CPU.
    """
    try:
        has = _memory_of(tuple(command))
    except KilnError as error:
        raise KilnError(f"target '{target.name}': {error}") from None
    for region in target.memory or [] if has else []:
        if not _covered(region, has):
            places = ", ".join(f"{first:#x} to {end:#x}" for first, end in has)
            return (
                f"the machine has no memory at {region.origin:#x} to {region.end:#x} for region "
                f"'{region.name}' (key 'memory'); it has {places}"
            )
    return ""


@functools.cache
def _memory_of(command: tuple[str, ...]) -> list[tuple[int, int]]:
    """First address and end of each range of the machine's memory, sorted; none where QEMU does not say.

    The answer is kept in the user's cache for the machine and the program that has given it.
    """
    program = Path(shutil.which(command[0]) or command[0])
    try:
        facts = program.stat()
    except OSError:
        return []
    identity = repr((str(program), facts.st_size, facts.st_mtime_ns, command[1:], _RANGE.pattern))
    cache_file = cache_dir() / "machines" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
    try:
        return [(first, end) for first, end in read_json(cache_file)]
    except (KilnError, TypeError, ValueError):
        pass  # not asked before, or not a file of ours
    ranges = _memory_ranges(command)
    if ranges:
        with contextlib.suppress(KilnError):  # a cache that cannot be written
            write_json(cache_file, ranges)
    return ranges


def _memory_ranges(command: tuple[str, ...]) -> list[tuple[int, int]]:
    """Ask QEMU for the ranges of `_memory_of`. Raises KilnError if QEMU lacks the machine or its CPU."""
    words = ["-display", "none", "-serial", "none", "-monitor", "stdio", "-S"]
    try:
        done = subprocess.run(
            [*command, *words], input=_QUESTION, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    fatal = fatal_line(done.stderr)
    if done.returncode != 0 and _NO_MACHINE.search(fatal):
        raise KilnError(f"{' '.join(command[1:])} (key 'emulator'): {fatal}")
    ranges = sorted({(int(first, 16), int(last, 16) + 1) for first, last in _RANGE.findall(done.stdout)})
    merged: list[tuple[int, int]] = []
    for first, end in ranges:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def _covered(region: Region, has: Sequence[tuple[int, int]]) -> bool:
    return any(first <= region.origin and region.end <= end for first, end in has)
