"""Suppresses the output that third-party libraries write to stdout and stderr during a build."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import TextIO, TypeVar

from kiln.errors import KilnError

_Result = TypeVar("_Result")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard all output of the process to stderr inside the block; errors are reported by exceptions.

    LiteRT announces its delegates on stderr from C++, which cannot be disabled from Python.
    """
    with _dropped(2, sys.stderr):
        yield


@contextlib.contextmanager
def quiet_output() -> Iterator[None]:
    """Discard all output of the process to stdout and stderr inside the block."""
    with _dropped(1, sys.stdout), _dropped(2, sys.stderr), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _dropped(descriptor: int, stream: TextIO) -> Iterator[None]:
    """Redirect a file descriptor to a temporary file inside the block."""
    stream.flush()
    with tempfile.TemporaryFile() as held:
        saved = os.dup(descriptor)
        os.dup2(held.fileno(), descriptor)
        try:
            yield
        finally:
            stream.flush()
            os.dup2(saved, descriptor)
            os.close(saved)


def convert_quietly(convert: Callable[[], _Result]) -> _Result:
    """Run one of TVM's converters without its warnings and prints, and return its result.

    A KilnError is raised again without its traceback: TVM's C++ side prints a message when the half-built
    function is freed, and the traceback would keep that function alive beyond this block. TVM also warns
    about every name that it changes, and prints the node that failed.
    """
    with quiet_stderr(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return convert()
        except KilnError as error:
            message = str(error)
        gc.collect(1)  # the youngest generations have the half-built function; all would take long
    raise KilnError(message)
