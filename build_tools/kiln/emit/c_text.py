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
    """The C type that holds one element."""
    return _type(dtype, where)[0]


def dl_type(dtype: str, where: str) -> str:
    """The initialiser of its DLDataType."""
    _, code, bits = _type(dtype, where)
    return f"{{{code}, {bits}, 1}}"


def element_bytes(dtype: str, where: str) -> int:
    """Bytes of one element."""
    return _type(dtype, where)[2] // 8


def element(dtype: str, one: bool) -> bytes:
    """The bytes of one element that is 0, or 1."""
    if not one:
        return bytes(_TYPES[dtype][2] // 8)
    return b"\x80\x3f" if dtype == "bfloat16" else np.ones(1, np.dtype(dtype).newbyteorder("<")).tobytes()


def _type(dtype: str, where: str) -> tuple[str, str, int]:
    if dtype not in _TYPES:
        raise KilnError(f"{where}: dtype '{dtype}', allowed: {', '.join(sorted(_TYPES))}")
    return _TYPES[dtype]


def check_name(name: str, where: str) -> str:
    """`name` if C and C++ can use it for a global symbol."""
    if not _NAME.fullmatch(name) or not can_name_symbol(name):
        raise KilnError(
            f"{where}: '{name}' cannot name a C symbol; allowed: letters, digits and _, no keyword or macro, "
            "no function of the C library, not kiln or kiln_*"
        )
    return name


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, followed by as many _ as keep it clear of `taken` and of the words that C and C++ reserve."""
    while name in taken or not can_name_variable(name):
        name += "_"
    return name


def string(text: str) -> str:
    """A string literal; whatever is not plain ASCII as octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def comment(text: str) -> str:
    """Text that can stand in a block comment on one line, and shows what it is in every editor.

    Control characters and marks of writing direction, which make code look like a comment, are escaped.
    """
    return printable(" ".join(text.replace("*/", "* /").replace("/*", "/ *").split()))


def real(value: float) -> str:
    """A float literal that reads back as the same float."""
    text = f"{np.float32(value):.9g}"
    return text + ("f" if any(mark in text for mark in ".en") else ".0f")


def size(value: int) -> str:
    """A size as an unsigned literal that C++ and the preprocessor take too."""
    return f"{value}u" if value < 2**32 else f"{value}ull"
