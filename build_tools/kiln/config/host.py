"""Replaces the value `native` in a target by the properties of this machine, read from the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

from kiln.config import cpus
from kiln.errors import KilnError

# Features of the x86-64 levels of the System V ABI, by their names in /proc/cpuinfo.
_V2 = {"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"}
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2), ("x86-64", set[str]()))

# Features beyond a level that Kiln's code uses: Linux's name and LLVM's.
_X86_EXTRA = {"avx_vnni": "avxvnni", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16"}
# Features that a process has to ask Linux for.
_TILES = {"amx_tile", "amx_int8", "amx_bf16"}
_ARM_EXTRA = {"asimddp": "dotprod", "asimdhp": "fullfp16", "i8mm": "i8mm"}

# CPU part numbers (ARM Ltd, implementer 0x41) of cores that issue in order.
_IN_ORDER_PARTS = {"0xd03", "0xd04", "0xd05", "0xd46"}


def resolve_native(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with each value `native`, at the top level and in `c_compiler`, replaced by this machine's."""
    compiler = data.get("c_compiler")
    nested = isinstance(compiler, dict) and "native" in (compiler.get("target"), compiler.get("flags"))
    if not nested and "native" not in [value for value in data.values() if isinstance(value, str)]:
        return data
    facts = describe_host(read_flags(), platform.machine())
    resolved = {
        key: facts[key] if value == "native" and key in facts else value for key, value in data.items()
    }
    if isinstance(compiler, dict):
        compiler_facts = facts["c_compiler"]
        resolved["c_compiler"] = {
            k: compiler_facts[k] if v == "native" and k in compiler_facts else v for k, v in compiler.items()
        }
    return resolved


def read_flags() -> frozenset[str]:
    """CPU features and part numbers of the cores in /proc/cpuinfo; empty if there is no such file.

    Without features that Linux refuses to this process.
    """
    flags: set[str] = set()
    for line in read_cpuinfo():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features", "CPU part"):
            flags.update(value.split())
    return frozenset(flags if flags.isdisjoint(_TILES) or _may_use_tiles() else flags - _TILES)


def _may_use_tiles() -> bool:
    """Whether Linux lets this process and its children use tile registers (AMX): a container may not."""
    number, request, tile_data = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return bool(ctypes.CDLL(None).syscall(number, request, tile_data) == 0)


def host_identity() -> dict[str, Any]:
    """The processors of this process: `cpu` (name), `mhz` (present clock rate) and `cores` (number)."""
    fields: dict[str, str] = {}
    for line in read_cpuinfo():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    identity: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    if fields.get("model name"):
        identity["cpu"] = fields["model name"]
    if fields.get("cpu MHz"):
        identity["mhz"] = round(float(fields["cpu MHz"]))
    return identity


def read_cpuinfo() -> list[str]:
    """Lines of /proc/cpuinfo; empty if the file cannot be read."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def describe_host(flags: frozenset[str], machine: str) -> dict[str, Any]:
    """Values of a target's keys for a machine with the CPU features `flags` and the architecture `machine`.

    Raises KilnError for systems other than Linux and for architectures that Kiln has no kernels for.
    """
    if platform.system() != "Linux":
        raise KilnError(f"target 'host': builds for Linux machines only, this one runs {platform.system()}")
    facts: dict[str, Any]
    if machine in ("x86_64", "AMD64"):
        facts = _x86(flags)
    elif machine in ("aarch64", "arm64"):
        facts = _aarch64(flags)
    else:
        raise KilnError(f"target 'host': no kernels for a CPU of kind '{machine}'; known: x86_64, aarch64")
    core_names = cpus.names(read_cpuinfo())
    return {
        **facts,
        "tuned_for": core_names[0] if core_names else None,
        "cache": _cache(),
        "cores": max(1, os.cpu_count() or 1),
    }


def _x86(flags: frozenset[str]) -> dict[str, Any]:
    level = next(name for name, required in LEVELS if required <= flags)
    wide = level == "x86-64-v4"
    avx = level in ("x86-64-v3", "x86-64-v4")
    plain = level == "x86-64"  # without SSSE3, whose instructions kernels for vectors of SSE use
    tiles = wide and flags >= {"avx512_vnni", "amx_tile", "amx_int8"}
    vnni = ("avx512_vnni" if wide else "avx_vnni") in flags
    extra = [
        llvm for kernel, llvm in _X86_EXTRA.items() if kernel in flags and (wide or kernel == "avx_vnni")
    ]
    extra += ["amx-int8"] if tiles else []
    return {
        "triple": "x86_64-unknown-linux-gnu",
        "cpu": level,
        "features": [f"+{name}" for name in extra] if avx else [],
        "arch": "x86_64",
        "vector": {
            "isa": "avx512" if wide else "avx2" if avx else "none" if plain else "sse4",
            "bits": 512 if wide else 256 if avx else 32 if plain else 128,
            "registers": 32 if wide else 16,
            "fma": avx,
            "dot": "amx" if tiles else "vnni" if vnni and avx else "none",
            "in_order": False,
        },
        "c_compiler": {
            "target": "x86_64-linux-gnu.2.17",
            "flags": ["-mcpu=" + level.replace("x86-64", "x86_64").replace("-v", "_v")],
        },
    }


def _aarch64(flags: frozenset[str]) -> dict[str, Any]:
    matrices = {"asimddp", "i8mm"} <= flags
    return {
        "triple": "aarch64-unknown-linux-gnu",
        "cpu": "generic",
        "features": ["+neon"] + [f"+{llvm}" for kernel, llvm in _ARM_EXTRA.items() if kernel in flags],
        "arch": "aarch64",
        "vector": {
            "isa": "neon",
            "bits": 128,
            "registers": 32,
            "fma": True,
            "dot": "i8mm" if matrices else "sdot" if "asimddp" in flags else "none",
            "in_order": bool(_IN_ORDER_PARTS & flags),
        },
        "c_compiler": {"target": "aarch64-linux-gnu.2.17", "flags": []},
    }


def _cache() -> dict[str, int]:
    """Sizes of the first core's data caches in bytes; defaults where the kernel does not report them."""
    sizes = {"l1d": 32 << 10, "l2": 512 << 10, "l3": 0}
    names = {"1": "l1d", "2": "l2", "3": "l3"}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind in ("Data", "Unified") and level in names and size.endswith("K"):
                sizes[names[level]] = int(size[:-1]) << 10
        except (OSError, ValueError):
            continue
    return sizes
