"""Types of values that several sections share: byte sizes, hashes, positive numbers, enumerations."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from kiln.limits import UNITS

_SIZE = r"^([0-9]+) ?(B|KiB|MiB|GiB|kB|MB)$"


def _bytes(value: Any) -> Any:
    match = re.fullmatch(_SIZE.strip("^$"), value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise ValueError(f"a number of bytes expected, such as 32768 or 32KiB, got '{value}'")
    return int(match[1]) * UNITS[match[2]] if match else value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(
            f"64 lower-case hexadecimal digits expected, got '{value[:12]}' of {len(value)} characters"
        )
    return value


def _web_address(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]\S*", value):
        raise ValueError(f"an address such as https://example.com/net expected, got '{value}'")
    return value


Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _SIZE}]}),
]
Sha256 = Annotated[
    str, AfterValidator(_sha256), WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"})
]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Threads = Literal["pthread", "none"]
Storage = Literal["embedded", "section", "file"]
WebAddress = Annotated[
    str,
    AfterValidator(_web_address),
    WithJsonSchema({"type": "string", "pattern": r"^https?://[^\s/]\S*$"}),
]
