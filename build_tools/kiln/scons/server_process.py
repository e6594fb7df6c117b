"""The processes of `kiln.stage_server`: as new interpreters, or as forks of the command `kiln`.

A fork has imported already what the command has, such as pydantic and the declarations of the stages, and
starts before SCons does: `fork_servers`. It is no copy of an SCons run, which has threads and open files.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

from kiln import stage_server
from kiln.interpreter import module_command
from kiln.process_tree import kill_tree
from kiln.scons.build_scratch import BuildScratch

_PACKAGES = str(Path(__file__).resolve().parents[2])
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _close_own(file: IO[bytes], owner: int) -> None:
    """Close a file in the process that opened it: in its forks, the number may be that of another file."""
    if os.getpid() == owner:
        file.close()


class ServerProcess(ABC):
    """A process that starts stages; `control` is this side's end of the socket for requests."""

    pid: int

    def __init__(self) -> None:
        self.control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        weakref.finalize(self, _close_own, self._log, os.getpid())

    def import_modules(self, names: Sequence[str]) -> None:
        """Let the process import the modules of these stages, and say so when it has."""
        with contextlib.suppress(OSError):  # the process is gone: a stage starts another one
            self.control.send(" ".join(names).encode())

    @abstractmethod
    def _status(self, wait: bool) -> int | None:
        """The exit status, negative for a signal; None where the process still runs and `wait` is false."""

    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._status(wait=False) is None

    def kill(self) -> None:
        """End the process, which runs no stage, even while it imports modules."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
        self.end()

    def kill_all(self) -> None:
        """Kill the process, its stages and all their descendants, whatever they are doing."""
        if self.is_running():
            kill_tree(self.pid)

    def end(self) -> int:
        """Close `control`, which ends the process; returns its exit status."""
        self.control.close()
        status = self._status(wait=True)
        assert status is not None
        return status

    def last_line(self) -> str:
        """The last line that the process itself wrote to stderr."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "no reason given")


class NewServer(ServerProcess):
    """A new interpreter. It removes the folder `scratch` when it ends."""

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        with self._theirs:
            self._popen = subprocess.Popen(
                module_command("kiln.stage_server", str(self._theirs.fileno()), str(scratch)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=stage_environment(),
                pass_fds=[self._theirs.fileno()],
            )
        self.pid = self._popen.pid

    def _status(self, wait: bool) -> int | None:
        return self._popen.wait() if wait else self._popen.poll()


class ForkedServer(ServerProcess):
    """A fork of this process, which must have one thread. It removes the folder `scratch` when it ends."""

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self._ended: int | None = None
        self._lock = threading.Lock()  # threads of a build wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(self._theirs, self._log.fileno(), scratch, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._theirs.close()

    def _status(self, wait: bool) -> int | None:
        with self._lock:
            if self._ended is None:
                pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
                if pid:
                    self._ended = os.waitstatus_to_exitcode(status)
            return self._ended


def _serve(control: socket.socket, log: int, scratch: Path, mask: set[int | signal.Signals]) -> NoReturn:
    """Become what a new interpreter is that runs `kiln.stage_server`, except for the modules it has imported.

    `mask`: the signals that are blocked in it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((null, null, log)):
        os.dup2(source, number)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != control.fileno():
            with contextlib.suppress(OSError):  # the folder's own, closed since
                os.close(number)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    atexit._clear()
    encoding = sys.__stdout__.encoding if sys.__stdout__ is not None else "utf-8"
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - open to the end of the process
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    environment = stage_environment()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["stage_server", str(control.detach()), str(scratch)]
    stage_server.main()


class EarlyServers:
    """Two servers that were forked before SCons started, for the stages of a build and for its early ones."""

    def __init__(self) -> None:
        self.scratch = BuildScratch()
        folder = self.scratch.folder()
        self.main, self.early = ForkedServer(folder), ForkedServer(folder)
        self.importing = False

    def import_modules(self, names: Sequence[str]) -> None:
        """Let the server of the stages import these stages' modules; the other one starts early stages."""
        self.main.import_modules(names)
        self.importing = True

    def close(self) -> None:
        """End both processes, which have started no stage."""
        self.main.kill()
        self.early.kill()
        self.scratch.remove()


_forked: list[EarlyServers] = []


def fork_servers() -> EarlyServers | None:
    """Fork the servers for the one build of this process, which has one thread.

    Returns None where a new interpreter is needed: with hashes of texts that differ from run to run, which
    the order of sets in a bundle would show, and on other systems than Linux, whose libraries may not be
    forked.
    """
    if sys.platform != "linux" or os.environ.get("PYTHONHASHSEED") != "0":
        return None
    servers = EarlyServers()
    _forked.append(servers)
    atexit.register(_close_unused)
    return servers


def _close_unused() -> None:
    while _forked:
        _forked.pop().close()


def forked_servers() -> EarlyServers | None:
    """The servers that `fork_servers` has forked, for the one caller that uses and ends them."""
    return _forked.pop() if _forked else None


def stage_environment(**more: str) -> dict[str, str]:
    """Environment variables for a stage: this process's own, PYTHONHASHSEED=0, PYTHONPATH, and `more`.

    OpenBLAS, which NumPy imports, starts no threads, which wait for work in a loop, unless the user says so.
    """
    path = os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))
    threads = {"OPENBLAS_NUM_THREADS": "1"}
    return {**threads, **os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, **more}
