"""An SCons decider: compares files by content, and reads a file only when its metadata has changed.

SCons's own "content-timestamp" compares whole seconds, so it misses the second of two changes within a
second; its "content" reads all files at each start, which takes seconds for the parameters of some models.
Here signatures are stored in the build folder with each file's inode, size, and times to the nanosecond.

Stages rename complete files into the build folder: within one build the same inode, size and times of an
output mean the same content, and a file is read once for all stages that depend on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import SCons.Node.FS
import SCons.Util

from kiln.errors import KilnError
from kiln.files import atomic_write

# File times may have a resolution of some milliseconds: a file changed just now may change again without a
# new time, so its signature is not stored.
_SETTLED_NS = 1_000_000_000


class Content:
    """Signatures of files.

    `path` is the JSON file that stores them between builds, `folder` the folder of the stages' outputs.
    """

    def __init__(self, path: Path, folder: str) -> None:
        self._path, self._outputs = path, f"{folder}/"
        self._in_this_build: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._unsaved = False
        self._stored = _stored_in(path)

    def changed(self, dependency: Any, target: Any, before: Any, repository: Any = None) -> bool:
        """SCons's decider: whether `dependency` has changed since `target` was built."""
        if isinstance(dependency, SCons.Node.FS.File):
            signature = self.signature(str(dependency))
            if signature is not None:
                dependency.get_ninfo().csig = signature
        try:
            return bool(dependency.get_csig() != before.csig)
        except AttributeError:  # no signature from an earlier build
            return True

    def signature(self, path: str) -> str | None:
        """The signature of a file's content, as SCons computes it; None where there is no file."""
        try:
            status = os.stat(path)  # noqa: PTH116  (a hundred of these at each start)
        except OSError:
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        with self._lock:
            cached = self._in_this_build.get(path) or self._stored.get(path)
        if cached is not None and cached[1] == state:
            return str(cached[0])
        signature = str(SCons.Util.hash_file_signature(path))
        if path.startswith(self._outputs):
            with self._lock:
                self._in_this_build[path] = [signature, state]
        if _is_settled(state):
            with self._lock:
                self._stored[path] = [signature, state]
                self._unsaved = True
        return signature

    def save(self) -> None:
        """Store the signatures. A full disk is ignored: the next build then reads the files again."""
        for path, (signature, state) in self._in_this_build.items():
            if _is_settled(state):  # by now: a change after this build gives it a new time
                self._stored[path] = [signature, state]
                self._unsaved = True
        if self._unsaved:
            with contextlib.suppress(KilnError):
                atomic_write(self._path, json.dumps(self._stored))


def _is_settled(state: Sequence[int]) -> bool:
    """Whether the times of a file, the last two of `state`, are so old that a change now gives new ones."""
    return time.time_ns() - max(state[2:]) > _SETTLED_NS


def _stored_in(path: Path) -> dict[str, list[Any]]:
    """The signatures in a file; those that a power failure has damaged are left out."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = stored.items() if isinstance(stored, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, list) and len(entry) == 2}
