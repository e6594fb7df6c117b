"""Checks whether a bundle can run on a device, before anything is copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from kiln.config import Target
from kiln.device.check.host_cpu import missing
from kiln.device.deploy.facts import DeviceFacts
from kiln.errors import KilnError

# Features in /proc/cpuinfo that code for these LLVM CPUs may use, beyond the architecture's base.
_V8 = ("fp", "asimd", "crc32")
_V8_CRYPTO = {"aes": ("aes", "pmull"), "sha2": ("sha1", "sha2")}
_V82 = (*_V8, "atomics", "asimdrdm", "fphp", "asimdhp", "lrcpc", "dcpop")
_CPUS: dict[str, tuple[str, ...]] = {
    "cortex-a35": _V8, "cortex-a53": _V8, "cortex-a57": _V8, "cortex-a72": _V8, "cortex-a73": _V8,
    "cortex-a55": (*_V82, "asimddp"), "cortex-a75": (*_V82, "asimddp"), "cortex-a76": (*_V82, "asimddp"),
    "cortex-a77": (*_V82, "asimddp"), "cortex-a78": (*_V82, "asimddp"), "cortex-x1": (*_V82, "asimddp"),
    "neoverse-n1": (*_V82, "asimddp"),
    "cortex-a7": ("neon", "vfpv4", "idiva", "idivt"), "cortex-a9": ("neon", "vfpv3"),
    "cortex-a15": ("neon", "vfpv4", "idiva", "idivt"),
}  # fmt: skip


def obstacle(facts: DeviceFacts, target: Target) -> str | None:
    """The reason why this device cannot run the target's programs.

    None when no fact about the device prevents it.
    """
    machine = "armv7" if facts.machine == "aarch64" and facts.bits == 32 else facts.machine
    # A 64-bit kernel runs 32-bit programs too, on most cores. A static program needs no C library there, so
    # it is left to the run of the golden vectors to find out.
    may_run_32_bit = facts.machine == "aarch64" and target.arch == "armv7" and target.libc.static
    if machine != target.arch and not may_run_32_bit:
        return f"it is {machine}, and target '{target.name}' is {target.arch}"
    lacking = _features(facts, target)
    return lacking or _libc(facts, target)


def memory_obstacle(facts: DeviceFacts, manifest: Mapping[str, Any]) -> str | None:
    """The reason why the model's arena and parameters do not fit into memory; None when they do."""
    arena = max((bucket["arena_bytes"] for bucket in manifest["buckets"]), default=0)
    needed = arena + manifest["params"]["bytes"]
    if facts.memory is not None and needed > facts.memory:
        return (
            f"memory: {needed:,} bytes needed (arena {arena:,}, parameters {manifest['params']['bytes']:,}), "
            f"{facts.memory:,} available"
        )
    return None


def files_obstacle(facts: DeviceFacts, files: Mapping[str, Path]) -> str | None:
    """The reason why programs and libraries lack symbols of glibc on the device; None when they do not.

    An external library may have been built for a newer glibc than the target's. `files`: local paths by name;
    files that are not ELF files are ignored.
    """
    if facts.libc is None or facts.libc[0] != "glibc" or not facts.libc[1]:
        return None  # `obstacle` reports another C library
    needed_versions = {
        name: needed for name, path in files.items() if (needed := needed_glibc(path)) is not None
    }
    name = max(sorted(needed_versions), key=lambda name: _numbers(needed_versions[name]), default=None)
    if name is None or _numbers(needed_versions[name]) <= _numbers(facts.libc[1]):
        return None
    return f"its glibc is {facts.libc[1]}, and {name} needs {needed_versions[name]} or later"


def needed_glibc(path: Path) -> str | None:
    """The newest version of glibc whose symbols an ELF file needs, such as `2.35`; None if it needs none.

    Read from the section .gnu.version_r. Raises KilnError for a damaged ELF file.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(4) != b"\x7fELF":
                return None
            sections = [
                section
                for section in ELFFile(stream).iter_sections()
                if isinstance(section, GNUVerNeedSection)
            ]
            names = [
                entry.name
                for section in sections
                for _, entries in section.iter_versions()
                for entry in entries
            ]
    except (OSError, ELFError) as error:
        raise KilnError(f"{path}: cannot be read as an ELF file: {error}") from error
    versions = [name.removeprefix("GLIBC_") for name in names if name.startswith("GLIBC_2")]
    return max(versions, key=_numbers, default=None)


def space_obstacle(facts: DeviceFacts, needed: int, folder: str) -> str | None:
    """The reason why `needed` more bytes do not fit on the device's disk; None when they do."""
    if facts.free is not None and needed > facts.free:
        return f"no space: {needed:,} bytes needed in {folder}, {facts.free:,} free"
    return None


def _features(facts: DeviceFacts, target: Target) -> str | None:
    if not facts.features:
        return None  # not known; the run of the golden vectors will show it
    if target.arch == "x86_64":
        return missing(target.cpu, target.features, facts.features)
    off = {feature[1:] for feature in target.features if feature.startswith("-")}
    required = [word for word in _CPUS.get(target.cpu, ()) if target.cpu not in facts.cores]
    for feature, words in _V8_CRYPTO.items():
        if f"+{feature}" in target.features and feature not in off:
            required += words
    base = {"vfpv3": {"vfpv3", "vfpv4", "vfpv3d16"}, "crc32": {"crc32"}}
    gone = sorted(word for word in required if not base.get(word, {word}) & facts.features)
    if gone and target.arch == "armv7" and "asimd" in facts.features:
        gone = []  # a 64-bit CPU in its 32-bit mode
    if gone:
        return f"its CPU lacks {', '.join(gone)}, which code for '{target.cpu}' uses"
    return missing("generic", target.features, facts.features | (_arm32(facts)))


def _arm32(facts: DeviceFacts) -> frozenset[str]:
    """32-bit ARM reports `neon` where 64-bit ARM reports `asimd`, the name that `missing` expects."""
    return frozenset({"asimd"} if "neon" in facts.features else ())


def _libc(facts: DeviceFacts, target: Target) -> str | None:
    libc = target.libc
    if libc.static or libc.name not in ("glibc", "musl", "bionic"):
        return None
    if facts.libc is None:
        return None  # not known; the run of the golden vectors will show it
    name, version = facts.libc
    if name != libc.name:
        return f"its C library is {name}, and target '{target.name}' links to {libc.name}"
    if libc.version and version and _numbers(version) < _numbers(libc.version):
        return f"its {name} is {version}, and target '{target.name}' needs {libc.version} or later"
    return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number.isdigit()]
