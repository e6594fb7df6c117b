"""Targets whose programs this machine may run itself: only those whose instructions it has."""

from __future__ import annotations

import pytest
from kiln.config import load_target
from kiln.config.host import LEVELS
from kiln.device.check import host_cpu

V3 = frozenset(dict(LEVELS)["x86-64-v3"])


def test_a_level_is_served_by_a_cpu_that_has_all_of_it() -> None:
    assert host_cpu.missing("x86-64-v3", [], V3) is None
    assert host_cpu.missing("x86-64-v2", [], V3) is None


def test_what_lacks_is_named() -> None:
    assert host_cpu.missing("x86-64-v3", [], V3 - {"fma", "avx2"}) == "this CPU lacks avx2, fma"
    assert host_cpu.missing("x86-64-v3", ["+avxvnni", "-aes"], V3) == "this CPU lacks avx_vnni"
    assert host_cpu.missing("generic", ["+dotprod"], frozenset({"asimd"})) == "this CPU lacks asimddp"


def test_an_unknown_cpu_is_not_trusted() -> None:
    assert "skylake" in (host_cpu.missing("skylake", [], V3) or "")


@pytest.mark.parametrize("name", ["aarch64", "armv7"])
def test_another_machine_s_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert "this machine is x86_64" in (host_cpu.obstacle(load_target(name)) or "")


def test_an_old_cpu_gets_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(host_cpu, "read_flags", lambda: V3 - {"avx2"})
    assert host_cpu.obstacle(load_target("x86_64")) == "this CPU lacks avx2"
    assert host_cpu.obstacle(load_target("x86_64_v2")) is None
