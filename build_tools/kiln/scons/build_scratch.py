"""The folder for temporary files of a build's stages: it is removed even if a stage or the build is
killed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path

from kiln.files import atomic_write

_PREFIX = "kiln-stages-"


class BuildScratch:
    """A folder in the system's folder for temporary files, to which TMPDIR of every stage is set.

    It is removed when the build ends, by the server of the stages if the build's own process is killed, and
    by the next build if every process was.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._record: Path | None = None
        self._lock = threading.Lock()  # stages start in several threads

    def recover(self, record: Path) -> None:
        """Remove the folder that the file `record` names, of a killed build, and name this one's there.

        Call it while no other build can use `record`.
        """
        with contextlib.suppress(OSError, UnicodeDecodeError):  # no build was killed
            left = Path(record.read_text(encoding="utf-8"))
            if left.name.startswith(_PREFIX) and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)
        self._record = record

    def folder(self) -> Path:
        """The folder, made by the first call. Raises OSError where it cannot be made."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
                if self._record is not None:
                    atomic_write(self._record, str(self._folder))
            return self._folder

    def remove(self) -> None:
        """Remove the folder, when no stage runs any more."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._record is not None:
            with contextlib.suppress(OSError):
                self._record.unlink(missing_ok=True)
