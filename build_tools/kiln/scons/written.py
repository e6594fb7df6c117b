"""What stages wrote: a file of the build that has changed since then is damaged, and is made again.

SCons compares the inputs of a stage with those of its last run, but not its outputs with what it wrote: a
file that a power failure or a faulty disk damaged would be an input that has changed. Here the signatures of
all outputs are kept between builds, in a file of the build folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.scons.content import Content


class Written:
    """The signatures of what stages wrote: of each output, which may be a folder, those of its files.

    `path` is the JSON file that keeps them.
    """

    def __init__(self, path: Path, content: Content) -> None:
        self._path, self._content = path, content
        self._written: set[str] = set()
        self._lock = threading.Lock()

    @functools.cached_property
    def _kept(self) -> dict[str, dict[str, str]]:
        """Read late, once no other build in this folder runs."""
        return _kept_in(self._path)

    def add(self, outputs: Iterable[str]) -> None:
        """Note that a stage has written these files and folders; their signatures are computed by `save`."""
        with self._lock:
            self._written.update(outputs)

    def forget(self, outputs: Iterable[str]) -> None:
        """Drop what is known of outputs that an interrupted build may have written."""
        for output in outputs:
            self._kept.pop(output, None)

    def damaged(self, outputs: Iterable[str]) -> list[str]:
        """The files of these outputs that are there, but not as their stage wrote them."""
        files = [pair for output in outputs for pair in self._kept.get(output, {}).items()]
        return [name for name, signature in files if self._content.signature(name) not in (signature, None)]

    def save(self) -> None:
        """Store the signatures. A full disk is ignored: stages of this build then run once more."""
        if not self._written:
            return
        for output in self._written:
            path = Path(output)
            files = path.rglob("*") if path.is_dir() else [path]
            signatures = {str(file): self._content.signature(str(file)) for file in files if file.is_file()}
            self._kept[output] = {name: text for name, text in signatures.items() if text is not None}
        with contextlib.suppress(KilnError):
            atomic_write(self._path, json.dumps(self._kept))


def warn(damaged: Sequence[str]) -> None:
    """Say in one line that damaged files are made again."""
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        text = f"{damaged[0]}{more}: changed since the build wrote it, or damaged: made again"
        print(f"kiln: warning: {text}", file=sys.stderr, flush=True)


def _kept_in(path: Path) -> dict[str, dict[str, str]]:
    """The signatures in a file; those that a power failure has damaged are left out."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    outputs = kept.items() if isinstance(kept, dict) else ()
    return {name: files for name, files in outputs if isinstance(files, dict)}
