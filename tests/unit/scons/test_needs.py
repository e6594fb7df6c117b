"""Programs that goals need: one line names all missing ones, with the packages that contain them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln import packages
from kiln.config import Target, load_target
from kiln.device.check import host_cpu
from kiln.device.deploy.registry import load_device
from kiln.errors import KilnError
from kiln.scons import needs


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An x86_64 machine on which nothing is installed."""
    monkeypatch.setattr(needs, "GetOption", lambda name: False)
    monkeypatch.setattr(needs.shutil, "which", lambda program: program if "/" in program else None)
    monkeypatch.setattr(host_cpu, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages.cross_libc, "__defaults__", (tmp_path,))
    monkeypatch.delenv("QEMU_LD_PREFIX", raising=False)


def said(targets: list[Target], goals: list[str], device: str | None = None) -> str:
    with pytest.raises(KilnError) as caught:
        needs.check(targets, goals, load_device(device) if device else None)
    return str(caught.value)


def test_all_packages_are_named_at_once(bare: None) -> None:
    line = said([load_target(name) for name in ("aarch64", "armv7", "aarch64_musl")], ["size", "test"])
    assert line.endswith(
        "; install them with: sudo apt-get install libc6-arm64-cross libc6-armhf-cross qemu-user"
    )
    for what in (
        "'qemu-aarch64', which runs 'aarch64'",
        "'qemu-arm', which runs 'armv7'",
        "glibc for 'armv7'",
    ):
        assert what in line
    assert "musl for" not in line


@pytest.mark.parametrize(("kind", "package"), [("ssh", "openssh-client"), ("adb", "adb")])
def test_programs_that_reach_a_device(bare: None, kind: str, package: str, tmp_path: Path) -> None:
    """And no emulator: the device runs the programs."""
    settings = {"ssh": {"host": "board"}, "adb": {"serial": "123"}}[kind]
    about = {"description": "a board", "target": "aarch64", "transport": {"kind": kind, **settings}}
    (tmp_path / "board.yaml").write_text(json.dumps(about))
    line = said([load_target("aarch64")], ["flash", "test"], str(tmp_path / "board.yaml"))
    assert f"'{kind}', which reaches device 'board'" in line and "qemu" not in line
    assert line.endswith(f"install it with: sudo apt-get install {package}")


def test_a_compiler_of_a_target(bare: None, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "targets/aarch64.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("kind: zig", "kind: clang"))
    line = said([load_target(tmp_path / "own.yaml")], ["bundle"])
    assert line == (
        "not installed: C compiler 'clang' of target 'own' (key 'c_compiler'); "
        "install it with: sudo apt-get install clang"
    )


def test_nothing_is_needed_to_show_or_to_remove(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("no_exec", "clean"):
        monkeypatch.setattr(needs, "GetOption", lambda name, option=option: name == option)
        needs.check([load_target("armv7")], ["test"])


def test_an_empty_command_of_a_compiler_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "targets/aarch64.yaml").read_text()
    (tmp_path / "own.yaml").write_text(text.replace("command: null", "command: []"))
    with pytest.raises(KilnError, match=r"key 'c_compiler\.command'"):
        load_target(str(tmp_path / "own.yaml"))


MACHINES = [("x86_64-linux-gnu", False), ("arm64-linux", True), ("?", True)]


@pytest.mark.parametrize(("machine", "fits"), MACHINES)
def test_the_systems_compiler_is_for_the_target(
    machine: str, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (Path(__file__).resolve().parents[3] / "targets/aarch64.yaml").read_text()
    text = text.replace("kind: zig", "kind: gcc").replace("target: aarch64-linux-gnu.2.17", "target: null")
    (tmp_path / "own.yaml").write_text(text)
    (tmp_path / "gcc").write_text(f"#!/bin/sh\necho '{machine}'\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setattr(needs, "GetOption", lambda name: False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    target = load_target(str(tmp_path / "own.yaml"))
    if fits:
        needs.check([target], ["size"])
    else:
        line = said([target], ["size"])
        assert f"compiles for {machine}: give the cross compiler in key 'c_compiler.command'" in line
