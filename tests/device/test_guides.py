"""docs/guides: every command runs, with the output on the page; stand-ins replace devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import waiting
import yaml
from elftools.elf.elffile import ELFFile
from kiln import packages
from scons_real import ROOT

from .adb_server import AdbServer
from .emulated.machine import Machine
from .guides import FOLDER, Command, agrees, follow_guide, steps

GUIDES = sorted(FOLDER.glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_no_command_is_outside_of_what_is_run(guide: Path) -> None:
    """All code blocks of a guide are fenced, and are either files or commands in the form that tests run."""
    text = guide.read_text(encoding="utf-8")
    prose = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.M | re.S)
    assert "```" not in prose and re.findall(r"^ {4}\S.*", prose, re.M) == []
    languages = re.findall(r"(?<!\*\*\n)\n```(\w+)\n", text)
    assert set(languages) <= {"console", "mermaid"}
    if guide.name != "index.md":
        assert any(isinstance(step, Command) for step in steps(text))
        assert f"]({guide.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")


def test_what_agrees() -> None:
    printed = "kiln: net: lower\nnet on x\n  error 1e-05:  ok  (3 ms)\nlast\n"
    assert agrees(printed, "net on x\n  error 3e-07: ok (…)\nlast\n")
    assert agrees(printed, "net on x\n…\n") and agrees(printed, "…\nlast\n")
    assert not agrees(printed, "net on x\n")
    assert not agrees(printed, "net on x\n  error 1e-05: wrong (…)\n…\n")
    assert not agrees(printed, "…\nlast\nmore\n")


@pytest.fixture
def gdb_server() -> Iterator[str]:
    """The address of a gdb server: QEMU's Cortex-M4, which waits for a program."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip(packages.missing_program("qemu-system-arm"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-M", "mps2-an386", "-nodefaults", "-display", "none", "-S", "-gdb", f"tcp:127.0.0.1:{port}"]
    process = subprocess.Popen(["qemu-system-arm", *words], stderr=subprocess.DEVNULL)
    waiting.for_port(port, process)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.heavy
def test_microcontroller(tmp_path: Path, gdb_server: str) -> None:
    follow_guide("microcontroller.md", tmp_path, {"localhost:3333": gdb_server})


@pytest.mark.heavy
def test_raspberry_pi(tmp_path: Path) -> None:
    """An emulated machine, which `ssh pi4` reaches."""
    machine = Machine(tmp_path)
    try:
        config = tmp_path / "config"
        config.write_text(machine.ssh_config.read_text().replace("Host board", "Host pi4"))
        programs = tmp_path / "ssh"
        programs.mkdir()
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        (programs / "ssh").chmod(0o755)
        folder = tmp_path / "guide"
        folder.mkdir()
        follow_guide("raspberry-pi.md", folder, path=str(programs))
    finally:
        machine.stop()


@pytest.mark.heavy
def test_android(tmp_path: Path) -> None:
    if shutil.which("adb") is None:
        pytest.skip(packages.missing_program("adb"))
    with AdbServer("emulator-5554") as server:
        follow_guide("android.md", tmp_path, **server.environment)
        server.shutdown()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["jetson.md", "int8.md", "dynamic-shapes.md"])
def test_without_a_device(name: str, tmp_path: Path) -> None:
    follow_guide(name, tmp_path)


@pytest.mark.heavy
def test_docker(tmp_path: Path) -> None:
    """The steps of the Dockerfile without a container; its program needs no other file, not even a loader."""
    place, programs, guide = (tmp_path / name for name in ("place", "programs", "guide"))
    for folder in (place, programs, guide):
        folder.mkdir()
    script = Path(__file__).with_name("docker_steps.py")
    (programs / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {script} {place} "$@"\n')
    (programs / "docker").chmod(0o755)
    printed = follow_guide("docker.md", guide, {"path/to/kiln": str(ROOT)}, path=str(programs))
    assert int(printed[-1]) < 2_000_000
    (program,) = (place / "image").iterdir()
    with program.open("rb") as stream:
        kinds = {segment["p_type"] for segment in ELFFile(stream).iter_segments()}
    assert "PT_LOAD" in kinds and "PT_INTERP" not in kinds
    assert [path.name.partition("-")[0] for path in (place / "build/wheels").iterdir()] == ["kiln_build"]


@pytest.mark.heavy
def test_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter is not installed: pip install onnxscript")
    follow_guide("pytorch.md", tmp_path)


@pytest.mark.heavy
def test_github_actions(tmp_path: Path) -> None:
    """The page's commands, then the workflow's own steps; packages it installs are known and there."""
    follow_guide("github-actions.md", tmp_path)
    text = (tmp_path / ".github/workflows/model.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert [command for command in commands if not command.startswith("kiln ")] == [
        "pip install -r requirements.txt",
        "sudo apt-get update && sudo apt-get install -y qemu-system-arm",
    ]
    assert "qemu-system-arm" in packages.PROGRAMS.values()
    environment = {**os.environ, **job["env"], "PATH": f"{tmp_path / '.programs'}:{os.environ['PATH']}"}
    for command in commands:
        if command.startswith("kiln "):
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
    assert {one["target"] for one in json.loads((tmp_path / "sizes.json").read_text())["results"]} == {
        "cortex_m4",
        "cortex_m0plus",
    }
    assert len(list(tmp_path.glob("build/*/*.tar.gz"))) == 2
