"""The folder for temporary files of a build's stages, removed even if a stage or the build is killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from kiln.scratch import locked_folder, remove


class BuildScratch:
    """A folder in the system's folder for temporary files, to which TMPDIR of every stage is set.

    It is removed when the build ends, by the server of the stages if the build's own process is killed, and
    by the next command of Kiln if every process was.
    """

    def __init__(self) -> None:
        self._held: tuple[Path, int] | None = None
        self._lock = threading.Lock()  # stages start in several threads

    def folder(self) -> Path:
        """The folder, made by the first call. Raises OSError where it cannot be made."""
        with self._lock:
            if self._held is None:
                self._held = locked_folder("stages")
            return self._held[0]

    def remove(self) -> None:
        """Remove the folder, when no stage runs any more."""
        if self._held is not None:
            folder, lock = self._held
            remove(folder)
            os.close(lock)
            self._held = None
