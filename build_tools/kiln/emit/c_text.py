"""Values as C source: names, strings, numbers, comments, element types."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

from kiln.config.c_words import can_name_symbol, can_name_variable
from kiln.errors import KilnError, printable

# dtype → C type, DLPack's type code, bits
_TYPES = {
    "bool": ("uint8_t", "kDLBool", 8),
    "float16": ("uint16_t", "kDLFloat", 16),
    "bfloat16": ("uint16_t", "kDLBfloat", 16),
    "float32": ("float", "kDLFloat", 32),
    "float64": ("double", "kDLFloat", 64),
    **{f"int{bits}": (f"int{bits}_t", "kDLInt", bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (f"uint{bits}_t", "kDLUInt", bits) for bits in (8, 16, 32, 64)},
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def c_type(dtype: str, where: str) -> str:
    """C type of one element of `dtype`. Raises KilnError, starting with `where`, for an unknown dtype."""
    return _type(dtype, where)[0]


def dl_type(dtype: str, where: str) -> str:
    """C initialiser of the DLDataType for `dtype`. Raises KilnError for an unknown dtype."""
    _, code, bits = _type(dtype, where)
    return f"{{{code}, {bits}, 1}}"


def element_bytes(dtype: str, where: str) -> int:
    """Size in bytes of one element of `dtype`. Raises KilnError for an unknown dtype."""
    return _type(dtype, where)[2] // 8


def element(dtype: str, is_one: bool) -> bytes:
    """Little-endian bytes of one element of `dtype`: 1 if `is_one`, else 0."""
    if not is_one:
        return bytes(_TYPES[dtype][2] // 8)
    return b"\x80\x3f" if dtype == "bfloat16" else np.ones(1, np.dtype(dtype).newbyteorder("<")).tobytes()


def _type(dtype: str, where: str) -> tuple[str, str, int]:
    if dtype not in _TYPES:
        raise KilnError(f"{where}: dtype '{dtype}', allowed: {', '.join(sorted(_TYPES))}")
    return _TYPES[dtype]


def check_name(name: str, where: str) -> str:
    """Return `name` if it can name a global symbol in C and C++. Raises KilnError if it cannot."""
    if not _NAME.fullmatch(name) or not can_name_symbol(name):
        raise KilnError(
            f"{where}: '{name}' cannot name a C symbol; allowed: letters, digits and _, no keyword or macro, "
            "no function of the C library, not kiln or kiln_*"
        )
    return name


def free_name(name: str, used_names: Collection[str]) -> str:
    """`name`, with underscores appended until it is not in `used_names` and not reserved in C or C++."""
    while name in used_names or not can_name_variable(name):
        name += "_"
    return name


def string(text: str) -> str:
    """C string literal of `text`; bytes other than printable ASCII become octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def comment(text: str) -> str:
    """`text` on one line, safe inside a block comment.

    Control characters and bidirectional marks, which can make code look like a comment, are escaped.
    """
    return printable(" ".join(text.replace("*/", "* /").replace("/*", "/ *").split()))


def real(value: float) -> str:
    """C literal of type float that reads back as the float32 nearest to `value`."""
    text = f"{np.float32(value):.9g}"
    return text + ("f" if any(mark in text for mark in ".en") else ".0f")


def size(value: int) -> str:
    """Unsigned C literal of a size, valid in C++ and in the preprocessor too."""
    return f"{value}u" if value < 2**32 else f"{value}ull"
