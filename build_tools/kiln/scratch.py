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
    folder, lock = locked_folder(name)
    try:
        yield folder
    except KilnError:
        raise
    except Exception as error:  # of libraries that read what they could not write whole
        full = full_disk([folder])  # now, as the folder's own files are about to go
        if full is None:
            raise
        raise KilnError(full) from error
    finally:
        remove(folder)
        os.close(lock)


def locked_folder(name: str) -> tuple[Path, int]:
    """A new folder as that of `scratch_folder`, and the descriptor of its lock; the caller removes it.

    Folders that nobody holds are removed. Raises OSError if no folder can be made.
    """
    remove_abandoned()
    while True:  # until no other process takes the new folder for an abandoned one before it is locked
        folder = Path(tempfile.mkdtemp(prefix=f"kiln-{name}-", suffix=_ENDING))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):  # file systems without locks: nobody removes it
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists():
                return folder, lock
            os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as the system allows."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # it has folders that nobody may write to
        for parent, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(parent, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


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
                remove(folder)
            finally:
                os.close(lock)
