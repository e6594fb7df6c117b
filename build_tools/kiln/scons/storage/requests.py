"""Several requests to a storage at a time: one after the other, each waits for a distant server's answer.

The threads are daemons, so that Ctrl-C does not wait for a server that does not answer.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from typing import TypeVar

_AT_A_TIME = 16  # requests of this process; each thread has a connection of its own

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def for_each(request: Callable[[_In], _Out], values: Sequence[_In]) -> list[_Out]:
    """The results of `request` for each of `values`, in their order, made in several threads.

    Ends when all requests have ended; then raises the error of the first one that failed.
    """
    if len(values) < 2:
        return [request(value) for value in values]
    return _threads().map(request, values, chunksize=1)


@functools.cache
def _threads() -> ThreadPool:
    threads = ThreadPool(_AT_A_TIME)
    atexit.register(threads.terminate)  # or its destructor fails when the interpreter has ended
    return threads
