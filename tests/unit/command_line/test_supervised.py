"""Commands in a child process: the ends of a command that is killed, that hangs, and that does neither."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from kiln.scons.server import stage_environment

_BEGINNING = """
import ctypes, os, signal, sys
from kiln import doing
from kiln.command_line import supervised

def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)

def report(code, text):
    print(code, text.partition("kiln: ")[2])
    return 2

def started():
    print("started", os.getpid(), flush=True)

def run():
    RUN

supervised._SECONDS_TO_END = LIMIT
sys.argv = ["kiln", "evaluate", "net.tflite"]
sys.exit(supervised.supervised(run, report))
"""
_HANGS = """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in code in which Python handles none
    started()
    signal.sigwait({signal.SIGTERM})
"""
_ENDS = """
    try:
        started()
        signal.pause()
    except KeyboardInterrupt:
        print("interrupted")
        return 2
"""


def _program(run: str) -> list[str]:
    """Only what hangs is ended early: on a busy machine others may take long."""
    seconds = "0.1" if run == _HANGS else "600"
    return [sys.executable, "-c", _BEGINNING.replace("LIMIT", seconds).replace("RUN", run.strip())]


@pytest.mark.parametrize(
    "run, status, output",
    [
        ("return 1", 1, ""),
        (
            "os.kill(os.getpid(), signal.SIGABRT)",
            2,
            "fault error: evaluate net.tflite: killed by SIGABRT\n",
        ),
        (
            "with doing.noted('a library ran the model', 'try another one'):\n"
            "        os.kill(os.getpid(), signal.SIGSEGV)",
            2,
            "fault error: evaluate net.tflite: killed by SIGSEGV while a library ran the model: "
            "try another one\n",
        ),
    ],
)
def test_a_command_that_a_signal_ends_has_an_error(
    run: str, status: int, output: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        _program(run), env=stage_environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")


@pytest.mark.parametrize("run, output", [(_HANGS, "interrupted interrupted\n"), (_ENDS, "interrupted\n")])
def test_a_command_ends_at_an_interrupt_whatever_it_does(run: str, output: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        _program(run), env=stage_environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        with waiting.limit("the end of a command that is interrupted"):
            child = int(process.stdout.readline().split()[1])
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == output
            assert process.wait() == 2
    assert not Path(f"/proc/{child}").exists()


def test_a_signal_while_the_process_ends(tmp_path: Path) -> None:
    """A second Ctrl-C, while the processes that a build has started are ended: no traceback, and they end."""
    program = (
        "import atexit, os, signal, sys; from kiln.command_line.entry import main\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    atexit.register(lambda number=number: (os.kill(os.getpid(), number), print(int(number))))\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[2:], done.stderr) == (0, ["1", "15", "2"], "")
