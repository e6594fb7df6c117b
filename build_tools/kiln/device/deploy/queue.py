"""A queue for devices: one build at a time measures on a device, and `device=any:KIND` takes a free one.

A build holds a lock on a file in the user's cache folder, as long as its process lives. So the builds of one
machine queue for a device; between machines, workers with the resource `device:NAME` do that (docs/farm.md),
and a device's own lock admits one host at a time to its files.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Sequence

from kiln.config import list_devices, load_target
from kiln.device.deploy.registry import load_device
from kiln.errors import KilnError
from kiln.paths import cache_dir

ANY = "any:"
_held: dict[str, int] = {}  # open files by device, until this process ends
_PAUSE = 0.5  # seconds between two looks at busy devices


def candidates(kind: str) -> list[str]:
    """The devices for a target, or for all targets of an architecture, in the order of their names.

    Raises KilnError where there is none.
    """
    targets = {summary.name: load_device(summary.name).target for summary in list_devices()}
    fitting = [name for name, target in targets.items() if kind in (target, load_target(target).arch)]
    if not fitting:
        listed = ", ".join(f"{name} ({target})" for name, target in targets.items()) or "none"
        raise KilnError(
            f"device '{ANY}{kind}': no device is for such a target or architecture; devices: {listed}"
        )
    return fitting


def take(names: Sequence[str]) -> str:
    """Wait until one of the devices is free, and hold it until this process ends; returns its name."""
    is_announced = False
    while True:
        for name in names:
            if name in _held or _locked(name):
                return name
        if not is_announced:
            which = f"device {names[0]}" if len(names) == 1 else f"one of the devices {', '.join(names)}"
            print(f"kiln: waiting for {which}, which other builds use", file=sys.stderr, flush=True)
            is_announced = True
        time.sleep(_PAUSE)


def _locked(name: str) -> bool:
    """Whether the device is held by this process now."""
    folder = cache_dir() / "devices"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise KilnError(f"{error.filename or folder}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    _held[name] = file
    return True
