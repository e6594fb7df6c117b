"""What lies on a device, below its `folder`, and how it changes.

    .kiln/blobs/SHA256                one file for each content, read-only, shared by all versions and models
    .kiln/lock/                       who is at work
    MODEL/versions/NAME/              the files of one bundle: hard links to blobs, or copies; never changed
    MODEL/versions/NAME/installed.json  from which build, when, by whom, and the version before
    MODEL/current                     a link to versions/NAME, or a small file that names it

A version's folder is made under another name, filled, renamed and checked. `current` changes by one rename.
So whatever is interrupted where, a program that follows `current` finds one whole bundle.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.config import Device
from kiln.device.deploy import script
from kiln.device.deploy.copies import READ, Copies, File
from kiln.device.deploy.facts import Facts, read_facts, resolve
from kiln.device.deploy.lock import Lock
from kiln.device.deploy.transports import AFTER, TIMEOUT, Answer, Transport, open_transport
from kiln.errors import KilnError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")


@dataclass
class State:
    """What a device holds; `installed` is the current version's installed.json, checked."""

    blobs: set[str] = field(default_factory=set)
    versions: list[str] = field(default_factory=list)
    current: str | None = None
    installed: dict[str, Any] | None = None


class Store:
    """One device's folder, over an open connection. All methods raise KilnError when it is lost."""

    def __init__(self, device: Device, transport: Transport) -> None:
        self.device, self.transport = device, transport
        if not transport.has_shell:
            raise KilnError(
                f"{transport.description}: it has no file system for bundles; link the model into a program "
                "and say program=FILE.elf"
            )
        self.facts: Facts = read_facts(transport, device.folder)
        self.root = resolve(device.folder, self.facts)
        self._lock = Lock(transport, self.root)
        self.copies = Copies(transport, self.root, self._lock.token, self.facts.checksum)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other hosts out."""
        self._lock.take()
        try:
            yield
        finally:
            self._lock.release()

    def state(self, model: str = "") -> State:
        """What is there. What an interrupted host left behind is removed, so this wants the lock."""
        found = State()
        text = script.run(self.transport, "state", self.root, model, self.facts.checksum, timeout=TIMEOUT * 5)
        head, _, installed = text.partition("\ninstalled\t")
        for line in head.splitlines():
            key, _, value = line.partition("\t")
            if key == "blob" and _SHA256.fullmatch(value):
                found.blobs.add(value)
            elif key == "version" and _VERSION.fullmatch(value):
                found.versions.append(value)
            elif key == "current" and _VERSION.fullmatch(value.removeprefix("versions/").strip()):
                found.current = value.removeprefix("versions/").strip()
        if found.current is not None:
            found.installed = _checked(installed)
        self.copies.present = found.blobs
        return found

    def put(self, files: Iterable[File]) -> None:
        """Copy the contents that the device lacks, and have it compare each with its SHA-256."""
        if self.copies.present is None:
            self.state()
        self.copies.put(files)

    def stage(self, model: str, version: str, files: Sequence[File]) -> None:
        """Lay out a version's folder from contents that are there."""
        lines = [f"{file.sha256} {'x' if file.executable else '-'} {file.name}" for file in files]
        limit = TIMEOUT + sum(file.bytes for file in files) / READ
        script.run(
            self.transport, "stage", self.root, self._lock.token, model, version, lines=lines, timeout=limit
        )

    def damaged(self, model: str, version: str, hashes: Mapping[str, str], total: int) -> list[str]:
        """Names of the version's files whose content, read back there, has not the SHA-256 of `hashes`."""
        folder = f"{self.root}/{model}/versions/{version}"
        limit = TIMEOUT + total / READ
        said = script.run(
            self.transport, "verify", folder, self.facts.checksum, lines=list(hashes), timeout=limit
        )
        there = {name: digest for digest, _, name in (line.partition(" ") for line in said.splitlines())}
        return [name for name, digest in hashes.items() if there.get(name) != digest]

    def switch(self, model: str, version: str) -> None:
        """Make this version the one in use."""
        script.run(self.transport, "switch", self.root, self._lock.token, model, version, timeout=TIMEOUT * 5)

    def clean(self, model: str, versions: Sequence[str], timeout: float = TIMEOUT) -> None:
        """Remove the model's other versions, and contents that nothing needs."""
        script.run(self.transport, "clean", self.root, self._lock.token, model, *versions, timeout=timeout)

    def installed(self, model: str, version: str) -> dict[str, Any] | None:
        """What a version's installed.json says; None where it says nothing that can be used."""
        with tempfile.TemporaryDirectory(prefix="kiln-installed-") as folder:
            path = Path(folder, "installed.json")
            there = f"{self.root}/{model}/versions/{version}/installed.json"
            return _checked(path.read_text("utf-8", "replace")) if self.transport.fetch(there, path) else None

    def run(
        self,
        keep: str,
        files: Sequence[File],
        words: Sequence[str],
        fetch: Mapping[str, Path],
        timeout: float,
    ) -> Answer:
        """Run the program words[0], one of `files`, in an empty folder that holds them all.

        The contents stay on the device until another run with the same `keep`.
        """
        lines = [f"{file.sha256} {file.name}" for file in files]
        folder = f"{self.root}/.kiln/runs/{self._lock.token}"
        given = [self.root, self._lock.token, self._lock.token, keep, f"{timeout:.0f}", *words]
        try:
            done = script.attempt(self.transport, "run", *given, lines=lines, timeout=timeout + 30)
            if done.status == 0:
                for name, destination in fetch.items():
                    self.transport.fetch(f"{folder}/{name}", destination, timeout=TIMEOUT)
        finally:
            with contextlib.suppress(KilnError):  # what went wrong before it is what is told
                script.attempt(self.transport, "end", self.root, self._lock.token, timeout=AFTER)
        return done


@contextmanager
def open_store(device: Device) -> Iterator[Store]:
    """Connect to the device, until the block ends."""
    transport = open_transport(device)
    try:
        yield Store(device, transport)
    finally:
        transport.close()


def _checked(text: str) -> dict[str, Any] | None:
    """installed.json as the device gives it: None unless every value that is used is what it must be."""
    try:
        data = json.loads(text)
        files = data["files"]
        good = (
            isinstance(data["id"], str)
            and all(
                isinstance(data[key], str)
                for key in ("model", "target", "installed", "by", "manifest_sha256")
            )
            and (data["previous"] is None or _VERSION.fullmatch(data["previous"]) is not None)
            and all(_SHA256.fullmatch(file["sha256"]) and file["name"].isprintable() for file in files)
            and all(isinstance(file["bytes"], int) for file in files)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return data if good else None
