"""Fields of instruction words, for the readers of machine code."""

from __future__ import annotations


def signed(value: int, bits: int) -> int:
    """The number whose lowest `bits` bits in two's complement are `value`."""
    return value - (1 << bits) if value >> (bits - 1) else value
