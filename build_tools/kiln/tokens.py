"""Tokens that bound the number of processes of a build.

Each stage that runs on this machine holds a token, and so does each fork of a stage after the first
(`kiln.forks`): while one stage runs, it has forks on all cores; when more stages run, they share the tokens.
A stage that starts waits at most until a fork has finished its item, which ends then.

The kernel counts the tokens in an event descriptor, which the build creates and stages inherit. The build
gives the tokens of stages back; those of forks are lost where their stage is killed, so that later stages
have fewer forks.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "KILN_TOKENS"  # environment variable of a stage: its two descriptors, separated by a comma


@dataclass(frozen=True)
class Tokens:
    """Tokens of a build: the event descriptors of the free tokens and of the stages that wait for one."""

    free: int
    waiting: int

    @classmethod
    def create(cls, count: int) -> Tokens | None:
        """`count` free tokens. Returns None on systems without event descriptors: on all but Linux."""
        if not hasattr(os, "eventfd"):
            return None
        flags = os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC
        return cls(os.eventfd(count, flags), os.eventfd(0, flags))

    @classmethod
    def inherited(cls) -> Tokens | None:
        """The tokens of the build that this stage belongs to; None for a stage that was started by hand."""
        text = os.environ.get(VARIABLE)
        return cls(*map(int, text.split(","))) if text else None

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors that a stage must inherit, in the order of the fields."""
        return (self.free, self.waiting)

    def take(self) -> None:
        """Take a token for a stage, which waits until there is one."""
        os.eventfd_write(self.waiting, 1)
        poll = select.poll()
        poll.register(self.free, select.POLLIN)
        while not _decrease(self.free):
            poll.poll()
        _decrease(self.waiting)

    def take_for_fork(self) -> bool:
        """Take a free token, if there is one that no stage waits for."""
        return not self.is_awaited() and _decrease(self.free)

    def is_awaited(self) -> bool:
        """Whether a stage waits for a token, so that a fork has to end and give its own back."""
        poll = select.poll()
        poll.register(self.waiting, select.POLLIN)
        return bool(poll.poll(0))

    def give_back(self) -> None:
        """Give a token back."""
        os.eventfd_write(self.free, 1)


def _decrease(descriptor: int) -> bool:
    """Take one from the number in an event descriptor; False if it is zero."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(descriptor)
        return True
    return False
