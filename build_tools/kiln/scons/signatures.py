"""SCons's file of signatures, which a power failure may have damaged: stages run again, as without the file.

SCons prints its own calls for such a file, and ends with an exception where it is a pickle of anything else.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import SCons.SConsign
import SCons.Warnings

from kiln.errors import KilnError
from kiln.files import reason


def store_signatures(path: Path) -> None:
    """Have SCons store its signatures in the file `path`, to whose name it adds .dblite.

    A damaged file is removed, with a warning on stderr. Raises KilnError where it cannot be read or removed.
    """
    stored = Path(f"{path}.dblite")
    try:
        content = stored.read_bytes() if stored.exists() else b""  # SCons makes an empty file, and fills it
        if content and not _is_whole(content):
            stored.unlink()
            what = f"{os.path.relpath(stored)}: damaged, as after a power failure: stages run again"
            print(f"kiln: warning: {what}", file=sys.stderr)
    except OSError as error:
        raise KilnError(f"{stored}: cannot be used: {reason(error)}; remove it") from error
    # Of an entry, for the outputs in one folder: SCons leaves it out, so that their stages run again.
    SCons.Warnings.suppressWarningClass(SCons.Warnings.CorruptSConsignWarning)
    SCons.SConsign.File(str(path))


def _is_whole(content: bytes) -> bool:
    """Whether the content of the file is what SCons has written: pickled entries by folder."""
    try:
        entries = pickle.loads(content, encoding="bytes")  # as SCons reads it
    except Exception:  # a damaged pickle may raise anything
        return False
    return isinstance(entries, dict) and all(isinstance(entry, bytes) for entry in entries.values())
