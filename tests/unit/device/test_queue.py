"""Builds queue for devices, and take a free one of a kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from kiln.device.deploy import queue
from kiln.errors import KilnError

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from kiln.device.deploy import queue
print(queue.take(sys.argv[1:]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three devices, in which the process stands, and no lock held."""
    (tmp_path / "devices").mkdir()
    for name, target in (("pi4a", "aarch64"), ("pi4b", "aarch64"), ("pi5", "aarch64_a76")):
        text = f"description: d\ntarget: {target}\ntransport: {{kind: local}}\n"
        (tmp_path / "devices" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(queue, "_held", {})
    return tmp_path


def held(*names: str) -> subprocess.Popen[str]:
    """Another process that holds one of the devices, until its input is closed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_tools")}
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, *names],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def test_devices_of_a_kind(project: Path) -> None:
    assert queue.candidates("aarch64") == ["pi4a", "pi4b", "pi5"]
    assert queue.candidates("aarch64_a76") == ["pi5"]
    with pytest.raises(KilnError, match=r"'any:cortex_m4': no device .* devices: .*pi4a \(aarch64\), pi4b"):
        queue.candidates("cortex_m4")


def test_a_free_one_is_taken_and_builds_wait_for_their_turn(project: Path) -> None:
    first = held("pi4a", "pi4b")
    assert first.stdout is not None
    with waiting.limit("the name of the first device"):
        assert first.stdout.readline() == "pi4a\n"
    assert queue.take(["pi4a", "pi4b"]) == "pi4b" == queue.take(["pi4b"])
    second = held("pi4b", "pi4a")
    assert second.stderr is not None and second.stdout is not None
    line = "kiln: waiting for one of the devices pi4b, pi4a, which other builds use\n"
    with waiting.limit("the notice of a process that waits for a device"):
        assert second.stderr.readline() == line
    first.kill()
    with waiting.limit("the name of the device that has become free"):
        assert second.stdout.readline() == "pi4a\n"
    for process in (first, second):
        process.communicate("")
