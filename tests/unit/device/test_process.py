"""Client programs of this machine, started by kiln.device.process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from kiln.device import process
from kiln.errors import KilnError

PARENT = """
from kiln.device import process
if {plain}:
    process._killed_with_parent = lambda: ()
process.run(["sh", "-c", "echo $$ >number; mv number pid; exec sleep 1000"], description="it", timeout=1000)
"""


def runs(number: int) -> bool:
    """Whether a process has not ended yet."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.parametrize("plain", [False, True], ids=["setpriv", "no setpriv"])
def test_a_command_ends_with_the_process_that_started_it(plain: bool, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT.format(plain=plain)], cwd=tmp_path) as parent:

        def started() -> bool:
            assert parent.poll() is None, "the parent ended before it started the command"
            return (tmp_path / "pid").exists()

        waiting.until(started, "the start of the command")
        parent.kill()
    number = int((tmp_path / "pid").read_text())
    waiting.until(lambda: not runs(number), "the end of a command whose parent was killed")


def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "program"
    damaged.write_bytes(b"\x7fELF damaged")
    damaged.chmod(0o755)
    for program, reason in (
        ("absent-program", "No such file or directory"),
        (str(damaged), "Exec format error"),
    ):
        with pytest.raises(KilnError) as caught:
            process.run([program], description="it", timeout=60)
        assert str(caught.value) == f"it: cannot start {program}: {reason}"
