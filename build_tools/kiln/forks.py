"""Runs a function on many items in forks of this process, as many as the build may use."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kiln.errors import KilnError
from kiln.limits import JOBS

_NUMBER = struct.Struct("<i")
_FEWEST = 4  # items for which a fork pays
_Item = TypeVar("_Item")


def each(function: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Call `function` with each of `items`, which it must be able to do in any order and any process.

    Raises the first KilnError of a call; other exceptions as one KilnError. A fork that a signal kills ends
    this process by the same signal, as if it had made the call itself.
    """
    count = min(jobs(), len(items) // 2)
    if count < 2 or len(items) < _FEWEST or threads() > 1:
        for item in items:
            function(item)
        return
    reader, writer = os.pipe()
    failed, fails = os.pipe()
    children = [_fork(function, items, reader, writer, fails) for _ in range(count)]
    for end in (reader, fails):
        os.close(end)
    try:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as numbers:
            numbers.write(b"".join(_NUMBER.pack(number) for number in range(len(items))))
        with os.fdopen(failed, encoding="utf-8", errors="replace") as stream:
            errors = stream.read().splitlines()
    finally:
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    killed = next((-status for status in statuses if status < 0), None)
    if killed is not None:
        signal.signal(killed, signal.SIG_DFL) if killed != signal.SIGKILL else None
        os.kill(os.getpid(), killed)
    if any(statuses):
        raise KilnError(errors[0] if errors else "a process ended without a reason")


def _fork(
    function: Callable[[_Item], None], items: Sequence[_Item], reader: int, writer: int, fails: int
) -> int:
    """Start a process that takes the numbers of items from `reader`; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.close(writer)  # else the pipe has no end
        while number := os.read(reader, _NUMBER.size):
            function(items[_NUMBER.unpack(number)[0]])
        status = 0
    except KilnError as error:
        os.write(fails, f"{error}\n".encode())
    except BaseException as error:
        traceback.print_exc()
        text = (str(error).splitlines() or [""])[0]
        os.write(fails, f"{type(error).__name__}: {text}\n".encode())
    finally:
        os._exit(status)


def jobs() -> int:
    """How many processes may work at the same time: the number after -j, else one for each core."""
    given = os.environ.get(JOBS, "")
    if given.isdecimal():
        return max(int(given), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """The number of threads of this process; 2, which forbids a fork, where the system does not report it.

    Only a process of one thread may fork: in the fork, a lock that another thread holds is never released.
    """
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 2
