"""Install a bundle on a device: copy new contents, check them, run the golden vectors there, then switch."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import itertools
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln import __version__
from kiln.config import Device, Target, read_target
from kiln.device.bundle import open_bundle
from kiln.device.check import test
from kiln.device.check.runners.remote import RemoteRunner
from kiln.device.deploy import listing
from kiln.device.deploy.copies import File, file_of
from kiln.device.deploy.facts import short
from kiln.device.deploy.fit import files_obstacle, memory_obstacle, obstacle, space_obstacle
from kiln.device.deploy.registry import read_device
from kiln.device.deploy.store import State, Store, open_store
from kiln.device.deploy.transports import AFTER
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.manifest import Manifest, read_manifest
from kiln.scratch import scratch_folder
from kiln.sources.cache import file_sha256
from kiln.stages.use import FlashStage
from kiln.trust import FOLDER, PROVENANCE
from kiln.trust.keys import public_key
from kiln.trust.verify import verify

# Folders and files of a bundle that no program reads when it runs (`contents: run` leaves them out).
_TO_BUILD_WITH = ("include/", "src/", "cmake/", "pkgconfig/", "golden/", "report.html")
_SPARE = 256 << 10  # bytes needed in addition to the files: folders, the lock, the vectors' outputs


def run(args: FlashStage) -> None:
    """Flash, print the result, and write it to --out as JSON."""
    device = read_device(args.device)
    if args.list:
        print(listing.listing("flash", device, args.bundle.name))
        return
    target = read_target(args.target)
    began = time.monotonic()
    release = _release(device, args.bundle)
    with open_store(device) as store:
        manifest = read_manifest(args.bundle)
        why = obstacle(store.facts, target) or memory_obstacle(store.facts, manifest)
        if why:
            raise KilnError(f"{store.transport.description}: {why}; nothing was changed there")
        with store.locked():
            flashed = _Flash(store, device, target, args, manifest, release).run()
        flashed["seconds"] = round(time.monotonic() - began, 1)
        _print(store, target, flashed)
        write_json(args.out, flashed)


def _release(device: Device, bundle: Path) -> int | None:
    """The release of a bundle that one of the device's trusted keys has signed; None without trusted keys."""
    if not device.trusted_keys:
        return None
    where = f"device '{device.name}': trusted_keys"
    keys = [public_key(pem.encode(), where) for pem in device.trusted_keys]
    return verify(bundle, keys).release


@dataclass
class _Flash:
    """The installation of one bundle on one device."""

    store: Store
    device: Device
    target: Target
    args: FlashStage
    manifest: Manifest
    release: int | None

    def run(self) -> dict[str, Any]:
        """Install, test and switch; returns the content of flash.json without the time.

        The caller holds the lock. Raises KilnError, and SystemExit where the golden vectors fail.
        """
        model, store = str(self.manifest["name"]), self.store
        files = bundle_files(self.args.bundle, self.manifest, self.device.contents)
        why = files_obstacle(store.facts, {file.name: file.source for file in files})
        if why:
            raise KilnError(f"{store.transport.description}: {why}; nothing was changed there")
        identity = version_id(files)
        state = store.state(model)
        self._refuse_older(model, state)
        fresh = state.current is None or state.installed is None or state.installed["id"] != identity
        if not fresh and state.current is not None:
            wrong = self._damaged(model, state.current, files)
            store.copies.forget(file.sha256 for file in files if file.name in wrong)
            fresh = bool(wrong)
        try:
            version = self._install(model, identity, files, state) if fresh else str(state.current)
            self._try_out(model)
            if fresh:
                store.switch(model, version)
        except (KilnError, SystemExit):
            # Without a connection this fails too; then the next flash cleans up.
            with contextlib.suppress(KilnError):
                store.clean(model, _kept(state), AFTER)
            raise
        before = state.current if fresh else _previous(state)
        if fresh:
            store.clean(model, [version, *([before] if before else [])])
        return {
            "format": 1, "model": model, "device": {"device": self.device.name, **store.facts.identity},
            "version": version, "previous": before, "changed": fresh, "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "moved_bytes": store.copies.moved,
        }  # fmt: skip

    def _refuse_older(self, model: str, state: State) -> None:
        """Raise KilnError for a bundle of an older release than the device has had."""
        floor = greatest_release(state.installed)
        if self.release is not None and state.current is not None and state.installed is None:
            raise KilnError(
                f"{self.store.transport.description}: installed.json of '{model}' is damaged, so the "
                "greatest release there is not known; nothing was changed there"
            )
        if self.release is not None and self.release < floor:
            raise KilnError(
                f"{self.store.transport.description}: release {self.release} of '{model}', at least {floor} "
                "is required: an older bundle; nothing was changed there"
            )

    def _install(self, model: str, identity: str, files: Sequence[File], state: State) -> str:
        """Copy a version to the device and read it back; returns its name.

        Raises KilnError where there is no space, or a file reads back damaged.
        """
        store = self.store
        new = {file.sha256: file.bytes for file in files if file.sha256 not in state.blobs}
        why = space_obstacle(store.facts, sum(new.values()) + _SPARE, store.root)
        if why:
            raise KilnError(f"{store.transport.description}: {why}; nothing was changed there")
        now = time.gmtime()
        version = f"{time.strftime('%Y%m%dT%H%M%SZ', now)}-{identity[:12]}"
        again = (f"{version}-{number}" for number in itertools.count(2))  # within the same second
        version = next(name for name in itertools.chain([version], again) if name not in state.versions)
        with scratch_folder("flash") as folder:
            about = Path(folder, "installed.json")
            about.write_text(json.dumps(self._about(identity, files, state, now), indent=1) + "\n", "utf-8")
            laid = [*files, file_of("installed.json", about)]
            store.put(laid)
            store.stage(model, version, laid)
        wrong = self._damaged(model, version, laid)
        if wrong:
            raise KilnError(
                f"{store.transport.description}: {wrong[0]} reads back damaged: check its storage"
            )
        return version

    def _about(
        self, identity: str, files: Sequence[File], state: State, now: time.struct_time
    ) -> dict[str, Any]:
        manifest = next(file for file in files if file.name == "manifest.json")
        return {
            "format": 1, "model": self.manifest["name"], "id": identity, "previous": state.current,
            "target": self.target.name, "model_hash": self.manifest["model_hash"],
            "manifest_sha256": manifest.sha256, "installed": time.strftime("%Y-%m-%d %H:%M:%S UTC", now),
            "release": self.release,
            "greatest_release": max(self.release or 0, greatest_release(state.installed)),
            "by": f"{getpass.getuser()}@{socket.gethostname()}", "kiln": __version__,
            "files": [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in files],
        }  # fmt: skip

    def _damaged(self, model: str, version: str, files: Sequence[File]) -> list[str]:
        hashes = {file.name: file.sha256 for file in files}
        return self.store.damaged(model, version, hashes, sum(file.bytes for file in files))

    def _try_out(self, model: str) -> None:
        """Run the golden vectors on the device, through the shared library if the bundle has one.

        Raises SystemExit, after printing the reason, where an output exceeds its tolerance.
        """
        library = open_bundle(self.args.bundle).shared_library
        # The runner finds files by content, so this is the flashed file: a hard link to the blob, or a copy.
        extra = {library.name: library} if library.is_file() else {}
        with scratch_folder("flash") as folder:
            arguments = dataclasses.replace(self.args, out=Path(folder, "test.json"))
            runner = RemoteRunner(self.store, model, extra)
            test.check(arguments, self.target, runner, shared=bool(extra))


def bundle_files(bundle: Path, manifest: Manifest, contents: str) -> list[File]:
    """The bundle's files to install on a device, sorted by name; `contents: run` excludes build-time files.

    Raises KilnError where a file is missing, differs from the manifest, or has a name that cannot be used.
    """
    sha256_of_file = {entry["name"]: entry["sha256"] for entry in manifest["files"]}
    if contents == "run":
        sha256_of_file = {name: digest for name, digest in sha256_of_file.items() if not _to_build_with(name)}
    if (bundle / PROVENANCE).is_file():
        signed = [path for path in sorted((bundle / FOLDER).glob("*")) if path.is_file()]
        sha256_of_file |= {f"{FOLDER}/{path.name}": file_sha256(path) for path in signed}
    files = [file_of(name, bundle / name) for name in sha256_of_file]
    for file in files:
        if file.sha256 != sha256_of_file[file.name]:
            raise KilnError(f"{file.source}: not the file that manifest.json lists; build the bundle again")
    return sorted([*files, file_of("manifest.json", bundle / "manifest.json")], key=lambda file: file.name)


def greatest_release(installed: Mapping[str, Any] | None) -> int:
    """The greatest release that a device has had, by an installed.json; 0 where none was signed."""
    release = (installed or {}).get("greatest_release")
    return release if isinstance(release, int) else 0


def _to_build_with(name: str) -> bool:
    return name.startswith(_TO_BUILD_WITH) or name.endswith(".a")


def version_id(files: Sequence[File]) -> str:
    """A hash of the names and contents of `files`, in hexadecimal."""
    return hashlib.sha256("".join(f"{file.sha256} {file.name}\n" for file in files).encode()).hexdigest()


def _previous(state: State) -> str | None:
    """The version before the current one, if it is still on the device."""
    previous = state.installed["previous"] if state.installed else None
    return previous if previous in state.versions else None


def _kept(state: State) -> list[str]:
    return [name for name in (state.current, _previous(state)) if name is not None]


def _print(store: Store, target: Target, flashed: Mapping[str, Any]) -> None:
    entries = {
        "device": short(flashed["device"]),
        "bundle": f"{flashed['files']} files, {flashed['bytes']:,} bytes, each checked there by SHA-256",
        "copied": f"{flashed['moved_bytes']:,} bytes",
        "in use": f"{store.root}/{flashed['model']}/current: {flashed['version']}"
        + ("" if flashed["changed"] else " (unchanged)"),
        "before": flashed["previous"] or "none",
        "took": f"{flashed['seconds']:.1f} s",
    }
    listing.rows(f"{flashed['model']} for {target.name} on {store.transport.description}", entries)
