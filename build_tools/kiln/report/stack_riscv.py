"""Frames and calls of RV32IMAC code. Source: The RISC-V Instruction Set Manual, volume I, 2 and 16."""

from __future__ import annotations

from typing import Any

from kiln.report.instruction_fields import signed

_RA, _SP, _T0, _FP = 1, 2, 5, 8


def read(code: Any, address: int, size: int) -> tuple[int, set[int], bool, set[int]]:
    """Bytes of the frame, called addresses, whether a pointer is called, constants built in registers.

    Raises ValueError where the stack pointer moves by a number that is not known.
    """
    reader = _RiscvReader(address, address + size)
    position = address
    while position < reader.end:
        word = int.from_bytes(code.read(position, 4), "little")
        if word & 3 == 3:
            reader.whole(word, position)
            position += 4
        else:
            reader.compressed(word & 0xFFFF, position)
            position += 2
    return reader.frame, reader.calls, reader.by_pointer, reader.numbers


class _RiscvReader:
    """The result of reading a function's code from `start` to `end`."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.frame, self.by_pointer = 0, False
        self.calls: set[int] = set()
        self.numbers: set[int] = set()
        self.values: dict[int, int] = {}  # last constant of each register

    def _moved(self, amount: int) -> None:
        self.frame += max(0, -amount)

    def _put(self, register: int, value: int) -> None:
        self.values[register] = value & 0xFFFFFFFF
        self.numbers.add(self.values[register])

    def _added(self, register: int) -> None:
        if register not in self.values:
            raise ValueError("its size is not constant")
        self._moved(signed(self.values[register], 32))

    def _goes(self, target: int, links: bool) -> None:
        """Record a jump as a call, unless it stays inside the function and does not link."""
        target &= 0xFFFFFFFF
        if links or not self.start <= target < self.end:
            self.calls.add(target)

    def whole(self, word: int, address: int) -> None:
        """Read an instruction of 32 bits."""
        opcode, to, first = word & 0x7F, word >> 7 & 31, word >> 15 & 31
        if opcode == 0x13 and word >> 12 & 7 == 0:  # addi
            number = signed(word >> 20, 12)
            if to == _SP and first == _SP:
                self._moved(number)
            elif first == 0:
                self._put(to, number)
            elif first in self.values:
                self._put(to, self.values[first] + number)
            else:
                self.values.pop(to, None)
        elif opcode == 0x33 and to == _SP:  # add, sub sp
            second = word >> 20 & 31
            if word >> 30 & 1 and second in self.values:
                self._moved(-signed(self.values[second], 32))
            else:
                self._added(second)
        elif opcode == 0x37:  # lui
            self._put(to, word & 0xFFFFF000)
        elif opcode == 0x17:  # auipc
            self._put(to, address + (word & 0xFFFFF000))
        elif opcode == 0x6F:  # jal
            offset = (word >> 31) << 20 | (word >> 12 & 0xFF) << 12 | (word >> 20 & 1) << 11
            self._goes(address + signed(offset | (word >> 21 & 0x3FF) << 1, 21), to != 0)
            self.values.pop(to, None)
        elif opcode == 0x67:  # jalr
            if first in self.values:
                self._goes(self.values[first] + signed(word >> 20, 12), to != 0)
            elif not (to == 0 and first in (_RA, _T0)):
                self.by_pointer = True
            self.values.pop(to, None)
        elif opcode not in (0x23, 0x27, 0x63):  # not a store or a branch: another value in `to`
            self.values.pop(to, None)

    def compressed(self, half: int, address: int) -> None:
        """Read an instruction of 16 bits."""
        kind, group, to = half >> 13, half & 3, half >> 7 & 31
        number = signed((half >> 12 & 1) << 5 | half >> 2 & 31, 6)
        if group == 1 and kind == 0:  # c.addi
            if to == _SP:
                self._moved(number)
            elif to in self.values:
                self._put(to, self.values[to] + number)
        elif group == 0 and kind == 2:  # c.lw
            self.values.pop(8 + (half >> 2 & 7), None)
        elif group == 1 and kind == 4:  # arithmetic
            self.values.pop(8 + (half >> 7 & 7), None)
        elif group == 1 and kind == 2:  # c.li
            self._put(to, number)
        elif group == 1 and kind == 3 and to == _SP:  # c.addi16sp
            bits = (half >> 12 & 1) << 9 | (half >> 3 & 3) << 7 | (half >> 5 & 1) << 6
            self._moved(signed(bits | (half >> 2 & 1) << 5 | (half >> 6 & 1) << 4, 10))
        elif group == 1 and kind == 3:  # c.lui
            self._put(to, number << 12)
        elif group == 1 and kind in (1, 5):  # c.jal, c.j
            offset = (half >> 12 & 1) << 11 | (half >> 8 & 1) << 10 | (half >> 9 & 3) << 8
            offset |= (half >> 6 & 1) << 7 | (half >> 7 & 1) << 6 | (half >> 2 & 1) << 5
            self._goes(address + signed(offset | (half >> 11 & 1) << 4 | (half >> 3 & 7) << 1, 12), kind == 1)
        elif group == 2 and kind == 4 and half >> 2 & 31 == 0 and to:  # c.jr, c.jalr
            is_call = half >> 12 & 1
            if to in self.values:
                self._goes(self.values[to], bool(is_call))
            elif is_call or to not in (_RA, _T0):
                self.by_pointer = True
            if is_call:
                self.values.pop(_RA, None)
        elif group == 2 and kind == 4 and half >> 12 & 1 and to == _SP:  # c.add sp, register
            self._added(half >> 2 & 31)
        elif group == 2 and kind == 4 and to == _SP and half >> 2 & 31 != _FP:  # c.mv sp, register
            raise ValueError("its size is not constant")
        elif group == 2 and kind in (0, 2, 4):  # a shift, a load from the stack, a sum or a copy
            self.values.pop(to, None)
