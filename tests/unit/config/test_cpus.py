"""LLVM's names of CPUs, from what /proc/cpuinfo says."""

from __future__ import annotations

import platform

import pytest
from kiln.config import cpus
from kiln.config.host import read_cpuinfo


def x86(vendor: str, family: int, model: int, flags: str = "") -> list[str]:
    return [f"vendor_id\t: {vendor}", f"cpu family\t: {family}", f"model\t\t: {model}", f"flags\t\t: {flags}"]


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (x86("AuthenticAMD", 26, 2), ["znver5"]),
        (x86("AuthenticAMD", 25, 0x21), ["znver3"]),
        (x86("AuthenticAMD", 25, 0x61), ["znver4"]),
        (x86("GenuineIntel", 6, 0x3C), ["haswell"]),
        (x86("GenuineIntel", 6, 0x55), ["skylake-avx512"]),
        (x86("GenuineIntel", 6, 0x55, "avx512f avx512_vnni"), ["cascadelake"]),
        (x86("GenuineIntel", 6, 0x8F), ["sapphirerapids"]),
        (x86("AuthenticAMD", 99, 1), ["authenticamd-99-1"]),
        (["CPU implementer : 0x41", "CPU part : 0xd08"] * 4, ["cortex-a72"]),
        (["CPU implementer : 0x41", "CPU part : 0xd0b", "CPU part : 0xd05"], ["cortex-a55", "cortex-a76"]),
        (["CPU implementer : 0x48", "CPU part : 0xd01"], ["arm-0x48-0xd01"]),
        (["CPU implementer : 0x48", "CPU implementer : 0x41", "CPU part : 0xd01"], []),
        ([], []),
    ],
)
def test_names(lines: list[str], names: list[str]) -> None:
    assert cpus.names(lines) == names


def test_llvm_has_the_same_name_for_this_machine() -> None:
    names = cpus.names(read_cpuinfo())
    if platform.machine() != "x86_64" or "-" in names[0].removesuffix("-avx512"):
        pytest.skip(f"{names}: not an x86 CPU that has a name")
    import tvm

    assert names == [str(tvm.get_global_func("target.llvm_get_system_cpu")())]
