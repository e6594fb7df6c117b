"""A process and all of its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_tree(pid: int) -> None:
    """Kill a child process and all of its descendants, which would otherwise keep running.

    They are stopped first: a process that starts another one meanwhile would leave it without a parent.
    """
    stopped: set[int] = set()
    running = {pid}
    while running:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        stopped |= running
        running = {child for child, parent in _parents().items() if parent in stopped} - stopped
    for process in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a process that has just ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    return parents
