"""Standard output that remembers an error of writing, which SCons ignores: a full disk is not a success."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO


class CheckedOutput(io.TextIOBase):
    """Writes to `stream`, and keeps the first error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._error: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text`; returns the number of characters. Raises OSError as `stream` does."""
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is in the buffer. Raises OSError as `stream` does."""
        with self._checked():
            self._stream.flush()

    def fileno(self) -> int:
        """The descriptor of `stream`."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether `stream` is a terminal."""
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # io.TextIOBase has a variable
        """The encoding of `stream`."""
        return self._stream.encoding

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or error
            raise

    def has_failed_with(self, error: OSError) -> bool:
        """Whether `error` is the first error of writing."""
        return error is self._error

    def has_failed(self) -> bool:
        """Whether there was an error of writing, also because the reader has ended."""
        return self._error is not None

    def lost(self) -> str | None:
        """Why lines were lost; None: none were, or their reader has ended (`kiln … | head -1`)."""
        with contextlib.suppress(OSError, ValueError):
            self.flush()
        if self._error is None or self._error.errno == errno.EPIPE:
            return None
        return str(self._error.strerror or self._error)


def drop_output() -> None:
    """Let the process end without writing what is still in the buffer of stdout, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def checked(main: Callable[[], int]) -> int:
    """Run `main`, and return its exit status; 2, after one line on stderr, if lines on stdout were lost.

    For programs of argparse: whether it ignores that its help could not be written, or raises the error,
    depends on the version of Python.
    """
    sys.stdout = output = CheckedOutput(sys.stdout)
    status: object = 0
    try:
        status = main()
    except SystemExit as end:
        status = end.code or 0
    except OSError as error:
        if not output.has_failed_with(error):
            raise
    lost = output.lost()
    if output.has_failed():
        with contextlib.suppress(OSError):  # a stream without a descriptor
            drop_output()
    if lost is not None and status == 0:
        print(f"kiln: error: stdout: cannot write: {lost}", file=sys.stderr)
        status = 2
    return status if isinstance(status, int) else 2
