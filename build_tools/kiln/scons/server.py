"""The client side of `kiln.stage_server`, the process that forks one process for each stage."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.errors import KilnError
from kiln.scons.build_scratch import BuildScratch
from kiln.scons.server_process import NewServer, ServerProcess, forked_servers, stage_environment
from kiln.stage_server import LENGTH, PREPARED, STATUS
from kiln.stages import STAGES
from kiln.tokens import Tokens


class Running:
    """A running stage: `stdout` and `stderr` are its output, as text streams."""

    def __init__(self, server: ServerProcess, request: socket.socket, stdout: int, stderr: int) -> None:
        self._server = server
        self._request = request
        self.stdout, self.stderr = os.fdopen(stdout, errors="replace"), os.fdopen(stderr, errors="replace")

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit status, negative for a signal; None where the stage still runs after `seconds`.

        Raises KilnError where the server ended with an error of its own.
        """
        self._request.settimeout(seconds)
        answer = b""
        try:
            answer = self._request.recv(STATUS.size)
        except TimeoutError:
            return None
        except ConnectionResetError:  # the server is gone
            pass
        self._request.close()
        if len(answer) == STATUS.size:
            return int(STATUS.unpack(answer)[0])
        status = self._server.end()  # killed, and the stage with it
        if status >= 0:
            reason = self._server.last_line()
            raise KilnError(f"the process that starts stages ended with status {status}: {reason}")
        return status

    def kill(self) -> None:
        """Kill the stage if it still runs, and wait until its process has ended."""
        if self._request.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._request.shutdown(socket.SHUT_WR)
            self.wait()


class StageServer:
    """Starts stages, from any thread.

    The server process starts with the first stage, and again after a crash. `prepare` starts it before, and
    while it imports modules a second process starts the stages that are declared `early`. Both are forks of
    the command `kiln` where it has made them (`fork_servers`). Temporary files of all stages are in a folder
    of their own, `scratch`.
    """

    def __init__(self) -> None:
        forked = forked_servers()
        self.scratch = BuildScratch() if forked is None else forked.scratch
        self._lock = threading.Lock()
        self._process: ServerProcess | None = None if forked is None else forked.main
        self._early: ServerProcess | None = None if forked is None else forked.early
        self._prepared = forked is not None and forked.importing  # `_process` was told to import modules
        self._importing = self._prepared  # and has not said that it is done
        self._idle = True  # `_process` has started no stage
        atexit.register(self.close)

    def start(
        self,
        name: str,
        flags: Sequence[str],
        environment: Mapping[str, str],
        keep: Sequence[int] = (),
        folder: Path | None = None,
        tokens: Tokens | None = None,
    ) -> Running:
        """Start the stage `name` in `folder`, or in this working folder.

        The file descriptors `keep` stay open while it runs; its forks share `tokens`. Raises OSError where no
        process, pipe or temporary folder can be created.
        """
        working_folder = str(folder or Path.cwd())
        shared = tokens.descriptors if tokens is not None else ()
        request = {
            "arguments": [name, *flags],
            "environment": {**environment, "TMPDIR": str(self.scratch.folder())},
            "folder": working_folder,
            "tokens": len(shared),
        }
        text = json.dumps(request).encode()
        (out, out_end), (err, err_end), (ours, theirs) = os.pipe(), os.pipe(), socket.socketpair()
        passed = [theirs.fileno(), out_end, err_end, *shared, *keep]
        try:
            with self._lock:
                process = self._process_for(name)
            with contextlib.suppress(OSError):  # the server is gone: `wait` reports the reason
                socket.send_fds(process.control, [name.encode()], passed)
        finally:
            theirs.close()
            os.close(out_end)
            os.close(err_end)
        with contextlib.suppress(OSError):
            ours.sendall(LENGTH.pack(len(text)) + text)
        return Running(process, ours, out, err)

    def prepare(self, names: Sequence[str]) -> None:
        """Start the server process, and let it import the modules of these stages in the meantime.

        No effect where the process imports modules already, or has started a stage.
        """
        with self._lock:
            if self._prepared or not self._idle:
                return
            if self._process is None:
                self._process = NewServer(self.scratch.folder())
            self._process.import_modules(names)
            self._prepared = self._importing = True

    def _process_for(self, name: str) -> ServerProcess:
        """The process that starts a stage; a new one where there is none."""
        if self._process is None or not self._process.is_running():
            self._process, self._importing = NewServer(self.scratch.folder()), False
        if self._importing:
            with contextlib.suppress(OSError):
                self._importing = self._process.control.recv(len(PREPARED), socket.MSG_DONTWAIT) != PREPARED
        if self._importing and STAGES[name].spec.early:
            if self._early is None or not self._early.is_running():
                self._early = NewServer(self.scratch.folder())
            return self._early
        self._idle = False
        return self._process

    def run(self, name: str, flags: Sequence[str]) -> tuple[int, str, str]:
        """Run a stage to its end; returns exit status, stdout and stderr. Raises OSError as `start` does."""
        running = self.start(name, flags, stage_environment())
        errors: list[str] = []
        with running.stdout, running.stderr:
            reader = threading.Thread(target=lambda: errors.append(running.stderr.read()))
            reader.start()
            stdout = running.stdout.read()
            reader.join()
        status = running.wait()
        assert status is not None  # there is no limit of time
        return status, stdout, errors[0]

    def abort(self) -> None:
        """Kill every stage that runs, and the server: while it imports modules it would answer late."""
        with self._lock:
            for process in (self._early, self._process):
                if process is not None:
                    process.kill_all()

    def close(self) -> None:
        """End the server process, and with it every stage that still runs."""
        with self._lock:
            if self._early is not None:
                self._early.end()
                self._early = None
            if self._process is not None:
                if self._idle:
                    self._process.kill()
                else:
                    self._process.end()
                self._process = None
            self.scratch.remove()
