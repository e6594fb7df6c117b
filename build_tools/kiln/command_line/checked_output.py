"""Standard output that remembers an error of writing, which SCons ignores: a full disk is not a success."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

READER_HAS_ENDED = 141  # exit status: that of programs which SIGPIPE ends, as a shell shows it


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

    def reader_has_ended(self) -> bool:
        """Whether the first error of writing was that of a pipe without a reader (`kiln … | head -1`)."""
        return self._error is not None and self._error.errno == errno.EPIPE

    def lost(self) -> str | None:
        """Why lines were lost; None: none were, or their reader has ended."""
        with contextlib.suppress(OSError, ValueError):
            self.flush()
        if self._error is None or self.reader_has_ended():
            return None
        return str(self._error.strerror or self._error)


def drop_output() -> None:
    """Let the process end without writing what is still in the buffer of stdout, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def checked(main: Callable[[], int]) -> int:
    """Run `main`, and return its exit status; 2, after one line on stderr, if lines on stdout were lost.

    READER_HAS_ENDED, and no line, where their reader has ended, unless `main` has failed. Libraries that
    print treat both in ways of their own: argparse ignores that its help could not be written, or raises the
    error, depending on the version of Python, and rich ends with status 1 where the reader has ended.
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
    if output.reader_has_ended() and status in (0, 1):
        status = READER_HAS_ENDED
    return status if isinstance(status, int) else 2
