"""LLVM's names of CPUs, determined from /proc/cpuinfo: the keys of tuning records.

A CPU that is not listed here gets a name made of the numbers in /proc/cpuinfo, such as `authenticamd-26-2` or
`arm-0x48-0xd01`, and so can have tuning records too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Part numbers of ARM Ltd's cores (implementer 0x41).
PARTS = {
    "0xc07": "cortex-a7", "0xc09": "cortex-a9", "0xc0f": "cortex-a15", "0xd03": "cortex-a53",
    "0xd04": "cortex-a35", "0xd05": "cortex-a55", "0xd07": "cortex-a57", "0xd08": "cortex-a72",
    "0xd09": "cortex-a73", "0xd0a": "cortex-a75", "0xd0b": "cortex-a76", "0xd0c": "neoverse-n1",
    "0xd0d": "cortex-a77", "0xd40": "neoverse-v1", "0xd41": "cortex-a78", "0xd44": "cortex-x1",
    "0xd46": "cortex-a510", "0xd47": "cortex-a710", "0xd49": "neoverse-n2", "0xd4f": "neoverse-v2",
}  # fmt: skip

# By vendor and family: ranges of models (first, last, name); the first range that contains a model applies.
_X86: dict[tuple[str, int], Sequence[tuple[int, int, str]]] = {
    ("AuthenticAMD", 0x17): [(0x00, 0x2F, "znver1"), (0x30, 0xFF, "znver2")],
    ("AuthenticAMD", 0x19): [
        (0x10, 0x1F, "znver4"), (0x60, 0x7F, "znver4"), (0xA0, 0xAF, "znver4"), (0x00, 0x5F, "znver3"),
    ],
    ("AuthenticAMD", 0x1A): [(0x00, 0x7F, "znver5")],
    ("GenuineIntel", 6): [
        (model, model, name)
        for name, models in {
            "nehalem": (0x1A, 0x1E, 0x1F, 0x2E), "westmere": (0x25, 0x2C, 0x2F), "sandybridge": (0x2A, 0x2D),
            "ivybridge": (0x3A, 0x3E), "haswell": (0x3C, 0x3F, 0x45, 0x46),
            "broadwell": (0x3D, 0x47, 0x4F, 0x56), "skylake": (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
            "skylake-avx512": (0x55,), "icelake-client": (0x7D, 0x7E), "icelake-server": (0x6A, 0x6C),
            "tigerlake": (0x8C, 0x8D), "rocketlake": (0xA7,), "alderlake": (0x97, 0x9A),
            "raptorlake": (0xB7, 0xBA, 0xBF), "meteorlake": (0xAA, 0xAC), "gracemont": (0xBE,),
            "sapphirerapids": (0x8F,), "emeraldrapids": (0xCF,), "graniterapids": (0xAD,),
            "sierraforest": (0xAF,),
        }.items()
        for model in models
    ],
}  # fmt: skip


def names(cpuinfo: Iterable[str]) -> list[str]:
    """Names of the kinds of cores in the lines of /proc/cpuinfo, sorted; empty if they are unknown."""
    fields: dict[str, list[str]] = {}
    for line in cpuinfo:
        key, _, value = line.partition(":")
        values = fields.setdefault(key.strip(), [])
        if value.strip() and value.strip() not in values:
            values.append(value.strip())
    vendor, family, model = ((fields.get(key) or [""])[0] for key in ("vendor_id", "cpu family", "model"))
    if vendor and family.isdigit() and model.isdigit():
        return [_x86(vendor, int(family), int(model), (fields.get("flags") or [""])[0].split())]
    implementers = fields.get("CPU implementer", [])
    if len(implementers) != 1:
        return []
    return sorted(_arm(implementers[0], part_number) for part_number in fields.get("CPU part", []))


def _x86(vendor: str, family: int, model: int, flags: Sequence[str]) -> str:
    ranges = _X86.get((vendor, family), ())
    name = next((name for low, high, name in ranges if low <= model <= high), None)
    if name == "skylake-avx512":  # three generations with one number
        return "cooperlake" if "avx512_bf16" in flags else "cascadelake" if "avx512_vnni" in flags else name
    return name or f"{_word(vendor)}-{family}-{model}"


def _arm(implementer: str, part_number: str) -> str:
    if implementer == "0x41" and part_number in PARTS:
        return PARTS[part_number]
    return f"arm-{_word(implementer)}-{_word(part_number)}"


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown"
