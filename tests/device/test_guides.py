"""docs/guides: every command runs and prints what the page says; devices are stand-ins."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kiln import packages

from .guides import FOLDER, Command, agrees, follow_guide, steps

GUIDES = sorted(FOLDER.glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_no_command_is_outside_of_what_is_run(guide: Path) -> None:
    """Blocks are fenced; those that are not files of the reader's are commands in the form that is run."""
    text = guide.read_text(encoding="utf-8")
    rest = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.M | re.S)
    assert "```" not in rest and re.findall(r"^ {4}\S.*", rest, re.M) == []
    languages = re.findall(r"(?<!\*\*\n)\n```(\w+)\n", text)
    assert set(languages) <= {"console", "mermaid"}
    if guide.name != "index.md":
        assert any(isinstance(step, Command) for step in steps(text))
        assert f"]({guide.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")


def test_what_agrees() -> None:
    said = "kiln: net: lower\nnet on x\n  error 1e-05:  ok  (3 ms)\nlast\n"
    assert agrees(said, "net on x\n  error 3e-07: ok (…)\nlast\n")
    assert agrees(said, "net on x\n…\n") and agrees(said, "…\nlast\n")
    assert not agrees(said, "net on x\n")
    assert not agrees(said, "net on x\n  error 1e-05: wrong (…)\n…\n")
    assert not agrees(said, "…\nlast\nmore\n")


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
    end, tcp = time.monotonic() + 120, Path("/proc/net/tcp")
    # To connect would be a first debugger's visit. The state 0A is that of a listening socket.
    while not any(f":{port:04X} " in line and " 0A " in line for line in tcp.read_text().splitlines()):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_microcontroller(tmp_path: Path, gdb_server: str) -> None:
    follow_guide("microcontroller.md", tmp_path, {"localhost:3333": gdb_server})
