"""Configuration of a device: the typed form of devices/*.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from kiln.config.check import Section
from kiln.config.source import CONTROL

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise ValueError(f"letters, digits, '.', '_' and '-' expected, got {value!r}")
    return value


def _folder(value: str) -> str:
    if CONTROL.search(value):
        raise ValueError(f"a path without control characters expected, got {value!r}")
    head, *folders = value.split("/")
    if head not in ("", "~") or not folders:
        raise ValueError(f"a path from / or ~/ expected, got '{value}'")
    if any(folder in ("", ".", "..") for folder in folders):
        raise ValueError(f"a path without empty parts, '.' and '..' expected, got '{value}'")
    return value


DeviceName = Annotated[
    str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})
]
DevicePath = Annotated[
    str, AfterValidator(_folder), WithJsonSchema({"type": "string", "pattern": "^~?(/[^/]+)+$"})
]


def _public(value: str) -> str:
    if "BEGIN PUBLIC KEY" not in value:
        raise ValueError("a public key in PEM, from BEGIN PUBLIC KEY to END PUBLIC KEY, expected")
    return value


TrustedKey = Annotated[str, AfterValidator(_public), WithJsonSchema({"type": "string"})]


class Device(Section):
    """One device. The file in device/deploy/transports/ that `kind` names defines the keys of `transport`."""

    name: DeviceName = Field(description="the device's name: the name of the YAML file")
    description: str = Field(description="which device it is, for people")
    target: DeviceName = Field(description="the target whose bundles the device runs; target= overrides it")
    folder: DevicePath = Field(default="~/kiln", description="folder on the device for bundles")
    contents: Literal["all", "run"] = Field(
        default="all",
        description="run: deploy only files needed at run time; all: also headers, sources, report",
    )
    trusted_keys: list[TrustedKey] = Field(
        default_factory=list,
        description="public Ed25519 keys, PEM texts: only bundles signed with one of them are installed, and "
        "none of an older release than the device has had",
    )
    transport: Section = Field(description="how the device is reached")
