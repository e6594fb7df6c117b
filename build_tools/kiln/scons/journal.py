"""Journal and lock of a build folder: after a killed build, or with two builds, no stale artefact is trusted.

SCons writes the signatures of the files it built when it ends. Killed before that, it leaves artefacts with
the signatures of an earlier build: once the configuration is set back, they look up to date. So:

1. Every stage's outputs are written to a journal before the stage starts, and again when they are complete.
2. SCons's file of signatures is written after the journal's last line. The journal's first line says which
   file of signatures was there before; the same one at the next start means that a build was killed. (Times
   would not tell after a change of the clock.) Outputs that were incomplete are removed, with their temporary
   files. Complete outputs stay, for programs that use them; but SCons drops the signatures of both kinds, so
   that a build that needs one of them makes it again.
3. A lock on the folder, which every stage's process inherits, makes the next build wait until the last
   process of a killed build has ended. So no process of an earlier build writes while a later one runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import SCons.Node.FS
import SCons.SConsign

from kiln.errors import KilnError

_COMPLETE = "made "  # prefix of lines for complete outputs; lines without it name outputs that were started
_SIGNATURES = "signatures "  # prefix of the first line


class Journal:
    """The journal and the lock of one build folder; `lock` is the descriptor that stages inherit."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.path = work / "journal"
        self.interrupted: list[str] = []  # outputs of a killed build, which are made again
        self._first_line = threading.Lock()  # stages start in several threads
        for path in (work / "lock", self.path):
            if path.is_dir():
                raise KilnError(f"{path}: a folder, where the build writes a file: remove it")
        self.lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("kiln: waiting for another build in this folder", file=sys.stderr, flush=True)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self._recover()

    def begin(self, outputs: Sequence[str]) -> None:
        """Record that the stage of these files starts. Raises OSError where the journal cannot be written."""
        self._write(outputs)

    def end(self, outputs: Sequence[str]) -> None:
        """Record that these files are complete. Raises OSError where the journal cannot be written."""
        self._write([f"{_COMPLETE}{output}" for output in outputs])

    def _write(self, lines: Sequence[str]) -> None:
        with self._first_line, self.path.open("a", encoding="utf-8") as stream:
            if stream.tell() == 0:
                lines = [f"{_SIGNATURES}{_signatures()}", *lines]
            stream.writelines(f"{line}\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())

    def _recover(self) -> None:
        if not self.path.exists():
            return
        # A power failure may have damaged its last lines.
        lines = self.path.read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines()
        before = lines.pop(0) if lines and lines[0].startswith(_SIGNATURES) else None
        completed: dict[str, bool] = {}
        for line in lines:
            if name := line.removeprefix(_COMPLETE):
                completed[name] = line.startswith(_COMPLETE)
        if before not in (None, f"{_SIGNATURES}{_signatures()}"):
            for output, is_complete in completed.items():
                if not is_complete:  # its stage failed or was interrupted, which SCons knows
                    _remove_leftovers(Path(output))
            self.path.unlink()
            return
        # The journal stays until SCons has saved signatures without these files: this build may be killed
        # too.
        for output, is_complete in completed.items():
            if not is_complete:
                discard(Path(output))
            _forget(output)
        self.interrupted = list(completed)


def _signatures() -> str:
    """The stamp of SCons's file of signatures, which changes when SCons replaces it; empty without a file."""
    name = SCons.SConsign.DB_Name or SCons.SConsign.current_sconsign_filename()
    for path in (Path(f"{name}.dblite"), Path(name)):
        with contextlib.suppress(OSError):
            status = path.stat()
            return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return ""


def _forget(output: str) -> None:
    """Drop an artefact from SCons's signatures, which are saved when this build ends."""
    path = Path(output)
    signatures = SCons.Node.FS.get_default_fs().Dir(str(path.parent)).sconsign()
    signatures.entries.pop(path.name, None)
    signatures.dirty = True


def discard(output: Path) -> None:
    """Remove an artefact, and the temporary files that a killed process left next to it.

    A folder stays: it is renamed into place as a whole, and the list of its files is an artefact of its own.
    """
    if not output.is_dir():
        output.unlink(missing_ok=True)
    _remove_leftovers(output)


def _remove_leftovers(output: Path) -> None:
    """Remove the temporary files that a killed process left next to an artefact."""
    for path in (output, output.parent):
        for leftover in path.parent.glob(f".{path.name}.*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
