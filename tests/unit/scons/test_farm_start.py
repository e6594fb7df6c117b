"""A cluster that ends while a build connects to it ends the build in one line."""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.scons.farm import cluster


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os, sys; print('distributed - INFO - starts', file=sys.stderr); os.kill(os.getpid(), 9)",
         "its process was killed by SIGKILL while it started"),
        ("import sys; print('distributed - INFO - ends', file=sys.stderr); sys.exit(3)",
         "its process ended with status 3 while it started"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_cluster_that_ends_while_it_starts(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "_LOCAL_PROGRAM", (sys.executable, "-c", program))
    with pytest.raises(KilnError, match=f"^option 'cluster': no cluster on this machine: {reason}$"):
        cluster.Cluster("local:1", str(tmp_path))


class EndingScheduler:
    """A client of a scheduler that ends when it is asked the first or the second question."""

    def __init__(self, *_: object, answers: bool = False, **__: object) -> None:
        self.answers, self.dashboard_link = answers, ""

    def wait_for_workers(self, *_: object, **__: object) -> None: ...

    def close(self, **_: object) -> None: ...

    def run(self, *_: object, **__: object) -> dict[str, object]:
        if self.answers:
            return {}
        raise OSError("Stream is closed")

    def scheduler_info(self, **_: object) -> dict[str, object]:
        raise OSError("Stream is closed")


@pytest.mark.parametrize("answers", [False, True])
def test_a_scheduler_that_ends_after_it_has_started(
    answers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "_distributed", lambda: Namespace(
        Client=functools.partial(EndingScheduler, answers=answers)
    ))  # fmt: skip
    with pytest.raises(KilnError, match=r"^cluster tcp://a:1: the scheduler is gone; start the build "):
        cluster.Cluster("tcp://a:1", str(tmp_path))
