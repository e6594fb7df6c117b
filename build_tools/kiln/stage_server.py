"""Fork server for a build's stages: imports their modules once, and runs each stage in a fork.

Each stage is still a separate process with its own memory, but saves the time to import TVM and Kiln's own
modules, which takes longer than most stages run. `kiln.scons.server` is the client.

1. A message on the control socket is the name of a stage; the descriptors sent with it are a request socket,
   stdout and stderr, the two of the build's tokens (kiln.tokens) or none, and files that the stage is to keep
   open. Without descriptors, only step 2's import is done, the message may be several names, and the reply on
   the control socket is PREPARED.
2. The module of the stage is imported here, once, then the process forks. The fork reads its arguments,
   environment and working folder from the request socket and runs the stage as `python -m kiln` does.
3. The exit status of the fork, below zero for a signal, is sent as the reply on the request socket. If the
   client closes or shuts down its end of the request socket, the fork is killed. Processes that a fork has
   left behind, and that could still write its output, are killed: the client reads to the output's end.
4. When the control socket is closed, the build has ended: all forks are killed, the folder of their temporary
   files is removed, and this process ends. When this process is killed, the kernel kills its forks (see
   `kiln.__main__`).

Nothing here may start a thread: after a fork only the forking thread exists, and a lock that another thread
held stays locked. Stages import libraries that start threads (ONNX Runtime) inside their functions.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kiln import tokens
from kiln.__main__ import main as run_stage
from kiln.process_tree import kill_tree
from kiln.stages import STAGES
from kiln.tvm_import import names_listed_once

LENGTH = struct.Struct("<q")  # bytes of the JSON text that follows on the request socket
STATUS = struct.Struct("<i")
PREPARED = b"prepared"  # the reply to a message without descriptors
_MOST_DESCRIPTORS = 16
_COLLECT = (50_000, 50, 100)  # see gc.set_threshold: with the default a tenth of a stage's time is collection
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


@dataclass
class _Fork:
    """A running stage: its process, its request socket, and the pipes of its output, by device and inode."""

    pid: int
    request: socket.socket
    output: frozenset[tuple[int, int]]


class _Server:
    """Accepts requests on the control socket, starts forks and reports their exit statuses."""

    def __init__(self, control: socket.socket, scratch: str | None) -> None:
        self.control, self.scratch = control, scratch
        self.forks: dict[int, _Fork] = {}  # by the descriptor of the request socket
        self.own_output = [os.dup(1), os.dup(2)]
        self.interrupted = False
        self.kept: Sequence[int] = ()  # in a fork: the descriptors that its stage keeps open
        self.woken, self.wakes = socket.socketpair()
        for end in (self.woken, self.wakes):
            end.setblocking(False)
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(self.woken, select.POLLIN)

    def serve(self) -> socket.socket | None:
        """Serve requests. Returns None when the build has ended, and in a fork the fork's request socket."""
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakes.fileno(), warn_on_full_buffer=False)
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.woken.fileno():
                    self._reap()
                elif descriptor in self.forks:
                    self.poll.unregister(descriptor)
                    kill_tree(self.forks[descriptor].pid)
                elif descriptor == self.control.fileno():
                    name, descriptors, _, _ = socket.recv_fds(
                        self.control, 256, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                    )
                    if not name:
                        self._end()
                        return None
                    if not descriptors:
                        self._prepare(name.decode().split())
                        continue
                    _load(name.decode())
                    request = self._fork(descriptors)
                    if request is not None:
                        return request

    def _prepare(self, names: Sequence[str]) -> None:
        """Import the modules of these stages, and say so."""
        with names_listed_once():
            for name in names:
                _load(name)
        with contextlib.suppress(OSError):  # the build has ended
            self.control.send(PREPARED)

    def _interrupt(self, *_: object) -> None:
        """Handle Ctrl-C, which the build and all forks receive too: later requests end at once."""
        self.interrupted = True

    def _fork(self, descriptors: Sequence[int]) -> socket.socket | None:
        """Start a stage. Returns its request socket in the fork, None in this process."""
        request = socket.socket(fileno=descriptors[0])
        _redirect(descriptors[1:3])
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # garbage collection in a fork would copy every page that the imports have filled
        os.environ["KILN_PARENT"] = str(os.getpid())
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.interrupted:
                raise KeyboardInterrupt
            for unused in (self.control, self.woken, self.wakes, *(f.request for f in self.forks.values())):
                unused.close()
            for output in (*self.own_output, *descriptors[1:3]):
                os.close(output)
            self.kept = descriptors[3:]
            return request
        _redirect(self.own_output)
        pipes = frozenset(_identity(os.fstat(descriptor)) for descriptor in descriptors[1:3])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        self.forks[request.fileno()] = _Fork(pid, request, pipes)
        self.poll.register(request, _GONE)
        return None

    def _reap(self) -> None:
        """Send the exit statuses of the forks that have ended."""
        with contextlib.suppress(BlockingIOError):
            while self.woken.recv(256):
                pass
        for descriptor, fork in list(self.forks.items()):
            pid, status = os.waitpid(fork.pid, os.WNOHANG)
            if pid:
                with contextlib.suppress(KeyError):
                    self.poll.unregister(descriptor)
                with contextlib.suppress(OSError):  # the client no longer waits for the status
                    fork.request.send(STATUS.pack(os.waitstatus_to_exitcode(status)))
                fork.request.close()
                del self.forks[descriptor]
                self._end_orphans(fork)

    def _end_orphans(self, ended: _Fork) -> None:
        """Kill what a stage has left behind with its output open, and wait for orphans that have ended.

        They are children of this process now (see `_adopt_orphans`).
        """
        stages = {fork.pid for fork in self.forks.values()}
        for pid in _children() - stages:
            if os.waitpid(pid, os.WNOHANG)[0] == 0 and _holds(pid, ended.output):
                kill_tree(pid)
                os.waitpid(pid, 0)

    def _end(self) -> None:
        """Kill all forks, wait for their ends, and remove the folder of their temporary files."""
        for fork in self.forks.values():
            kill_tree(fork.pid)
        for fork in self.forks.values():
            os.waitpid(fork.pid, 0)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


def _keep_freed_memory() -> None:
    """Let malloc, also that of forks, keep freed memory of any size for the next allocation.

    glibc otherwise maps and unmaps each buffer as large as a model's weights, which costs a page fault for
    each of its pages: half of the time in which ONNX's libraries check and copy a file of 100 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def _load(name: str) -> None:
    """Import the module of a stage, where there is one."""
    if name in STAGES:
        with contextlib.suppress(Exception):  # the fork raises the exception again, and reports it
            importlib.import_module(STAGES[name].spec.module)


def _adopt_orphans() -> None:
    """Let the kernel make this process the parent of every process that its descendants leave behind."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _children() -> set[int]:
    """The child processes of this process; none where the kernel does not list them."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return set()
    return {int(pid) for pid in text.split()}


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Device and inode of a file."""
    return status.st_dev, status.st_ino


def _holds(pid: int, output: frozenset[tuple[int, int]]) -> bool:
    """Whether a process has one of these pipes open."""
    with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if _identity(entry.stat()) in output:
                    return True
    return False


def _redirect(outputs: Sequence[int]) -> None:
    """Redirect stdout and stderr to these two descriptors."""
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)


def _run(request: socket.socket, kept: Sequence[int]) -> int:
    """Run the stage whose arguments the client sends on the request socket; return its exit status.

    `kept`: descriptors that the client has sent, first those of the build's tokens.
    """
    with request, request.makefile("rb") as stream:
        header = stream.read(LENGTH.size)
        content = json.loads(stream.read(LENGTH.unpack(header)[0])) if len(header) == LENGTH.size else None
    if content is None:  # the build was killed while it sent the request
        return 2
    parent = os.environ["KILN_PARENT"]
    os.environ.clear()
    os.environ.update({**content["environment"], "KILN_PARENT": parent})
    if content["tokens"]:
        os.environ[tokens.VARIABLE] = ",".join(map(str, kept[: content["tokens"]]))
    os.chdir(content["folder"])
    sys.argv = ["kiln", *content["arguments"]]
    return run_stage()


def _leave(status: int) -> NoReturn:
    """End this process as Python does, but without the clean-up of imported modules: 65 ms for TVM."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def main() -> NoReturn:
    """Serve the build on the control socket whose descriptor is the first command-line argument.

    The second one, if there is one, is the folder of temporary files.
    """
    gc.set_threshold(*_COLLECT)
    _adopt_orphans()
    _keep_freed_memory()
    server = _Server(socket.socket(fileno=int(sys.argv[1])), sys.argv[2] if len(sys.argv) > 2 else None)
    request = server.serve()
    _leave(0 if request is None else _run(request, server.kept))


if __name__ == "__main__":
    main()
