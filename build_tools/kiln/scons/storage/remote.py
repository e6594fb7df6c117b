"""A cache at a URL that fsspec opens: S3, Google Cloud Storage, Azure, SFTP and others.

The names of files are as in a cache in a folder. Object stores write an object completely or not at all; on
other systems a file is written under a temporary name and renamed.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.scons.storage.common import (
    DamagedError,
    FileEntries,
    Storage,
    StorageError,
    digest_of_entry,
    receive,
    verified,
)

# Protocols whose writes are atomic: a file appears only when it is complete.
_ATOMIC_PROTOCOLS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss", "memory"})


class RemoteStorage(Storage):
    """The cache at `url`; the place may be a bucket and a folder in it: s3://bucket/kiln."""

    def __init__(self, url: str) -> None:
        pip = f"{sys.executable} -m pip install"
        try:
            import fsspec
        except ImportError:
            raise KilnError(f"option 'cache': '{url}' needs the package fsspec: {pip} fsspec") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise KilnError(
                f"option 'cache': '{url}': {error} (in the environment of Kiln: {pip} PACKAGE)"
            ) from None
        except Exception as error:
            raise KilnError(f"option 'cache': '{url}': {_line(error)}") from None
        self.text, self.shown = url, url.rpartition("@")[2] if "@" in url else url
        protocols = self._files.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        self._is_atomic = bool(names & _ATOMIC_PROTOCOLS)

    def entry(self, key: str) -> FileEntries:
        """See Storage."""
        try:
            entry = json.loads(self._files.cat_file(self._entry(key)))
            return verified(entry["files"], entry["check"])
        except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
            raise DamagedError(key) from error
        except DamagedError:
            raise
        except Exception as error:  # each file system has exceptions of its own
            raise self._error(error) from error

    def put_entry(self, key: str, files: FileEntries) -> None:
        """See Storage."""
        text = json.dumps({"files": list(files), "check": digest_of_entry(files)}, indent=1, sort_keys=True)
        self._write(self._entry(key), lambda place: self._files.pipe_file(place, text.encode()))

    def has(self, sha256: str) -> bool:
        """See Storage."""
        try:
            return bool(self._files.exists(self._blob(sha256)))
        except Exception as error:
            raise self._error(error) from error

    def get(self, sha256: str, out: Path) -> None:
        """See Storage. A damaged content is removed, so that it will be stored again."""
        try:
            with self._files.open(self._blob(sha256), "rb") as stream:
                receive(stream, sha256, out)
        except FileNotFoundError as error:
            raise DamagedError(sha256) from error
        except DamagedError:
            try:
                self._files.rm_file(self._blob(sha256))
            except Exception as error:
                raise self._error(error) from error
            raise
        except KilnError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def put(self, path: Path, sha256: str) -> None:
        """See Storage."""
        self._write(self._blob(sha256), lambda stored: self._files.put_file(str(path), stored))

    def _write(self, path: str, write: Any) -> None:
        try:
            if self._is_atomic:  # without folders: makedirs would create a bucket for a misspelt name
                write(path)
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = f"{path}.{uuid.uuid4().hex}"
            write(temporary)
            self._files.mv(temporary, path)
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> StorageError:
        return StorageError(f"{self.shown}: {_line(error)}")

    def _entry(self, key: str) -> str:
        return f"{self._root}/stages/{key[:2]}/{key}.json"

    def _blob(self, sha256: str) -> str:
        return f"{self._root}/blobs/{sha256[:2]}/{sha256}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
