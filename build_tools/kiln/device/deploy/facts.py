"""Facts read from a device: its identity, for results, and properties that decide whether a bundle fits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kiln.config import cpus
from kiln.device.deploy import script
from kiln.device.deploy.transports import Transport, printable
from kiln.errors import KilnError

_TOOLS = (
    "sha256sum",
    "busybox sha256sum",
    "toybox sha256sum",
    "shasum -a 256",
    "openssl dgst -sha256 -r",
)

# `uname -m` where Kiln has another name.
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64", "armv7l": "armv7", "armv8l": "armv7"}


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about a device at one time. Sizes are in bytes; None where the device does not report a value."""

    home: str
    machine: str
    bits: int | None
    features: frozenset[str]
    cores: list[str]  # LLVM's names of the kinds of cores
    memory: int | None
    free: int | None
    libc: tuple[str, str] | None  # (name, version)
    checksum: str
    identity: dict[str, Any] = field(default_factory=dict)


def read_facts(transport: Transport, folder: str) -> DeviceFacts:
    """Read the facts of a device. Raises KilnError where it has no SHA-256 tool or no usable home folder."""
    values: dict[str, list[str]] = {}
    for line in script.run(transport, "facts", folder).splitlines():
        key, _, value = line.partition("\t")
        if value.strip("\0 "):
            values.setdefault(key, []).append(printable(value.strip("\0 "), 4000))
    device = transport.description
    if values.get("checksum", [""])[0] not in _TOOLS:
        raise KilnError(
            f"{device}: it has no tool for SHA-256: none of sha256sum, busybox, toybox, shasum, openssl"
        )
    home = values.get("home", [""])[0]
    if folder.startswith("~/") and not re.fullmatch(r"(/[^/?]+)+", home):
        raise KilnError(
            f"{device}: its home folder '{home}' cannot be used; give an absolute folder (key 'folder')"
        )
    cpu = [entry.partition(":") for entry in values.get("cpuinfo", [])]
    table = {key.strip(): value.strip() for key, _, value in cpu}
    cores = cpus.names(values.get("cpuinfo", []))
    words = {word for key, _, value in cpu if key.strip() in ("Features", "flags") for word in value.split()}
    machine = values.get("machine", ["?"])[0]
    return DeviceFacts(
        home=home,
        machine=_MACHINES.get(machine, machine),
        bits=_number(values.get("bits")),
        features=frozenset(words),
        cores=cores,
        memory=_memory(values, "MemAvailable"),
        free=_free(values.get("disk", [])),
        libc=_libc(values.get("libc", [])),
        checksum=values["checksum"][0],
        identity=_identity(values, table, cores, machine),
    )


def resolve(folder: str, facts: DeviceFacts) -> str:
    """The device's folder as an absolute path on the device."""
    return facts.home + folder[1:] if folder.startswith("~/") else folder


def _first(values: dict[str, list[str]], key: str) -> str | None:
    return values[key][0] if key in values else None


def _identity(
    values: dict[str, list[str]], table: dict[str, str], cores: list[str], machine: str
) -> dict[str, Any]:
    """The facts to store with measurements, by name: CPU, cores, governor, clock, temperature, system."""
    cpu = table.get("model name") or " + ".join(cores) or f"{machine} part {table.get('CPU part', '?')}"
    degrees = [_degrees(value) for value in values.get("temperature", [])]
    measured = [value for value in degrees if value is not None]
    mhz = _number(values.get("khz"))
    identity: dict[str, Any] = {
        "host": _first(values, "host"),
        "board": _first(values, "board") or table.get("Hardware") or table.get("Model"),
        "cpu": cpu,
        "cores": _number(values.get("cores")),
        "governor": _first(values, "governor"),
        "mhz": mhz // 1000 if mhz else None,
        "temperature_c": max(measured) if measured else None,
        "kernel": _first(values, "kernel"),
        "os": _first(values, "os"),
    }
    return {key: value for key, value in identity.items() if value is not None}


def short(identity: dict[str, Any]) -> str:
    """The identity in half a line: `kiln-board: cortex-a72 ×2, governor performance, 41 °C`."""
    words = [f"{identity.get('cpu', '?')} ×{identity.get('cores', '?')}"]
    if "governor" in identity:
        words.append(f"governor {identity['governor']}")
    if "mhz" in identity:
        words.append(f"{identity['mhz']} MHz")
    if "temperature_c" in identity:
        words.append(f"{identity['temperature_c']:.0f} °C")
    return f"{identity.get('host', '?')}: {', '.join(words)}"


def _number(values: list[str] | None) -> int | None:
    return int(values[0]) if values and re.fullmatch(r"[0-9]{1,18}", values[0]) else None


def _memory(values: dict[str, list[str]], key: str) -> int | None:
    for entry in values.get("memory", []):
        match = re.fullmatch(rf"{key}:\s*([0-9]{{1,15}}) kB", entry)
        if match:
            return int(match[1]) * 1024
    return None


def _free(lines: list[str]) -> int | None:
    """Free bytes, from the output of `df -P -k`: the fourth column of the last line, in units of 1 KiB."""
    match = re.search(r"\s([0-9]+)\s+([0-9]+)\s+(-?[0-9]+)\s+[0-9-]+%", lines[-1]) if lines else None
    return int(match[3]) * 1024 if match else None


def _libc(values: list[str]) -> tuple[str, str] | None:
    for value in values:
        name, _, version = value.partition(" ")
        if name in ("glibc", "musl", "bionic"):
            return name, version
    return None


def _degrees(value: str) -> float | None:
    """Degrees Celsius from a thermal zone's text, in millidegrees or, with some drivers, in degrees.

    None for implausible values.
    """
    match = re.match(r"(-?[0-9]{1,7})\b", value)
    if not match:
        return None
    number = int(match[1])
    degrees = number / 1000 if abs(number) > 500 else float(number)
    return degrees if -60 < degrees < 200 else None
