"""Flags, inputs and names for the stages that run a bundle on its target's runner or on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.config import Device, canonical_json
from kiln.scons.model_build import Unit
from kiln.scons.stage import text_file


class Place:
    """The runner or device of one bundle, as flags and inputs for stages; `folder` holds their results."""

    def __init__(self, unit: Unit, device: str | None) -> None:
        self.device: Device | None = None  # None: the target's own runner
        self._model = unit.name
        self.folder, self.subject = unit.folder, unit.subject
        self.flags: list[str] = []
        self.inputs: list[Any] = []
        if device is not None:
            from kiln.device.deploy.registry import device_config, load_device  # only where a device is named

            self.device = load_device(device)
            self.folder = f"{unit.folder}/on/{self.device.name}"
            self.subject = f"{unit.subject} on {self.device.name}"
            config = text_file(f"{self.folder}/device.json", canonical_json(device_config(self.device)))
            self.flags, self.inputs = ["--device", str(config)], [config]

    @property
    def device_name(self) -> str | None:
        """The device's name; None for the target's own runner."""
        return self.device.name if self.device else None

    def foretold(self, goal: str) -> Callable[[], str] | None:
        """A function that returns the text of `scons -n`: the commands that `goal` runs on the device.

        None for the target's own runner.
        """
        device = self.device
        if device is None:
            return None

        def text() -> str:
            from kiln.device.deploy.listing import listing  # imports a library that only devices need

            return listing(goal, device, self._model)

        return text
