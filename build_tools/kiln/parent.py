"""The process that started this one: its end can be this one's as well."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel end this process, by the signal `by`, when its parent ends.

    Fits `preexec_fn`. Does nothing outside of Linux.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(by))


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """End this process, by the signal `by`, when process `parent` ends, or now if it has ended already.

    Nothing is then written after the end of a build. Does nothing outside of Linux.
    """
    end_with_parent(by)
    if sys.platform == "linux" and os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), by)
