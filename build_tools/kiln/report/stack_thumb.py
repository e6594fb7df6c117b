"""Frames and calls of Thumb code, of Arm's M-profile. Source: Arm v8-M Architecture Reference Manual, C2."""

from __future__ import annotations

from typing import Any

_SP = 13
_ALIGNED = 64  # bytes by which a frame may grow where the stack pointer is rounded down


def read(code: Any, address: int, size: int) -> tuple[int, set[int], bool, set[int]]:
    """Bytes of the frame, addresses called, whether a pointer is called, numbers put together in registers.

    Raises ValueError where the stack pointer moves by a number that is not known.
    """
    frame, calls, by_pointer = 0, set(), False
    values: dict[int, int] = {}  # last constant of each register
    numbers: set[int] = set()
    at, end, before = address, address + size, (0, 0)
    while at < end:
        hole = next((last for first, last in code.data if first <= at < last), None)
        if hole is not None:
            at = hole
            continue
        one = int.from_bytes(code.read(at, 2), "little")
        wide = one >> 11 in (0b11101, 0b11110, 0b11111)
        two = int.from_bytes(code.read(at + 2, 2), "little") if wide else 0
        if one & 0xFF87 == 0x4685 and _is_difference(*before, one >> 3 & 15):  # mov sp, register
            raise ValueError("its size is not constant")
        frame += _wide_frame(one, two, values) if wide else _narrow_frame(one, values)
        target = _target(one, two, at) if wide else _narrow_target(one, at)
        links = wide and two & 0xD000 == 0xD000  # bl; other branches inside of the function are its own
        if target is not None and (links or not address <= target < end):
            calls.add(target)
        by_pointer |= not wide and one & 0xFF07 == 0x4700 and one != 0x4770  # bx, blx; not bx lr
        _constants(code, at, one, two, wide, values)
        numbers.update(values.values())
        at, before = at + (4 if wide else 2), (one, two)
    return frame, calls, by_pointer, numbers


def _is_difference(one: int, two: int, register: int) -> bool:
    """Whether an instruction subtracts one register from another into `register`."""
    if one & 0xFE00 == 0x1A00:  # subs
        return one & 7 == register
    return one & 0xFFE0 == 0xEBA0 and two >> 8 & 15 == register  # sub.w


def _narrow_frame(one: int, values: dict[int, int]) -> int:
    if one & 0xFE00 == 0xB400:  # push
        return 4 * (one & 0x1FF).bit_count()
    if one & 0xFF80 == 0xB080:  # sub sp, #
        return 4 * (one & 0x7F)
    if one & 0xFF87 == 0x4485:  # add sp, register: of a negative number, or the end of a frame
        source = one >> 3 & 15
        if source not in values:
            raise ValueError("its size is not constant")
        return max(0, (1 << 32) - values[source]) if values[source] >> 31 else 0
    return 0


def _wide_frame(one: int, two: int, values: dict[int, int]) -> int:
    if one == 0xE92D:  # push.w
        return 4 * two.bit_count()
    if one == 0xF84D and two & 0x0F00 == 0x0D00:  # str register, [sp, #-n]!
        return two & 0xFF
    if one == 0xE96D:  # strd registers, [sp, #-n]!
        return 4 * (two & 0xFF)
    if one & 0xFFBF == 0xED2D:  # vpush
        return 4 * (two & 0xFF)
    if two & 0x8F00 == 0x0D00 and one & 0xFBFF in (0xF1AD, 0xF2AD):  # sub.w, subw sp, sp, #
        number = (one & 0x0400) << 1 | (two & 0x7000) >> 4 | two & 0xFF
        return expanded(number) if one & 0xFBFF == 0xF1AD else number
    if one == 0xEBAD and two & 0x0F00 == 0x0D00:  # sub.w sp, sp, register
        if two & 15 not in values:
            raise ValueError("its size is not constant")
        return values[two & 15]
    if one == 0xF36F:  # bfc: a copy of the stack pointer is rounded down
        return _ALIGNED
    return 0


def expanded(number: int) -> int:
    """The 32-bit constant of a 12-bit "modified immediate" (ThumbExpandImm)."""
    low = number & 0xFF
    if number >> 10 == 0:
        return (low, low << 16 | low, low << 24 | low << 8, low * 0x01010101)[number >> 8 & 3]
    by = number >> 7
    value = 0x80 | number & 0x7F
    return (value >> by | value << (32 - by)) & 0xFFFFFFFF


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _target(one: int, two: int, at: int) -> int | None:
    """Address that bl, b.w or a conditional b.w branches to."""
    if one & 0xF800 != 0xF000 or two & 0x8000 == 0:
        return None
    sign, j1, j2 = one >> 10 & 1, two >> 13 & 1, two >> 11 & 1
    if two & 0x1000 or two & 0xD000 == 0xD000:  # bl, b.w
        i1, i2 = 1 - (j1 ^ sign), 1 - (j2 ^ sign)
        offset = sign << 24 | i1 << 23 | i2 << 22 | (one & 0x3FF) << 12 | (two & 0x7FF) << 1
        return int(at + 4 + _signed(offset, 25))
    if one >> 6 & 15 >= 14:  # no condition: a system instruction
        return None
    offset = sign << 20 | j2 << 19 | j1 << 18 | (one & 0x3F) << 12 | (two & 0x7FF) << 1
    return int(at + 4 + _signed(offset, 21))


def _narrow_target(one: int, at: int) -> int | None:
    if one >> 11 == 0b11100:
        return at + 4 + _signed((one & 0x7FF) << 1, 12)
    if one >> 12 == 0b1101 and one >> 8 & 15 < 14:
        return at + 4 + _signed((one & 0xFF) << 1, 9)
    return None


def _constants(code: Any, at: int, one: int, two: int, wide: bool, values: dict[int, int]) -> None:
    """Follow loads of constants into registers: movs, mov.w, movw, movt, and literals after the code."""
    if not wide:
        if one >> 11 == 0b00100:
            values[one >> 8 & 7] = one & 0xFF
        elif one >> 11 == 0b01001:
            place = (at + 4 & ~3) + 4 * (one & 0xFF)
            values[one >> 8 & 7] = int.from_bytes(code.read(place, 4), "little")
        return
    register = two >> 8 & 15
    number = (one & 0x0400) << 1 | (two & 0x7000) >> 4 | two & 0xFF
    if one & 0xFBF0 == 0xF240 and not two & 0x8000:  # movw
        values[register] = (one & 15) << 12 | number
    elif one & 0xFBF0 == 0xF2C0 and not two & 0x8000:  # movt
        values[register] = ((one & 15) << 12 | number) << 16 | values.get(register, 0) & 0xFFFF
    elif one & 0xFBFF == 0xF04F and not two & 0x8000:  # mov.w
        values[register] = expanded(number)
    elif one & 0xFF7F == 0xF85F:  # ldr.w register, [pc, #n]
        offset = two & 0xFFF if one & 0x80 else -(two & 0xFFF)
        values[two >> 12] = int.from_bytes(code.read((at + 4 & ~3) + offset, 4), "little")
