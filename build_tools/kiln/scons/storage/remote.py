"""A cache at a URL that fsspec opens: S3, Google Cloud Storage, Azure, SFTP and others.

The names of files are as in a cache in a folder. Object stores write an object completely or not at all; on
other systems a file is written under a temporary name and renamed.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
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
        self.text, self.shown = url, _without_password(url)
        pip = f"{sys.executable} -m pip install"
        try:
            import fsspec
        except ImportError:
            raise KilnError(
                f"option 'cache': '{self.shown}' needs the package fsspec: {pip} fsspec"
            ) from None
        scheme = url.partition("://")[0].lower()
        if scheme not in fsspec.available_protocols():
            raise KilnError(
                f"option 'cache': '{self.shown}': unknown protocol '{scheme}': a folder, "
                "http://HOST:PORT/PATH, s3://BUCKET/PATH, gs://…, az://… or sftp://… is expected, see "
                "docs/architecture.md"
            )
        self._opened: tuple[Any, str] | None = None
        try:
            self._open()
        except ImportError as error:
            raise KilnError(
                f"option 'cache': '{self.shown}': {error} (in the environment of Kiln: {pip} PACKAGE)"
            ) from None
        except (OSError, EOFError):  # of systems that connect at once: as of others, the first use says so
            pass
        except Exception as error:
            raise KilnError(f"option 'cache': '{self.shown}': {_line(error)}") from None

    def _open(self) -> tuple[Any, str]:
        """The file system and the folder in it. Raises what the file system does, where it connects."""
        if self._opened is None:
            import fsspec

            self._opened = fsspec.core.url_to_fs(self.text)
        return self._opened

    @property
    def _files(self) -> Any:
        return self._open()[0]

    @property
    def _is_atomic(self) -> bool:
        protocols = self._files.protocol
        return bool(({protocols} if isinstance(protocols, str) else set(protocols)) & _ATOMIC_PROTOCOLS)

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
        self._write(self._entry, key, lambda place: self._files.pipe_file(place, text.encode()))

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
                receive(stream, sha256, out, self.shown)
        except FileNotFoundError as error:
            raise DamagedError(sha256) from error
        except DamagedError:
            try:
                self._files.rm_file(self._blob(sha256))
            except Exception as error:
                raise self._error(error) from error
            raise
        except (KilnError, StorageError):
            raise
        except Exception as error:
            raise self._error(error) from error

    def put(self, path: Path, sha256: str) -> None:
        """See Storage."""
        self._write(self._blob, sha256, lambda stored: self._files.put_file(str(path), stored))

    def _write(self, place: Callable[[str], str], name: str, write: Callable[[str], object]) -> None:
        try:
            path = place(name)
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
        return f"{self._open()[1]}/stages/{key[:2]}/{key}.json"

    def _blob(self, sha256: str) -> str:
        return f"{self._open()[1]}/blobs/{sha256[:2]}/{sha256}"


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _line(error: Exception) -> str:
    """The text of an error; of the system's own without their number."""
    of_system = error.strerror if isinstance(error, OSError) and not error.filename else None
    return " ".join(str(of_system or error).split())[:300] or type(error).__name__
