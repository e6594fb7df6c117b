"""Runs a command in a child process, whose end by a signal is one line as any other error.

Commands that run a model in ONNX Runtime, LiteRT or PyTorch may end by a fault of these libraries, and while
their code runs, Python handles no Ctrl-C. So a process that does nothing else starts the command and waits:

1. It hands on the signals that end a command, other than those that a terminal sends to both processes.
2. If the command still runs `_SECONDS_TO_END` seconds after such a signal, it and its processes are killed.
3. If another signal ends the command, it prints which, and what the command did (see `kiln.doing`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Set

from kiln import doing
from kiln.errors import INTERRUPTED
from kiln.parent import end_with_parent
from kiln.process_tree import kill_tree
from kiln.scratch import remove_abandoned

_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SI_KERNEL = 0x80  # si_code of a signal that a terminal sends
_SECONDS_TO_END = 10.0


def supervised(run: Callable[[], int], report: Callable[[str, str], int]) -> int:
    """Call `run` in a child process; returns its exit status.

    `report` prints an error of the command, of a code and a text, and returns the status.
    """
    notes = os.memfd_create("kiln-doing")
    parent = os.getpid()
    ending = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    watched = {*ending, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        end_with_parent()
        if os.getppid() != parent:  # it ended before
            os._exit(2)
        doing.write_to(notes)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        sys.exit(run())
    status = _wait(child, ending)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
    if status is not None and status >= 0:
        return status
    remove_abandoned()
    if status is None or -status in _ENDING:
        return report("interrupted", INTERRUPTED)
    while_text, remedy = doing.last(_lines(notes))
    subject = " ".join([sys.argv[1], *(word for word in sys.argv[2:3] if not word.startswith("-"))])
    text = f"{subject}: killed by {signal.Signals(-status).name}{while_text}"
    return report("fault", f"kiln: error: {text}{remedy and f': {remedy}'}")


def _wait(child: int, ending: Set[signal.Signals]) -> int | None:
    """The exit status of a child process, below zero for a signal; None if it had to be killed.

    `ending`: signals that end a command, which this process has blocked, as SIGCHLD.
    """
    end = None
    while True:
        seconds = 3600.0 if end is None else max(end - time.monotonic(), 0.01)
        got = signal.sigtimedwait({*ending, signal.SIGCHLD}, seconds)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if got is not None and got.si_signo in ending:
            end = end or time.monotonic() + _SECONDS_TO_END
            if got.si_code != _SI_KERNEL:
                os.kill(child, got.si_signo)
        if end is not None and time.monotonic() >= end:
            kill_tree(child)
            os.waitpid(child, 0)
            return None


def _lines(descriptor: int) -> list[str]:
    """The lines of an open file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, errors="replace") as stream:
        return stream.read().splitlines()
