"""Stack of a linked program without an operating system: the greatest depth of its call graph.

The depth of a function is its frame, and the greatest depth of the functions that it calls. Frames and calls
are read from machine code (report/stack_thumb.py, report/stack_riscv.py). A frame is the sum of all
instructions that move the stack pointer down, so branches with frames of their own are counted together. A
call through a pointer may reach every function whose address the program holds; a cycle of such calls is
followed once. All figures are therefore bounds from above, exact where none of this occurs.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from kiln.config.sizes import ceil_div
from kiln.errors import KilnError
from kiln.report import stack_riscv, stack_thumb

# By ELF machine: the reader of a function's code.
_READERS = {"EM_ARM": stack_thumb.read, "EM_RISCV": stack_riscv.read}


@dataclass
class LinkedCode:
    """A program's functions by address, and its memory."""

    machine: str
    functions: dict[int, tuple[str, int]] = field(default_factory=dict)  # address → name, bytes
    data: list[tuple[int, int]] = field(default_factory=list)  # ranges of constants inside of code
    sections: list[tuple[int, bytes, bool]] = field(default_factory=list)  # address, content, executable

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes of memory; fewer where no section holds them."""
        for start, content, _ in self.sections:
            if start <= address < start + len(content):
                return content[address - start : address - start + count]
        return b""


@dataclass
class Frame:
    """The stack of one function: its own bytes, the addresses that it calls, whether it calls by pointer.

    `addresses`: 32-bit numbers that the code loads in parts, which may be addresses of functions. `fault`:
    why the frame has no constant size.
    """

    bytes: int
    calls: set[int]
    by_pointer: bool
    addresses: set[int] = field(default_factory=set)
    fault: str = ""


@dataclass(frozen=True)
class Stack:
    """The greatest depth in bytes, and the frames of all functions that are reached, largest first."""

    bytes: int
    frames: list[tuple[str, int]]


def is_readable(arch: str) -> bool:
    """Whether the code of an architecture, by its name in targets, can be read."""
    return arch in ("arm_m", "riscv32")


def measure_stack(path: Path, roots: Sequence[str]) -> Stack:
    """The stack below a call of any of the functions `roots`, which the program must contain.

    Raises KilnError where the file cannot be read, a frame has no constant size, or a function calls itself.
    """
    try:
        with path.open("rb") as stream:
            code = _load(ELFFile(stream))
    except (OSError, ELFError) as error:
        raise KilnError(f"{path}: cannot be read as an ELF file: {error}") from error
    reader: Callable[[Any, int, int], tuple[int, set[int], bool, set[int]]] = _READERS[code.machine]
    frames: dict[int, Frame] = {}
    for address, (name, size) in code.functions.items():
        try:
            frames[address] = Frame(*reader(code, address, size))
        except ValueError as error:
            fault = f"{path.name}: stack of function '{name}': {error}"  # it may never be called
            frames[address] = Frame(0, set(), False, fault=fault)
    starts = {name: address for address, (name, _) in code.functions.items()}
    missing = [name for name in roots if name not in starts]
    if missing:
        raise KilnError(f"{path.name}: no function '{missing[0]}', whose stack is to be measured")
    address_taken = _taken(code, frames)
    depths: dict[int, int] = {}
    depth = max(_depth(code, frames, address_taken, starts[name], [], depths) for name in roots)
    reached = [(code.functions[at][0], frames[at].bytes) for at in {*depths, *address_taken}]
    return Stack(depth, sorted(reached, key=lambda row: (-row[1], row[0])))


def _depth(
    code: LinkedCode,
    frames: dict[int, Frame],
    taken: set[int],
    at: int,
    callers: list[int],
    known: dict[int, int],
) -> int:
    if at in known:
        return known[at]
    if at in callers:
        raise KilnError(f"stack: function '{code.functions[at][0]}' calls itself")
    frame, path = _sized(frames[at]), [*callers, at]
    # ARMv6-M jumps over more than 2 KB by the instruction of a call: one into the function itself is no call.
    calls = {target for target in frame.calls if target == at or _owner(code, target) != at}
    called = {owner for target in calls if (owner := _owner(code, target)) is not None}
    below = max((_depth(code, frames, taken, callee, path, known) for callee in called), default=0)
    pointed = (taken - set(path)) if frame.by_pointer else set()
    # A function reached by a pointer only may call back: a cycle of that kind is not followed.
    below = max([below, *(_plain_depth(code, frames, callee, set(path)) for callee in pointed)])
    known[at] = frame.bytes + below
    return known[at]


def _plain_depth(code: LinkedCode, frames: dict[int, Frame], at: int, callers: set[int]) -> int:
    """Depth below `at` by direct calls, without the functions `callers`."""
    called = {owner for target in frames[at].calls if (owner := _owner(code, target)) is not None}
    path = {*callers, at}
    return _sized(frames[at]).bytes + max(
        (_plain_depth(code, frames, callee, path) for callee in called - path), default=0
    )


def _sized(frame: Frame) -> Frame:
    """`frame` itself. Raises KilnError where its size is not known."""
    if frame.fault:
        raise KilnError(frame.fault)
    return frame


def _owner(code: LinkedCode, address: int) -> int | None:
    """The address of the function that contains `address`."""
    if address in code.functions:
        return address
    starts = sorted(code.functions)
    index = bisect.bisect_right(starts, address) - 1
    start = starts[index] if index >= 0 else None
    return start if start is not None and address < start + code.functions[start][1] else None


def _taken(code: LinkedCode, frames: dict[int, Frame]) -> set[int]:
    """Functions whose addresses the program's data contains or its code assembles."""
    bit = 1 if code.machine == "EM_ARM" else 0
    function_at = {address | bit: address for address in code.functions}
    taken_functions = {
        function_at[value] for frame in frames.values() for value in frame.addresses if value in function_at
    }
    for start, content, executable in code.sections:
        ranges = [(start, start + len(content))] if not executable else code.data
        for first, last in ranges:
            for address_of_word in range(
                ceil_div(max(first, start), 4) * 4, min(last, start + len(content)) - 3, 4
            ):
                value = int.from_bytes(
                    content[address_of_word - start : address_of_word - start + 4], "little"
                )
                if value in function_at:
                    taken_functions.add(function_at[value])
    return taken_functions


def _load(elf: Any) -> LinkedCode:
    code = LinkedCode(elf["e_machine"])
    if code.machine not in _READERS:
        raise ELFError(f"machine {code.machine}")
    for section in elf.iter_sections():
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC and section["sh_type"] != "SHT_NOBITS":
            executable = bool(section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR)
            code.sections.append((section["sh_addr"], section.data(), executable))
    table = elf.get_section_by_name(".symtab")
    marks: list[tuple[int, str]] = []
    for symbol in table.iter_symbols() if table is not None else ():
        value = symbol["st_value"]
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_size"]:
            code.functions[value & ~1 if code.machine == "EM_ARM" else value] = (
                symbol.name,
                symbol["st_size"],
            )
        elif symbol.name[:2] in ("$d", "$t", "$x", "$a"):
            marks.append((value, symbol.name[:2]))
    marks.sort()
    ends = [*[value for value, _ in marks[1:]], 1 << 32]
    code.data = [(value, end) for (value, kind), end in zip(marks, ends, strict=True) if kind == "$d"]
    return code
