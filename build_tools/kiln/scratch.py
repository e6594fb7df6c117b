"""Folders for temporary files of a process. What a killed process leaves, the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import full_disk

_ENDING = ".scratch"  # of the names; a user's own folder has another one


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Yield an empty folder `kiln-NAME-….scratch` in the system's folder for temporary files.

    It is removed when the block ends. Until then this process holds a lock of the folder, which the system
    releases however the process ends: folders that nobody holds are removed here. Raises OSError if no
    folder can be made, and KilnError in place of what a library raises where the disk is full.
    """
    remove_abandoned()
    temporary, lock = _locked_folder(name)
    try:
        with temporary as folder:
            try:
                yield Path(folder)
            except KilnError:
                raise
            except Exception as error:  # of libraries that read what they could not write whole
                full = full_disk([Path(folder)])  # now, as the folder's own files are about to go
                if full is None:
                    raise
                raise KilnError(full) from error
    finally:
        os.close(lock)


def _locked_folder(name: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """A new folder and the descriptor of its lock. One that another process takes for abandoned before it is
    locked is replaced by another one."""
    while True:
        temporary = tempfile.TemporaryDirectory(prefix=f"kiln-{name}-", suffix=_ENDING)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(temporary.name, os.O_RDONLY)
            with contextlib.suppress(OSError):  # file systems without locks: nobody removes it
                fcntl.flock(lock, fcntl.LOCK_SH)
            if Path(temporary.name).exists():
                return temporary, lock
            os.close(lock)
        temporary.cleanup()


def remove_abandoned() -> None:
    """Remove this user's folders that no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"kiln-*{_ENDING}"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while a process holds it
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
