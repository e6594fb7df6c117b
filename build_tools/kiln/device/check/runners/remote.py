"""Runs programs on a device; files are stored there by content, so that only new ones are copied."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kiln.config import Device, Target
from kiln.device.check import host_cpu
from kiln.device.check.runners import Completed, Runner, runner_for
from kiln.device.check.runners.local import signal_name, too_old
from kiln.device.deploy.copies import file_of
from kiln.device.deploy.facts import read_facts, short
from kiln.device.deploy.fit import files_obstacle, obstacle
from kiln.device.deploy.registry import read_device
from kiln.device.deploy.store import Store
from kiln.device.deploy.transports import StillRunningError, Transport, open_transport
from kiln.errors import KilnError


class RemoteRunner:
    """A Runner on a device with a shell; the caller holds the lock of `store`.

    `extra` are files (name there → file here) that are placed next to every program.
    """

    unit = "ns"

    def __init__(self, store: Store, model: str = "run", extra: Mapping[str, Path] | None = None) -> None:
        self._store, self._model, self._extra = store, model, dict(extra or {})
        self.seconds = 0.0

    @property
    def description(self) -> str:
        """The device as text for the user."""
        return f"device '{self._store.device.name}', {short(self._store.facts.identity)}"

    def obstacle(self, target: Target) -> str | None:
        """The reason why the device cannot run the target's programs; None when none is known."""
        return obstacle(self._store.facts, target)

    @property
    def cores(self) -> list[str]:
        """LLVM's names of the device's kinds of cores."""
        return self._store.facts.cores

    @property
    def identity(self) -> dict[str, Any]:
        """The current state of the device, with governor and temperature."""
        facts = read_facts(self._store.transport, self._store.device.folder)
        return {"device": self._store.device.name, **facts.identity}

    def run(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        send: Mapping[str, Path],
        fetch: Mapping[str, Path],
        timeout: float,
    ) -> Completed:
        """See `kiln.device.check.runners.Runner.run`."""
        files_sent = {program.name: program, **self._extra, **send}
        why = files_obstacle(self._store.facts, files_sent)
        if why:
            raise KilnError(f"{self.description}: {why}")
        files = [file_of(name, path) for name, path in files_sent.items()]
        self._store.put(files)
        began = time.monotonic()
        done = self._store.run(self._model, files, [program.name, *arguments], fetch, timeout)
        self.seconds = time.monotonic() - began
        if done.status == 128 + signal.SIGKILL and self.seconds >= timeout:
            raise StillRunningError(
                f"{self.description}: {program.name} was still running after its limit of {timeout:g} s and "
                "was stopped"
            )
        if done.status > 128:
            raise KilnError(
                f"{self.description}: {program.name} was killed by {signal_name(128 - done.status)}"
            )
        return Completed(done.status, done.text, done.stderr, self.seconds)


@contextmanager
def remote_runner(device: Device, target: Target, model: str) -> Iterator[Runner]:
    """Connect to a device and lock it; yields the runner.

    Raises KilnError where the device cannot run the target's programs.
    """
    transport = open_transport(device)
    try:
        if not transport.has_shell:
            yield ImageRunner(device.name, transport)
            return
        store = Store(device, transport)
        why = obstacle(store.facts, target)
        if why:
            raise KilnError(f"{transport.description}: {why}")
        with store.locked():
            yield RemoteRunner(store, model)
    finally:
        transport.close()


@contextmanager
def chosen_runner(target: Target, device: Path | None, model: str) -> Iterator[Runner]:
    """Yield the runner on the device of a device.json, or the target's default runner for None."""
    if device is None:
        yield runner_for(target)
        return
    with remote_runner(read_device(device), target, model) as runner:
        yield runner


def runners_of_variants(
    target: Target, names: Sequence[str], runner: Runner
) -> Iterator[tuple[str, Runner | str]]:
    """The name of every variant of a bundle, and the runner that can run it or the reason why none can.

    `names`: of the bundle's variants, the target's own first. `runner`: of the target's own variant. A device
    runs the variants whose features it has; without one, a variant runs on this machine or in its emulator,
    or in one of its system that leaves code to this machine's processor.
    """
    yield target.base, runner
    for name in names[1:]:
        variant = target.for_variant(name)
        if isinstance(runner, RemoteRunner):
            yield name, runner.obstacle(variant) or runner
            continue
        keeps = target.system.keeps_processor
        why = host_cpu.processor_obstacle(variant) if keeps else host_cpu.obstacle(variant)
        if why is None:
            yield name, runner if keeps else runner_for(variant)
        elif variant.emulator is not None:
            yield name, too_old(variant.emulator) or runner_for(variant)
        else:
            yield name, f"{why}, and there is no emulator of one that has it"


class ImageRunner:
    """A Runner for devices without a shell: loads the program into memory; the transport serves its files.

    What counts time on the core is not known, so that its programs' times mean nothing.
    """

    unit = ""

    def __init__(self, name: str, transport: Transport) -> None:
        self._name, self._transport = name, transport

    @property
    def description(self) -> str:
        """The device as text for the user."""
        return self._transport.description

    @property
    def identity(self) -> dict[str, Any]:
        """The device's name only: without a shell, its state cannot be read."""
        return {"device": self._name}

    def run(
        self,
        program: Path,
        arguments: Sequence[str],
        *,
        send: Mapping[str, Path],
        fetch: Mapping[str, Path],
        timeout: float,
    ) -> Completed:
        """See `kiln.device.check.runners.Runner.run`."""
        began = time.monotonic()
        self._transport.send({program.name: program, **send})
        done = self._transport.run([program.name, *arguments], timeout=timeout)
        for name, destination in fetch.items():
            self._transport.fetch(name, destination)
        return Completed(done.status, done.text, done.stderr, time.monotonic() - began)
