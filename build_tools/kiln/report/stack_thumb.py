"""Frames and calls of Thumb code, of Arm's M-profile. Source: Arm v8-M Architecture Reference Manual, C2."""

from __future__ import annotations

from typing import Any

from kiln.report.instruction_fields import signed

_SP = 13
_ALIGNED = 64  # bytes by which a frame may grow where the stack pointer is rounded down


def read(code: Any, address: int, size: int) -> tuple[int, set[int], bool, set[int]]:
    """Bytes of the frame, addresses called, whether a pointer is called, numbers put together in registers.

    Raises ValueError where the stack pointer moves by a number that is not known.
    """
    frame, calls, by_pointer = 0, set(), False
    values: dict[int, int] = {}  # last constant of each register
    numbers: set[int] = set()
    position, end, before = address, address + size, (0, 0)
    while position < end:
        hole = next((last for first, last in code.data if first <= position < last), None)
        if hole is not None:
            position = hole
            continue
        first_half = int.from_bytes(code.read(position, 2), "little")
        wide = first_half >> 11 in (0b11101, 0b11110, 0b11111)
        two = int.from_bytes(code.read(position + 2, 2), "little") if wide else 0
        if first_half & 0xFF87 == 0x4685 and _is_difference(
            *before, first_half >> 3 & 15
        ):  # mov sp, register
            raise ValueError("its size is not constant")
        frame += _wide_frame(first_half, two, values) if wide else _narrow_frame(first_half, values)
        target = _target(first_half, two, position) if wide else _narrow_target(first_half, position)
        links = wide and two & 0xD000 == 0xD000  # bl; other branches inside of the function are its own
        if target is not None and (links or not address <= target < end):
            calls.add(target)
        by_pointer |= (
            not wide and first_half & 0xFF07 == 0x4700 and first_half != 0x4770
        )  # bx, blx; not bx lr
        _constants(code, position, first_half, two, wide, values)
        numbers.update(values.values())
        position, before = position + (4 if wide else 2), (first_half, two)
    return frame, calls, by_pointer, numbers


def _is_difference(first_half: int, two: int, register: int) -> bool:
    """Whether an instruction subtracts one register from another into `register`."""
    if first_half & 0xFE00 == 0x1A00:  # subs
        return first_half & 7 == register
    return first_half & 0xFFE0 == 0xEBA0 and two >> 8 & 15 == register  # sub.w


def _narrow_frame(first_half: int, values: dict[int, int]) -> int:
    if first_half & 0xFE00 == 0xB400:  # push
        return 4 * (first_half & 0x1FF).bit_count()
    if first_half & 0xFF80 == 0xB080:  # sub sp, #
        return 4 * (first_half & 0x7F)
    if first_half & 0xFF87 == 0x4485:  # add sp, register: of a negative number, or the end of a frame
        source = first_half >> 3 & 15
        if source not in values:
            raise ValueError("its size is not constant")
        return max(0, (1 << 32) - values[source]) if values[source] >> 31 else 0
    return 0


def _wide_frame(first_half: int, two: int, values: dict[int, int]) -> int:
    if first_half == 0xE92D:  # push.w
        return 4 * two.bit_count()
    if first_half == 0xF84D and two & 0x0F00 == 0x0D00:  # str register, [sp, #-n]!
        return two & 0xFF
    if first_half == 0xE96D:  # strd registers, [sp, #-n]!
        return 4 * (two & 0xFF)
    if first_half & 0xFFBF == 0xED2D:  # vpush
        return 4 * (two & 0xFF)
    if two & 0x8F00 == 0x0D00 and first_half & 0xFBFF in (0xF1AD, 0xF2AD):  # sub.w, subw sp, sp, #
        number = (first_half & 0x0400) << 1 | (two & 0x7000) >> 4 | two & 0xFF
        return expanded(number) if first_half & 0xFBFF == 0xF1AD else number
    if first_half == 0xEBAD and two & 0x0F00 == 0x0D00:  # sub.w sp, sp, register
        if two & 15 not in values:
            raise ValueError("its size is not constant")
        return values[two & 15]
    if first_half == 0xF36F:  # bfc: a copy of the stack pointer is rounded down
        return _ALIGNED
    return 0


def expanded(number: int) -> int:
    """The 32-bit constant of a 12-bit "modified immediate" (ThumbExpandImm)."""
    low_byte = number & 0xFF
    if number >> 10 == 0:
        return (low_byte, low_byte << 16 | low_byte, low_byte << 24 | low_byte << 8, low_byte * 0x01010101)[
            number >> 8 & 3
        ]
    by = number >> 7
    value = 0x80 | number & 0x7F
    return (value >> by | value << (32 - by)) & 0xFFFFFFFF


def _target(first_half: int, two: int, address: int) -> int | None:
    """Address that bl, b.w or a conditional b.w branches to."""
    if first_half & 0xF800 != 0xF000 or two & 0x8000 == 0:
        return None
    sign, j1, j2 = first_half >> 10 & 1, two >> 13 & 1, two >> 11 & 1
    if two & 0x1000 or two & 0xD000 == 0xD000:  # bl, b.w
        i1, i2 = 1 - (j1 ^ sign), 1 - (j2 ^ sign)
        offset = sign << 24 | i1 << 23 | i2 << 22 | (first_half & 0x3FF) << 12 | (two & 0x7FF) << 1
        return int(address + 4 + signed(offset, 25))
    if first_half >> 6 & 15 >= 14:  # no condition: a system instruction
        return None
    offset = sign << 20 | j2 << 19 | j1 << 18 | (first_half & 0x3F) << 12 | (two & 0x7FF) << 1
    return int(address + 4 + signed(offset, 21))


def _narrow_target(first_half: int, address: int) -> int | None:
    if first_half >> 11 == 0b11100:
        return address + 4 + signed((first_half & 0x7FF) << 1, 12)
    if first_half >> 12 == 0b1101 and first_half >> 8 & 15 < 14:
        return address + 4 + signed((first_half & 0xFF) << 1, 9)
    return None


def _constants(
    code: Any, address: int, first_half: int, two: int, wide: bool, values: dict[int, int]
) -> None:
    """Follow loads of constants into registers: movs, mov.w, movw, movt, and literals after the code."""
    if not wide:
        if first_half >> 11 == 0b00100:
            values[first_half >> 8 & 7] = first_half & 0xFF
        elif first_half >> 11 == 0b01001:
            literal_address = (address + 4 & ~3) + 4 * (first_half & 0xFF)
            values[first_half >> 8 & 7] = int.from_bytes(code.read(literal_address, 4), "little")
        return
    register = two >> 8 & 15
    number = (first_half & 0x0400) << 1 | (two & 0x7000) >> 4 | two & 0xFF
    if first_half & 0xFBF0 == 0xF240 and not two & 0x8000:  # movw
        values[register] = (first_half & 15) << 12 | number
    elif first_half & 0xFBF0 == 0xF2C0 and not two & 0x8000:  # movt
        values[register] = ((first_half & 15) << 12 | number) << 16 | values.get(register, 0) & 0xFFFF
    elif first_half & 0xFBFF == 0xF04F and not two & 0x8000:  # mov.w
        values[register] = expanded(number)
    elif first_half & 0xFF7F == 0xF85F:  # ldr.w register, [pc, #n]
        offset = two & 0xFFF if first_half & 0x80 else -(two & 0xFFF)
        values[two >> 12] = int.from_bytes(code.read((address + 4 & ~3) + offset, 4), "little")
