"""Runs a function on many items in forks of this process, as many as the build may use."""

from __future__ import annotations

import os
import select
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kiln import limits
from kiln.errors import KilnError
from kiln.tokens import Tokens

_NUMBER = struct.Struct("<i")
_FEWEST = 4  # items for which a fork pays
_MOST_NUMBERS = 1024  # that an empty pipe takes for certain
# Bytes of memory for each process, where -j does not say how many. A fork shares TVM and the weights with its
# stage, and takes some 40 MB for the kernels of a small model; this leaves room for large ones.
_MEMORY = 1 << 29
_Item = TypeVar("_Item")


def each(function: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Call `function` with each of `items`, which it must be able to do in any order and any process.

    In a build, each fork but the first needs a token (`kiln.tokens`): forks start and end as the build's
    other stages leave tokens. Raises the first KilnError of a call; other exceptions as one KilnError. A fork
    that a signal kills ends this process by the same signal, as if it had made the call itself.
    """
    if not pays(len(items)):
        for item in items:
            function(item)
        return
    work = _Work(function, items)
    try:
        work.run()
    finally:
        work.wait()
    killed = next((-status for status in work.statuses if status < 0), None)
    if killed is not None:
        signal.signal(killed, signal.SIG_DFL) if killed != signal.SIGKILL else None
        os.kill(os.getpid(), killed)
    if any(work.statuses):
        errors = work.said.decode(errors="replace").splitlines()
        raise KilnError(errors[0] if errors else limits.silent_end(max(work.statuses)))


def pays(items: int) -> bool:
    """Whether `each` forks this process for so many items."""
    return items >= _FEWEST and jobs() > 1 and threads() == 1


@dataclass(frozen=True)
class _Child:
    """A fork, which holds a token of the build or not."""

    pid: int
    holds: bool


class _Work(Generic[_Item]):
    """Forks that take the numbers of items from one pipe; each writes its errors into a pipe of its own."""

    def __init__(self, function: Callable[[_Item], None], items: Sequence[_Item]) -> None:
        self._function, self._items = function, items
        self._step = -(-len(items) // _MOST_NUMBERS)  # items for each number
        self._most = min(jobs(), len(items) // 2)
        self._tokens = Tokens.inherited()
        self._forks: dict[int, _Child] = {}  # by the descriptor of its errors
        self.said = b""
        self.statuses: list[int] = []
        self._numbers, writer = os.pipe()
        with os.fdopen(writer, "wb") as stream:
            stream.write(b"".join(map(_NUMBER.pack, range(0, len(items), self._step))))

    def run(self) -> None:
        """Start forks, and follow them until all items are done."""
        self._fork(holds=False)
        while self._forks:
            more = len(self._forks) < self._most and not any(self.statuses) and self._left()
            if more and self._tokens is None:
                self._fork(holds=False)
                continue
            poll = select.poll()
            for descriptor in self._forks:
                poll.register(descriptor, select.POLLIN)
            if more and self._tokens is not None:
                poll.register(self._tokens.free, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor in self._forks:
                    self._read(descriptor)
                elif self._tokens is not None and self._tokens.take_for_fork():
                    self._fork(holds=True)

    def wait(self) -> None:
        """Wait for the forks that still run, and close the pipe."""
        for descriptor in list(self._forks):
            self._end(descriptor)
        os.close(self._numbers)

    def _left(self) -> bool:
        """Whether there are items that no fork has taken."""
        poll = select.poll()
        poll.register(self._numbers, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def _read(self, descriptor: int) -> None:
        """Read a message of a fork, or note its end."""
        text = os.read(descriptor, 4096)
        self.said += text
        if not text:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        """Wait for the end of a fork, and give back the token of a killed one."""
        fork = self._forks.pop(descriptor)
        os.close(descriptor)
        self.statuses.append(os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1]))
        if fork.holds and self._tokens is not None:
            self._tokens.give_back()

    def _fork(self, holds: bool) -> None:
        """Start a fork."""
        errors, writer = os.pipe()
        child = os.fork()
        if child:
            os.close(writer)
            self._forks[errors] = _Child(child, holds)
            return
        status = 1
        try:
            self._take_items(holds)
            status = 0
        except KilnError as error:
            os.write(writer, f"{error}\n".encode())
        except BaseException as error:
            traceback.print_exc()
            text = (str(error).splitlines() or [""])[0]
            os.write(writer, f"{type(error).__name__}: {text}\n".encode())
        finally:
            os._exit(status)

    def _take_items(self, holds: bool) -> None:
        """Compute items in a fork, until none is left or a stage waits for the token that the fork holds."""
        while number := os.read(self._numbers, _NUMBER.size):
            first = _NUMBER.unpack(number)[0]
            for item in self._items[first : first + self._step]:
                self._function(item)
            if holds and self._tokens is not None and self._tokens.is_awaited():
                return


def jobs() -> int:
    """The number of processes that may work at the same time: the number after -j, else one for each core.

    Without -j, memory bounds the number too.
    """
    processes_allowed = os.environ.get(limits.JOBS, "")
    if processes_allowed.isdecimal():
        return max(int(processes_allowed), 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, limits.memory() // _MEMORY))


def threads() -> int:
    """The number of threads of this process; 2, which forbids a fork, where the system does not report it.

    Only a process of one thread may fork: in the fork, a lock that another thread holds is never released.
    """
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 2
