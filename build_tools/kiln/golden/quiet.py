"""Keeps what C++ libraries write to stderr out of a build's output."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what the process writes to stderr inside the block; exceptions tell what matters.

    LiteRT announces its delegates there from C++, where no Python setting reaches it.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        saved = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
