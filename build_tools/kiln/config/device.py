"""What Kiln has to know about one device: the typed form of devices/*.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from kiln.config.check import Section

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# Characters that end a line or drive a terminal have no business in a path or a name.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise ValueError(f"letters, digits, '.', '_' and '-' expected, got {value!r}")
    return value


def _folder(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError(f"a path without control characters expected, got {value!r}")
    head, *parts = value.split("/")
    if head not in ("", "~") or not parts:
        raise ValueError(f"a path from / or ~/ expected, got '{value}'")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"a path without empty parts, '.' and '..' expected, got '{value}'")
    return value


DeviceName = Annotated[
    str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})
]
DevicePath = Annotated[
    str, AfterValidator(_folder), WithJsonSchema({"type": "string", "pattern": "^~?(/[^/]+)+$"})
]


class Device(Section):
    """One device. `transport` has the keys of the file in device/deploy/transports/ that `kind` names."""

    name: DeviceName = Field(description="the device's name: that of its file")
    description: str = Field(description="which device it is, for people")
    target: DeviceName = Field(description="the target whose bundles it runs, unless target= says otherwise")
    folder: DevicePath = Field(default="~/kiln", description="where bundles live there")
    contents: Literal["all", "run"] = Field(
        default="all", description="run: leave out what only compilers and people read"
    )
    transport: Section = Field(description="how it is reached")
