"""Types of arguments that are numbers."""

from __future__ import annotations

import argparse
import math


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN, which every comparison would let pass."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}', allowed: a finite number")
    return value


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    value = finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"'{text}', allowed: 0 or more")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}', allowed: a whole number of 1 or more")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}', allowed: a whole number") from None
