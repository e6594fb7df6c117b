"""The number of stages that run on this machine at a time, and the stages that run alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator

import SCons.Script.Main

from kiln import forks, limits
from kiln.errors import KilnError
from kiln.tokens import Tokens

# Bytes of memory for each stage that runs at a time where the command line has no -j: on a machine with 4 GB,
# stages run one after the other. The largest stages of models with 25 million parameters use 1 GB.
_MEMORY = 2 << 30
# Goals whose stages print nothing, and goals whose stages print when they end. Of all other goals, and of
# several printing stages, one stage runs at a time, so that results come in the same order in every build.
_SILENT = {"bundle", "image", "package", "report", "schema"}
_BRIEF = {"plan", "size", "test"}


def default(goals: Collection[str], units: int) -> int:
    """The number of stages at a time for `goals`; `units`: pairs of a model and a target."""
    printing = [goal for goal in goals if goal not in _SILENT]
    if not set(printing) <= _BRIEF or len(printing) * units > 1:
        return 1
    return max(1, min(forks.jobs(), limits.memory() // _MEMORY))


def jobs_option() -> int | None:
    """The number after the option -j; GetOption would return 1 where there is none.

    Raises KilnError for a number below 1, with which no stage would ever begin.
    """
    jobs: int | None = vars(SCons.Script.Main.OptionsParser.values).get("num_jobs")
    if jobs is not None and jobs < 1:
        raise KilnError(f"option -j: '{jobs}', allowed: a whole number of 1 or more")
    return jobs


class Places:
    """`count` places for stages that run at a time, and `processes` tokens for the stages and their forks."""

    def __init__(self, count: int, processes: int) -> None:
        self._count, self._free = count, threading.Semaphore(count)
        self.processes = max(count, processes)
        self.tokens = Tokens.create(self.processes)
        self._turn = threading.Lock()  # else two stages that need all places could wait for each other

    @contextlib.contextmanager
    def hold(self, alone: bool) -> Iterator[None]:
        """Wait for a place, or with `alone` for all places, and hold it while the block runs."""
        count = self._count if alone else 1
        with self._turn:
            for _ in range(count):
                self._free.acquire()
        try:
            if self.tokens is not None:
                self.tokens.take()
            try:
                yield
            finally:
                if self.tokens is not None:
                    self.tokens.give_back()
        finally:
            self._free.release(count)
