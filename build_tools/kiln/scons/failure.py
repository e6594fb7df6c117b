"""The end of a failed build: the stage's error line on stderr, exit status 2, and no message of SCons.

SCons has no setting for this: `BuildTask.failed` always writes "scons: *** [target] Error 2". So that method
is wrapped, for Kiln's failures and Ctrl-C only; so is the function that saves the signatures, for a full
disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import SCons.Errors
import SCons.SConsign
import SCons.Script
import SCons.Script.Main
import SCons.Taskmaster.Job

from kiln.errors import INTERRUPTED
from kiln.files import error_text, reason


class StageFailed(SCons.Errors.BuildError):  # type: ignore[misc]
    """A stage ended without its outputs; `line` is the error message for the user."""

    def __init__(self, line: str, node: Any, status: int = 2) -> None:
        super().__init__(node=node, errstr=line, status=status, exitstatus=status)
        self.line = line


_interrupted = threading.Event()
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def interrupted() -> bool:
    """Whether SCons has received Ctrl-C, or another signal that ends a build."""
    return _interrupted.is_set()


def _watch_signals() -> None:
    """Notice signals that end a build in a thread of its own.

    Python runs a handler in the main thread alone. That thread waits for those that run stages, and where a
    signal arrives just before it begins to wait, or in another thread, the handler runs when all have ended.
    """
    watched, written = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while numbers := watched.recv(64):
            if not _ENDING.isdisjoint(numbers):
                _interrupted.set()
        written.close()

    threading.Thread(target=watch, daemon=True).start()


def _keep_hangups_ignored() -> None:
    """Have SCons leave SIGHUP ignored where it was, as nohup has it; its handlers would end the build."""
    jobs = SCons.Taskmaster.Job.Jobs
    original = jobs._setup_sig_handler

    def set_up(self: Any) -> None:
        original(self)
        if self.old_sighup is signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    jobs._setup_sig_handler = set_up


def _of_missing_file(error: BaseException | None) -> str | None:
    """The line about a file of the user that was there when the build was planned; None for other errors."""
    missing = re.match(r"(?:Source|\w+ dependency) `(.*)' not found, needed by target ", str(error))
    if missing is None:
        return None
    return f"kiln: error: {missing[1]}: no such file any more: it was removed or renamed during the build"


def _of_system(error: BaseException | None) -> str | None:
    """The line about an error of the system, such as a folder that cannot be made; None for other errors."""
    if isinstance(error, SCons.Errors.BuildError) and error.exc_info:
        error = error.exc_info[1]
    return f"kiln: error: {error_text(error)}" if isinstance(error, OSError) else None


def install() -> None:
    """Make SCons print StageFailed as one line. Calling it again has no effect."""
    build_task = SCons.Script.Main.BuildTask
    if getattr(build_task.failed, "by_kiln", False):
        return
    original_failed, original_write = build_task.failed, SCons.SConsign.write
    interrupt_state = SCons.Taskmaster.Job.InterruptState

    reported = False

    def failed(self: Any) -> None:
        nonlocal reported
        first, reported = not reported, True
        error = self.exc_info()[1]
        line = error.line if isinstance(error, StageFailed) else _of_missing_file(error) or _of_system(error)
        # SCons and the stages receive Ctrl-C at the same time, so either may be the first to report it.
        if line == INTERRUPTED or getattr(error, "errstr", None) == SCons.Taskmaster.Job.interrupt_msg:
            if first:  # print once, not for each stage that runs at the same time
                print(INTERRUPTED, file=sys.stderr, flush=True)
        elif line is not None:
            # Stages that ran at the same time as the first that failed often fail for the same reason.
            if first or SCons.Script.GetOption("keep_going"):
                print(line, file=sys.stderr, flush=True)
        else:
            original_failed(self)
            return
        self.exception = (type(error), error, None)
        self.do_failed(getattr(error, "exitstatus", 2))
        self.exc_clear()

    def write() -> None:
        # SCons calls this at the end of every build. A build that failed without a failed task was
        # interrupted between two tasks, or only had to report whether anything is out of date (-q).
        if SCons.Script.Main.this_build_status and not reported and not SCons.Script.GetOption("question"):
            print(INTERRUPTED, file=sys.stderr, flush=True)
        try:
            original_write()
        except OSError as error:
            for database in SCons.SConsign.DB_sync_list:
                database._needs_sync = False  # or its destructor tries again, with a traceback
                with contextlib.suppress(OSError):  # half written
                    Path(database._tmp_name).unlink(missing_ok=True)
                name = os.path.relpath(database._file_name)
            if not SCons.Script.Main.exit_status:  # else a failed stage has printed its error
                cause = f"cannot write the signatures of the build: {reason(error)}"
                print(f"kiln: error: {name}: {cause}", file=sys.stderr)
            SCons.Script.Main.exit_status = 2

    def interrupt(self: Any) -> None:
        _interrupted.set()
        self.interrupted = True

    _watch_signals()
    _keep_hangups_ignored()
    interrupt_state.set = interrupt
    failed.by_kiln = True  # type: ignore[attr-defined]
    build_task.failed = failed
    SCons.SConsign.write = write
