"""Runs the bundle of a built model on inputs, on its target's runner or on a device that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln.arrays import Array
from kiln.config import Device, Target, load_target
from kiln.device.bundle import open_bundle
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners import runner_for
from kiln.device.check.runners.remote import remote_runner
from kiln.manifest import read_manifest
from kiln.scratch import scratch_folder

DEFAULT_TARGET = "host"
_BATCH = 32  # inputs of one start of the program
_TIMEOUT = 3600.0  # seconds of one start


@dataclass(frozen=True)
class Destination:
    """The place where bundles run: the runner of `target`, or `device`.

    `named` is the target as the user gave it, a name or the path of a YAML file.
    """

    named: str
    target: Target
    device: Device | None = None


def destination_of(target: str | None, device: str | None) -> Destination:
    """The destination of the options --target and --device.

    Without --target it is the target of the device, and without a device the host. Raises KilnError for an
    unknown name, and for a mistake in the target's or the device's file.
    """
    if device is None:
        named = target or DEFAULT_TARGET
        return Destination(named, load_target(named))
    # Imports the transports, which only devices need.
    from kiln.device.deploy.registry import load_device, target_of

    device_config = load_device(device)
    named = target or target_of(device)
    return Destination(named, load_target(named), device_config)


@dataclass(frozen=True)
class RunningBundle(BundleProgram):
    """A bundle whose linked program runs on any number of inputs."""

    def outputs(self, inputs: Sequence[Sequence[Array]], runs: int = 1) -> list[list[Array]]:
        """The outputs for each of `inputs` (one tensor for each input of the model, in its order).

        `runs`: how many of them follow one another before a model's state is set back. Raises KilnError where
        the program fails.
        """
        dtypes = [entry["dtype"] for entry in read_manifest(self.bundle.folder)["outputs"]]
        outputs: list[list[Array]] = []
        size = max(1, _BATCH // runs) * runs
        for start in range(0, len(inputs), size):
            batch = inputs[start : start + size]
            outputs += execute(self, batch, dtypes, timeout=_TIMEOUT, runs=runs).outputs
        return outputs


@contextmanager
def running(folder: Path, destination: Destination) -> Iterator[RunningBundle]:
    """Link the program of the bundle in `folder`, and connect to the device, whose lock is held meanwhile.

    Raises KilnError where the destination cannot run the target's programs.
    """
    bundle, target = open_bundle(folder), destination.target
    with scratch_folder("program") as work:
        program = bundle.link_program(target, Path(work))
        if destination.device is None:
            yield RunningBundle(bundle, program, runner_for(target))
            return
        with remote_runner(destination.device, target, bundle.name) as runner:
            yield RunningBundle(bundle, program, runner)
