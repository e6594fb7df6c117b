"""Zip archives with the same bytes in every build: sorted, without dates, owners and modes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping


def zip_archive(files: Mapping[str, bytes], folder: str = "") -> bytes:
    """A zip archive of `files`, by their paths below `folder`, which is empty or ends with a slash."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(folder + name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()
