"""Storages for a cache of stage outputs: a folder, an HTTP server, or a place that fsspec opens.

    storage = open_storage("https://cache.example.com/kiln")
    storage.put(Path("lib/libnet.a"), sha256)          # a content, by its SHA-256
    storage.put_entry(key, [{"name": …, "sha256": …, "bytes": …, "executable": …}])

The classes have the same methods. They raise StorageError where the storage cannot be read or written, and
DamagedError for an entry or a content that is missing or differs from the stored one.
"""

from __future__ import annotations

import os
from pathlib import Path

from kiln.errors import KilnError
from kiln.paths import url_scheme
from kiln.scons.storage.common import DamagedError, Storage, StorageError, digest_of_entry, receive
from kiln.scons.storage.folder import FolderStorage

__all__ = [
    "DamagedError",
    "FolderStorage",
    "Storage",
    "StorageError",
    "digest_of_entry",
    "open_storage",
    "receive",
]


def open_storage(text: str) -> Storage:
    """The storage of `text`: a folder, http://HOST/…, https://HOST/…, or another URL, which fsspec opens.

    Raises KilnError for a folder that cannot be created, a wrong URL, and a package that is missing.
    """
    scheme = url_scheme(text)
    if scheme in ("http", "https"):
        from kiln.scons.storage.http import HttpStorage

        return HttpStorage(text)
    if scheme is not None:
        if scheme == "" or "://" not in text:
            raise KilnError(
                f"option 'cache': '{text}': neither a URL such as http://HOST:PORT/PATH or s3://BUCKET/PATH "
                f"nor a folder; a folder whose name has a colon is written ./{text}"
            )
        from kiln.scons.storage.remote import RemoteStorage

        return RemoteStorage(text)
    folder = Path(os.path.expanduser(text)).absolute()  # noqa: PTH111  # of KILN_CACHE=~/kiln, too
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file, but a folder is expected" if folder.is_file() else error.strerror
        raise KilnError(f"option 'cache': {folder}: {reason}") from error
    return FolderStorage(folder)
