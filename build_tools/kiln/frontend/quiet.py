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
from typing import TypeVar

from kiln.errors import KilnError

_Result = TypeVar("_Result")


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
