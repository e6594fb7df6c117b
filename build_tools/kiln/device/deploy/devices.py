"""The stage `devices`: lists the configured devices, and whether each answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import cast

from kiln.config import Summary, list_devices
from kiln.device.deploy import listing
from kiln.device.deploy.facts import read_facts, short
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import Loads, open_transport
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.stages.use import DevicesStage


def run(args: DevicesStage) -> None:
    """Connect to all devices at the same time, print a line for each, and write them to --out."""
    devices = list_devices()
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(_answer_of, devices))
    if answers:
        lines = [
            (answer.name, answer.target or "", answer.transport or "", answer.answer) for answer in answers
        ]
        listing.grid(("device", "target", "reached by", "answer"), lines)
    else:
        print("no devices: one is a file devices/NAME.yaml, see docs/devices.md")
    write_json(args.out, {"format": 1, "devices": [asdict(answer) for answer in answers]})


@dataclass(frozen=True)
class DeviceAnswer:
    """A configured device: its target, its kind of transport, and the answer of the device or the connection.

    `target` and `transport` are None where its file has a mistake, which `answer` then names.
    """

    name: str
    target: str | None
    transport: str | None
    reachable: bool
    answer: str


def _answer_of(summary: Summary) -> DeviceAnswer:
    try:
        device = load_device(summary.path)
    except KilnError as error:
        return DeviceAnswer(summary.name, None, None, False, str(error))
    kind, reachable = str(device.transport.model_dump()["kind"]), True
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
        reachable, answer = False, str(error)
    return DeviceAnswer(device.name, device.target, kind, reachable, answer)
