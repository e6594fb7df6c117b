"""A cache in a folder.

    stages/ab/abcd….json     by the key of a stage's run: its outputs, each with name, mode and SHA-256
    blobs/12/1234…           contents of files, by SHA-256, so that equal files are stored once

Each file is written under a temporary name and renamed, so that several builds may write at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import write_json
from kiln.scons.storage.common import (
    DamagedError,
    FileEntries,
    Storage,
    StorageError,
    digest_of_entry,
    receive,
    verified,
)
from kiln.sources.cache import copy, file_sha256


class FolderStorage(Storage):
    """The cache in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = self.shown = str(folder)

    def entry(self, key: str) -> FileEntries:
        """See Storage."""
        try:
            entry = json.loads(self._entry(key).read_text(encoding="utf-8"))
            return verified(entry["files"], entry["check"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DamagedError from error

    def put_entry(self, key: str, files: FileEntries) -> None:
        """See Storage."""
        try:
            write_json(self._entry(key), {"files": list(files), "check": digest_of_entry(files)})
        except KilnError as error:
            raise StorageError(str(error)) from error

    def has(self, sha256: str) -> bool:
        """See Storage; the content is read."""
        blob = self._blob(sha256)
        try:
            return blob.is_file() and file_sha256(blob) == sha256
        except OSError:
            return False

    def get(self, sha256: str, out: Path) -> None:
        """See Storage. A damaged content is removed, so that it will be stored again."""
        blob = self._blob(sha256)
        try:
            stream = blob.open("rb")
        except OSError as error:
            raise DamagedError(sha256) from error
        with stream:
            try:
                receive(stream, sha256, out, self.shown)
            except DamagedError:
                with contextlib.suppress(OSError):
                    blob.unlink()
                raise

    def put(self, path: Path, sha256: str) -> None:
        """See Storage."""
        try:
            copy(path, self._blob(sha256))
        except KilnError as error:
            raise StorageError(str(error)) from error

    def used(self, key: str, files: FileEntries) -> None:
        """See Storage: sets the times of the files."""
        for path in (self._entry(key), *(self._blob(file["sha256"]) for file in files)):
            with contextlib.suppress(OSError):
                os.utime(path)

    def _entry(self, key: str) -> Path:
        return self.folder / "stages" / key[:2] / f"{key}.json"

    def _blob(self, sha256: str) -> Path:
        return self.folder / "blobs" / sha256[:2] / sha256
