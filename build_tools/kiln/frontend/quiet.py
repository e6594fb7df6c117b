"""Keeps what libraries write on their own account out of a build's output."""

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
    """Drop what the process writes to stderr inside the block; exceptions tell what matters.

    LiteRT announces its delegates there from C++, where no Python setting reaches it.
    """
    with _dropped(2, sys.stderr):
        yield


@contextlib.contextmanager
def quiet_output() -> Iterator[None]:
    """Drop what the process writes to stdout and stderr inside the block."""
    with _dropped(1, sys.stdout), _dropped(2, sys.stderr), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _dropped(descriptor: int, stream: TextIO) -> Iterator[None]:
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
    """Run a converter of TVM's: its warnings and prints are dropped, its KilnError is passed on.

    TVM warns about every name that it changes, prints the node that failed, and its C++ side complains when
    the half-built function is freed. So the error's traceback, which keeps that alive, must end in here.
    """
    with quiet_stderr(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return convert()
        except KilnError as error:
            message = str(error)
        gc.collect()
    raise KilnError(message)
