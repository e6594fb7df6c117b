"""The number of stages at a time, by goals, cores and memory; stages that measure run alone."""

from __future__ import annotations

import threading

import pytest
import waiting
from kiln import forks, limits
from kiln.scons import jobs
from kiln.scons.jobs import Places
from kiln.stages import STAGES

GIB = 1 << 30


@pytest.mark.parametrize(
    ("goals", "units", "cores", "memory", "expected"),
    [
        (["bundle"], 1, 2, 16, 2),
        (["bundle"], 6, 8, 64, 8),
        (["bundle"], 1, 8, 8, 4),
        (["bundle"], 1, 8, 3.8, 1),  # a machine with 4 GB
        (["bundle"], 1, 8, 1, 1),
        (["test"], 1, 2, 16, 2),
        (["bundle", "image", "size"], 1, 2, 16, 2),
        (["size", "test"], 1, 2, 16, 1),  # which would print in any order
        (["test"], 2, 2, 16, 1),
        (["run"], 1, 2, 16, 1),  # prints while it runs
        (["tune"], 1, 2, 16, 1),
    ],
)
def test_default(
    monkeypatch: pytest.MonkeyPatch, goals: list[str], units: int, cores: int, memory: float, expected: int
) -> None:
    monkeypatch.setattr(forks, "jobs", lambda: cores)
    monkeypatch.setattr(limits, "memory", lambda: int(memory * GIB))
    assert jobs.default(goals, units) == expected


def test_memory_of_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Memory is the least of the machine's and the limits of cgroups, which may be `max` or missing."""
    folder = tmp_path_factory.mktemp("cgroup")
    (folder / "max").write_text("max\n")
    (folder / "some").write_text("4096\n")
    monkeypatch.setattr(limits, "_CGROUPS", (str(folder / "max"), str(folder / "none")))
    assert limits.memory() > 1 << 27
    monkeypatch.setattr(limits, "_CGROUPS", (str(folder / "max"), str(folder / "some")))
    assert limits.memory() == 4096


def test_one_that_measures_runs_alone() -> None:
    """A stage that measures waits until all places are free, and no other stage starts before its end."""
    places, order = Places(2, 2), list[str]()
    held, waits = threading.Event(), threading.Event()

    def alone() -> None:
        waits.set()
        with places.hold(alone=True):
            order.append("alone")

    def after() -> None:
        held.wait(waiting.SECONDS)
        with places.hold(alone=False):
            order.append("after")

    with places.hold(alone=False), places.hold(alone=False):
        threads = [threading.Thread(target=alone), threading.Thread(target=after)]
        for thread in threads:
            thread.start()
        assert waits.wait(waiting.SECONDS), "the stage that measures has not begun to wait"
        order.append("both")
        held.set()
    for thread in threads:
        thread.join(60)
    assert order[0] == "both" and set(order) == {"both", "alone", "after"}
    assert {name for name, stage in STAGES.items() if stage.spec.measures} == {
        "byoc-choose", "device-bench", "tune",
    }  # fmt: skip
