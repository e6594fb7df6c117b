"""The lock of a device: two hosts at once, and a host that is alive or gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from kiln.device.deploy.copies import file_of

from .flashing import DeviceStages, Pair, in_use


@pytest.mark.heavy
def test_two_hosts_at_once(desk: DeviceStages, bundles: Pair) -> None:
    desks = [DeviceStages(desk.folder / name, desk.device) for name in ("one", "two")]
    for other in desks:
        other.folder.mkdir()
    running = [d.start("device-flash", *d.flags(b)) for d, b in zip(desks, bundles, strict=True)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    waited = [stderr for _, stderr in outputs if stderr]
    assert all("waiting for " in line and line.count("\n") == 1 for line in waited)
    assert in_use(desk.folder) in [built.id for built in bundles]
    assert not (desk.folder / "store/.kiln/lock").exists()


LOCK = """
import sys, time
from kiln.device.deploy import lock
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import open_transport
lock.BEAT, held = 0.2, lock.Lock(open_transport(load_device(sys.argv[1])), sys.argv[2])
lock._owner = lambda: "ann@else\\x1b[31mwhere 1 other-boot"
"""


def locker(desk: DeviceStages, then: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(file_of.__code__.co_filename).parents[3])}
    words = [sys.executable, "-c", LOCK + then, str(desk.device), str(desk.folder / "store")]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_host_that_is_alive_is_waited_for_and_named(desk: DeviceStages) -> None:
    holder = locker(desk, "held.take(); print('taken', flush=True); time.sleep(60)")
    try:
        assert holder.stdout is not None
        with waiting.limit("the lock of the first process"):
            assert holder.stdout.readline() == "taken\n"
        second = locker(desk, "held.take(patience=2, silence=1)")
        _, stderr = second.communicate(timeout=60)
        assert "KilnError: device 'board' (this machine): ann@else?[31mwhere holds its lock" in stderr
        assert "\x1b" not in stderr
    finally:
        holder.kill()
        holder.communicate()
    # Its beat stands still now: it counts as gone.
    following = locker(desk, "held.take(patience=20, silence=1); held.release(); print('done')")
    assert following.communicate(timeout=60)[0] == "done\n"
    assert not (desk.folder / "store/.kiln/lock").exists()
