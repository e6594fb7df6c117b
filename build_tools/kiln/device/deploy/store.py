"""The files on a device below its `folder`, and the operations that change them.

    .kiln/blobs/SHA256                one file for each content, read-only, shared by all versions and models
    .kiln/lock/                       the lock, with its holder
    MODEL/versions/NAME/              the files of one bundle: hard links to blobs, or copies; never changed
    MODEL/versions/NAME/installed.json  the build, the time, the user, and the version before
    MODEL/current                     a link to versions/NAME, or a small file that names it

A version's folder is created under a temporary name, filled, renamed and checked. `current` changes by one
rename. So at whatever point an operation is interrupted, a program that follows `current` finds one complete
bundle.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.config import Device
from kiln.device.deploy import script
from kiln.device.deploy.copies import READ, Copies, File
from kiln.device.deploy.facts import DeviceFacts, read_facts, resolve
from kiln.device.deploy.lock import Lock
from kiln.device.deploy.transports import AFTER, TIMEOUT, Answer, Transport, open_transport
from kiln.errors import KilnError
from kiln.scratch import scratch_folder

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")


@dataclass
class State:
    """The files on a device: SHA-256 of contents, names of versions, the current version.

    `installed` is the current version's installed.json, validated; None where it is missing or damaged.
    """

    blobs: set[str] = field(default_factory=set)
    versions: list[str] = field(default_factory=list)
    current: str | None = None
    installed: dict[str, Any] | None = None


class Store:
    """One device's folder, over an open connection.

    All methods raise KilnError when the connection is lost.
    """

    def __init__(self, device: Device, transport: Transport) -> None:
        self.device, self.transport = device, transport
        if not transport.has_shell:
            raise KilnError(
                f"{transport.description}: it has no file system for bundles; link the model into a program "
                "and use program=FILE.elf"
            )
        self.facts: DeviceFacts = read_facts(transport, device.folder)
        self.root = resolve(device.folder, self.facts)
        self._lock = Lock(transport, self.root)
        self.copies = Copies(transport, self.root, self._lock.token, self.facts.checksum)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock on the device's folder while the block runs."""
        self._lock.take()
        try:
            yield
        finally:
            self._lock.release()

    def state(self, model: str = "") -> State:
        """Read the state of `model` on the device; the caller holds the lock.

        Also removes the temporary files of interrupted operations.
        """
        state = State()
        text = script.run(self.transport, "state", self.root, model, self.facts.checksum, timeout=TIMEOUT * 5)
        head, _, installed = text.partition("\ninstalled\t")
        for line in head.splitlines():
            key, _, value = line.partition("\t")
            if key == "blob" and _SHA256.fullmatch(value):
                state.blobs.add(value)
            elif key == "version" and _VERSION.fullmatch(value):
                state.versions.append(value)
            elif key == "current" and _VERSION.fullmatch(value.removeprefix("versions/").strip()):
                state.current = value.removeprefix("versions/").strip()
        if state.current is not None:
            state.installed = _checked(installed)
        self.copies.present = state.blobs
        return state

    def put(self, files: Iterable[File]) -> None:
        """Copy the contents that the device lacks; the device compares each with its SHA-256."""
        if self.copies.present is None:
            self.state()
        self.copies.put(files)

    def stage(self, model: str, version: str, files: Sequence[File]) -> None:
        """Create a version's folder from contents that are on the device."""
        lines = [f"{file.sha256} {'x' if file.executable else '-'} {file.name}" for file in files]
        limit = TIMEOUT + sum(file.bytes for file in files) / READ
        script.run(
            self.transport, "stage", self.root, self._lock.token, model, version, lines=lines, timeout=limit
        )

    def damaged(self, model: str, version: str, hashes: Mapping[str, str], total_bytes: int) -> list[str]:
        """Names of the version's files whose content, read back on the device, differs from `hashes`.

        `hashes`: SHA-256 by file name; `total_bytes`: bytes of all files, for the time limit.
        """
        folder = f"{self.root}/{model}/versions/{version}"
        limit = TIMEOUT + total_bytes / READ
        listing = script.run(
            self.transport, "verify", folder, self.facts.checksum, lines=list(hashes), timeout=limit
        )
        digests = {name: digest for digest, _, name in (line.partition(" ") for line in listing.splitlines())}
        return [name for name, digest in hashes.items() if digests.get(name) != digest]

    def switch(self, model: str, version: str) -> None:
        """Make `version` the version in use, atomically."""
        script.run(self.transport, "switch", self.root, self._lock.token, model, version, timeout=TIMEOUT * 5)

    def clean(self, model: str, versions: Sequence[str], timeout: float = TIMEOUT) -> None:
        """Remove all versions of the model but `versions`, and contents that no version needs."""
        script.run(self.transport, "clean", self.root, self._lock.token, model, *versions, timeout=timeout)

    def installed(self, model: str, version: str) -> dict[str, Any] | None:
        """The content of a version's installed.json; None where the file is missing or damaged."""
        with scratch_folder("installed") as folder:
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
        """Run the program words[0], one of `files`, in a new folder that contains `files`.

        After the run, copies the files of `fetch` (name there → file here) back. The contents of `files` stay
        on the device until another run with the same `keep`.
        """
        lines = [f"{file.sha256} {file.name}" for file in files]
        folder = f"{self.root}/.kiln/runs/{self._lock.token}"
        arguments = [self.root, self._lock.token, self._lock.token, keep, f"{timeout:.0f}", *words]
        try:
            done = script.attempt(self.transport, "run", *arguments, lines=lines, timeout=timeout + 30)
            if done.status == 0:
                for name, destination in fetch.items():
                    self.transport.fetch(f"{folder}/{name}", destination, timeout=TIMEOUT)
        finally:
            with contextlib.suppress(KilnError):  # an earlier error is the one to report
                script.attempt(self.transport, "end", self.root, self._lock.token, timeout=AFTER)
        return done


@contextmanager
def open_store(device: Device) -> Iterator[Store]:
    """Connect to the device, and close the connection when the block ends."""
    transport = open_transport(device)
    try:
        yield Store(device, transport)
    finally:
        transport.close()


def _checked(text: str) -> dict[str, Any] | None:
    """Parse the text of an installed.json; None unless every value that Kiln uses has the right form."""
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
