"""The place where a bundle runs: its target's runner, or a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kiln.config import Device, canonical_json
from kiln.scons.model_build import ModelBuild
from kiln.scons.stage import text_file


class RunPlace:
    """The runner or device of one bundle.

    `folder` is the folder of results, `config` the path of device.json; None for the target's own runner.
    """

    def __init__(self, unit: ModelBuild) -> None:
        self.device: Device | None = None
        self.config: Path | None = None
        self.folder, self.subject, self._model = unit.folder, unit.subject, unit.name
        if unit.options.device is not None:
            from kiln.device.deploy.registry import device_config, load_device  # only where a device is named

            self.device = load_device(unit.options.device)
            self.folder = unit.folder / "on" / self.device.name
            self.subject = f"{unit.subject} on {self.device.name}"
            self.config = text_file(self.folder / "device.json", canonical_json(device_config(self.device)))

    def dry_run_text(self, goal: str) -> Callable[[], str] | None:
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
