"""The stage `devices`: lists the configured devices, and whether each answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

from kiln.config import Summary, list_devices
from kiln.device.deploy import listing
from kiln.device.deploy.facts import read_facts, short
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import Loads, open_transport
from kiln.errors import KilnError
from kiln.stages.use import DevicesStage


def run(args: DevicesStage) -> None:
    """Connect to all devices at the same time, and print a line for each."""
    known = list_devices()
    if not known:
        print("no devices: one is a file devices/NAME.yaml, see docs/devices.md")
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        listing.grid(("device", "target", "reached by", "answer"), list(pool.map(_line, known)))


def _line(summary: Summary) -> tuple[str, str, str, str]:
    try:
        device = load_device(summary.path)
    except KilnError as error:
        return summary.name, "", "", str(error)
    kind = str(device.transport.model_dump()["kind"])
    try:
        transport = open_transport(device)
        try:
            answer = "answers"
            if transport.has_shell:
                answer = short(read_facts(transport, device.folder).identity)
            else:
                answer = cast(Loads, transport).core() or answer
        finally:
            transport.close()
    except KilnError as error:
        answer = str(error)
    return device.name, device.target, kind, answer
