"""`native` becomes facts about a machine, from the flags that its kernel reports."""

from __future__ import annotations

import platform
from typing import Any

import pytest
from kiln.config import Target, host, load_target
from kiln.config.host import _V2, _V3, _V4, describe_host, read_flags, resolve_native
from kiln.config.vector_unit import Vector
from kiln.errors import KilnError
from kiln.lower import target_check

AMX = {"avx512_vnni", "amx_tile", "amx_int8"}

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="the host target is for Linux")


@pytest.mark.parametrize(
    ("flags", "cpu", "isa", "bits", "dot", "features"),
    [
        (set(), "x86-64", "none", 32, "none", []),
        (_V2, "x86-64-v2", "sse4", 128, "none", []),
        (_V3, "x86-64-v3", "avx2", 256, "none", []),
        (_V3 - {"fma"}, "x86-64-v2", "sse4", 128, "none", []),
        (_V3 | {"avx_vnni"}, "x86-64-v3", "avx2", 256, "vnni", ["+avxvnni"]),
        (_V4, "x86-64-v4", "avx512", 512, "none", []),
        (_V4 | {"avx_vnni"}, "x86-64-v4", "avx512", 512, "none", ["+avxvnni"]),
        (_V4 | {"avx512_vnni"}, "x86-64-v4", "avx512", 512, "vnni", ["+avx512vnni"]),
        (_V4 | AMX, "x86-64-v4", "avx512", 512, "amx", ["+avx512vnni", "+amx-int8"]),
        (_V4 | AMX - {"amx_int8"}, "x86-64-v4", "avx512", 512, "vnni", ["+avx512vnni"]),
        (_V4 | AMX - {"avx512_vnni"}, "x86-64-v4", "avx512", 512, "none", []),
        (_V3 | {"avx512_vnni"}, "x86-64-v3", "avx2", 256, "none", []),
    ],
)
def test_x86_levels(flags: set[str], cpu: str, isa: str, bits: int, dot: str, features: list[str]) -> None:
    facts = describe_host(frozenset(flags), "x86_64")
    assert (facts["cpu"], facts["features"]) == (cpu, features)
    assert (facts["vector"]["isa"], facts["vector"]["bits"], facts["vector"]["dot"]) == (isa, bits, dot)
    assert facts["vector"]["fma"] is (bits > 128)
    target_check.check(load_target("x86_64").model_copy(update=_typed(facts) | {"variants": []}))


def _typed(facts: dict[str, Any]) -> dict[str, Any]:
    """The values that LLVM's check reads, typed as those of a target."""
    return {"cpu": facts["cpu"], "features": facts["features"], "vector": Vector(**facts["vector"])}


@pytest.mark.parametrize(
    ("flags", "dot", "in_order"),
    [
        ({"fp", "asimd", "0xd08"}, "none", False),
        ({"fp", "asimd", "0xd03"}, "none", True),
        ({"asimd", "asimddp", "asimdhp", "0xd0b"}, "sdot", False),
        ({"asimd", "asimddp", "asimdhp", "i8mm", "0xd4f"}, "i8mm", False),
        ({"asimd", "i8mm"}, "none", False),
    ],
)
def test_aarch64(flags: set[str], dot: str, in_order: bool) -> None:
    facts = describe_host(frozenset(flags), "aarch64")
    assert (facts["vector"]["dot"], facts["vector"]["in_order"]) == (dot, in_order)
    assert ("+dotprod" in facts["features"]) is (dot != "none")


def test_other_machines_are_refused() -> None:
    with pytest.raises(KilnError, match="no kernels for a CPU of kind 'riscv64'; known: x86_64, aarch64"):
        describe_host(frozenset(), "riscv64")


def test_only_native_values_are_replaced() -> None:
    data = {"arch": "native", "cores": 7, "c_compiler": {"target": "native", "flags": ["-g"]}}
    resolved = resolve_native(data)
    assert resolved["arch"] in ("x86_64", "aarch64")
    assert resolved["cores"] == 7
    assert resolved["c_compiler"]["flags"] == ["-g"]
    assert resolved["c_compiler"]["target"] != "native"
    assert resolve_native({"arch": "armv7"}) == {"arch": "armv7"}


def test_host_target_runs_here() -> None:
    target = load_target("host")
    assert isinstance(target, Target)
    assert target.arch == {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    assert target.cache.l1d >= 8 << 10
    if target.arch == "x86_64" and target.vector.isa not in ("sse4", "none"):
        assert "avx2" in read_flags()


def test_identity_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "processor : 0",
        "model name\t: A Processor 9000",
        "cpu MHz\t\t: 2596.123",
        "",
        "model name: another",
    ]
    monkeypatch.setattr(host, "read_cpuinfo", lambda: lines)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {0, 3})
    assert host.host_identity() == {"cores": 2, "cpu": "A Processor 9000", "mhz": 2596}
    monkeypatch.setattr(host, "read_cpuinfo", list)
    assert host.host_identity() == {"cores": 2}
