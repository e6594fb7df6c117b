"""Builds that were killed, and builds at the same time: neither may leave an artefact wrongly trusted.

SCons writes the signatures of what it built when it ends. Killed before that, it leaves artefacts whose
signatures are those of an earlier build: set the configuration back, and they look up to date. So:

1. Every stage's outputs are put down in a journal before the stage starts, and once more when they are whole.
2. SCons's file of signatures is written after the last such line. At the next start a journal younger than
   that file tells of a build that did not end. What was being made then is removed, with half-made files
   beside it. What had been made stays where it is, for whoever uses it; but SCons forgets the signatures of
   both, so that a build that needs one of them makes it anew.
3. A lock on the folder, which every stage's process shares, keeps the next build waiting until the last
   process of a killed one is gone. So nothing is written behind a later build's back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import SCons.Node.FS
import SCons.SConsign

_MADE = "made "  # how a line about finished outputs begins; the others name outputs that are begun


class Journal:
    """The journal and the lock of one build folder; `lock` is the descriptor that stages inherit."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.path = work / "journal"
        self.lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("kiln: waiting for another build in this folder", file=sys.stderr, flush=True)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self._recover()

    def begin(self, outputs: Sequence[str]) -> None:
        """Put down that these files are about to be made. Raises OSError where it cannot."""
        self._write(outputs)

    def end(self, outputs: Sequence[str]) -> None:
        """Put down that these files are whole. Raises OSError where it cannot."""
        self._write([f"{_MADE}{output}" for output in outputs])

    def _write(self, lines: Sequence[str]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)
            stream.flush()
            os.fsync(stream.fileno())

    def _recover(self) -> None:
        if not self.path.exists():
            return
        if self._ended():
            self.path.unlink()
            return
        # The journal stays until SCons has written that it knows nothing of these files: this build may be
        # killed as well.
        made: dict[str, bool] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines():
            made[line.removeprefix(_MADE)] = line.startswith(_MADE)
        for output, whole in made.items():
            if not whole:
                discard(Path(output))
            _forget(output)

    def _ended(self) -> bool:
        """Whether SCons wrote its signatures after the journal's last line."""
        name = SCons.SConsign.DB_Name or SCons.SConsign.current_sconsign_filename()
        saved = [path for path in (Path(f"{name}.dblite"), Path(name)) if path.is_file()]
        return bool(saved) and saved[0].stat().st_mtime_ns >= self.path.stat().st_mtime_ns


def _forget(output: str) -> None:
    """Remove an artefact from SCons's signatures, which are written when this build ends."""
    path = Path(output)
    signatures = SCons.Node.FS.get_default_fs().Dir(str(path.parent)).sconsign()
    signatures.entries.pop(path.name, None)
    signatures.dirty = True


def discard(output: Path) -> None:
    """Remove an artefact, and what a process that was killed while making it has left beside it.

    A folder stays: it takes its place as a whole, and the list of its files is an artefact too.
    """
    if not output.is_dir():
        output.unlink(missing_ok=True)
    for place in (output, output.parent):
        for left in place.parent.glob(f".{place.name}.*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
