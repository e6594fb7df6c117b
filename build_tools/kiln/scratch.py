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
_SHORT = "/tmp"  # the system's folder where the environment names a longer one


@contextlib.contextmanager
def scratch_folder(name: str, longest: int | None = None) -> Iterator[Path]:
    """Yield an empty folder `kiln-NAME-….scratch` in the system's folder for temporary files.

    `longest`: the most bytes of its path, which a socket in it limits; then it may be in /tmp.

    It is removed when the block ends. Until then this process holds a lock of the folder, which the system
    releases however the process ends: folders that nobody holds are removed here. Raises OSError if no
    folder can be made, and KilnError in place of what a library raises where the disk is full.
    """
    folder, lock = locked_folder(name, longest)
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


def locked_folder(name: str, longest: int | None = None) -> tuple[Path, int]:
    """A new folder as that of `scratch_folder`, and the descriptor of its lock; the caller removes it.

    Folders that nobody holds are removed. Raises OSError if no folder can be made.
    """
    parent = tempfile.gettempdir()
    length = len(os.fsencode(f"{parent}/kiln-{name}-12345678{_ENDING}"))
    if longest is not None and length > longest and os.access(_SHORT, os.W_OK | os.X_OK):
        parent = _SHORT
    remove_abandoned(parent)
    while True:  # until no other process takes the new folder for an abandoned one before it is locked
        folder = Path(tempfile.mkdtemp(prefix=f"kiln-{name}-", suffix=_ENDING, dir=parent))
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


def remove_abandoned(parent: str | None = None) -> None:
    """Remove this user's folders that no process holds, in `parent` (None: the system's for such files)."""
    for folder in Path(parent or tempfile.gettempdir()).glob(f"kiln-*{_ENDING}"):
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
