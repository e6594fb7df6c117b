"""Waits of tests, each with a limit: what never comes fails one test by name, and hangs no run."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

SECONDS = 120.0  # for what takes a moment on a machine that is not busy
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_Value = TypeVar("_Value")


@contextlib.contextmanager
def limit(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Raise TimeoutError that names `what` where the block, such as a read of a pipe, takes longer.

    For the main thread of a process, in which pytest runs tests: a signal interrupts what it waits for.
    """

    def expired(*_: object) -> NoReturn:
        raise TimeoutError(f"{what}: not after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def until(value: Callable[[], _Value], what: str, seconds: float = SECONDS) -> _Value:
    """Call `value` until its result counts as true, and return that; TimeoutError that names `what`."""
    end = time.monotonic() + seconds
    while not (result := value()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not after {seconds:g} s")
        time.sleep(0.01)
    return result


def for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the process `server` listens on a TCP port of this machine, without connecting.

    A connection would be the visit of a first client, such as a debugger, after which some servers end.
    """

    def listens() -> bool:
        assert server.poll() is None, f"{server.args} ended with status {server.poll()}"
        lines = Path("/proc/net/tcp").read_text().splitlines()
        return any(f":{port:04X} " in line and f" {_LISTENING} " in line for line in lines)

    until(listens, f"a server on port {port}")
