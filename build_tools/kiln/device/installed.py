"""Stage for installed bundles: rolls back to the version before, or compares with the bundle built here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kiln.device.deploy import listing
from kiln.device.deploy.registry import read_device
from kiln.device.deploy.store import Store, open_store
from kiln.device.flash import bundle_files, greatest_release, version_id
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.manifest import read_manifest
from kiln.stages.use import InstalledStage


@dataclass(frozen=True)
class InstalledState:
    """The bundle of a model on a device.

    `in_use` and `before` are versions; None: no such version. `installed` says when, from where and for which
    target; None where the device's record is damaged. `damaged` are files whose content is wrong.
    `differs_in` are the files in which the bundle built here is another one; None where there is none.
    """

    in_use: str | None
    before: str | None
    installed: Mapping[str, str] | None = None
    damaged: Sequence[str] = ()
    differs_in: Sequence[str] | None = None


def run(args: InstalledStage) -> None:
    """Roll back or read the status, print the result, and write it to --out as JSON."""
    device = read_device(args.device)
    if args.list:
        print(listing.listing(args.goal, device, args.model))
        return
    with open_store(device) as store, store.locked():
        if args.goal == "rollback":
            state = rollback(store, args.model)
            entries = _rolled_back(state)
        else:
            state = status(store, args)
            entries = _rows(state, f"{store.root}/{args.model}/current")
        listing.rows(f"{args.model} on {store.transport.description}", entries)
        if args.out is not None:
            about = {"format": 1, "model": args.model, "device": device.name, "folder": store.root}
            write_json(args.out, {**about, **asdict(state)})


def rollback(store: Store, model: str) -> InstalledState:
    """Switch to the version before the current one, after reading it back; `before` is the one left.

    Raises KilnError, and changes nothing, when there is no earlier version or it is damaged.
    """
    device, state = store.transport.description, store.state(model)
    if state.current is None:
        raise KilnError(f"{device}: no bundle of '{model}' is installed there")
    previous = state.installed["previous"] if state.installed else None
    if previous is None or previous not in state.versions:
        raise KilnError(
            f"{device}: no bundle of '{model}' earlier than {state.current}, to roll back to, is installed"
        )
    installed = store.installed(model, previous)
    wrong = _damaged(store, model, previous, installed)
    if installed is None or wrong:
        raise KilnError(
            f"{device}: {previous} cannot be used, {(wrong or ['installed.json'])[0]} is damaged; "
            f"{state.current} stays in use"
        )
    release, floor = installed.get("release"), greatest_release(state.installed)
    if store.device.trusted_keys and (not isinstance(release, int) or release < floor):
        raise KilnError(
            f"{device}: {previous} is of release {release}, at least {floor} is required; {state.current} "
            "stays in use"
        )
    store.switch(model, previous)
    return InstalledState(previous, state.current, _origin(installed))


def status(store: Store, args: InstalledStage) -> InstalledState:
    """The installed version, the state of its files, how it differs from the local bundle."""
    state = store.state(args.model)
    if state.current is None:
        return InstalledState(None, None)
    if state.installed is None:
        return InstalledState(state.current, None, damaged=["installed.json"])
    return InstalledState(
        state.current,
        before if (before := state.installed["previous"]) in state.versions else None,
        _origin(state.installed),
        _damaged(store, args.model, state.current, state.installed),
        _other_files(state.installed, args.bundle, store.device.contents),
    )


def _origin(installed: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(installed[key]) for key in ("installed", "by", "target")}


def _rolled_back(state: InstalledState) -> dict[str, str]:
    """The rows to print after a rollback."""
    return {
        "in use": str(state.in_use),
        "installed": listing.origin(state.installed or {}),
        "before": str(state.before),
    }


def _rows(state: InstalledState, current: str) -> dict[str, str]:
    """The rows to print of a status; `current` is the path of the version in use on the device."""
    if state.in_use is None:
        return {"in use": "nothing"}
    if state.installed is None:
        return {"in use": state.in_use, "files": "installed.json is damaged; flash again"}
    wrong, other = state.damaged, state.differs_in
    more = f" and {len(other) - 3} more" if other is not None and len(other) > 3 else ""
    comparison = (
        "nothing" if other is None else f"differs in {', '.join(other[:3])}{more}" if other else "the same"
    )
    return {
        "in use": f"{current}: {state.in_use}",
        "installed": listing.origin(state.installed),
        "files": f"damaged: {', '.join(wrong)}; flash again" if wrong else "whole, checked by SHA-256",
        "built here": comparison,
        "before": state.before or "none",
    }


def _damaged(store: Store, model: str, version: str, installed: Mapping[str, Any] | None) -> list[str]:
    files = installed["files"] if installed else []
    hashes = {file["name"]: file["sha256"] for file in files}
    return store.damaged(model, version, hashes, sum(file["bytes"] for file in files))


def _other_files(installed: Mapping[str, Any], bundle: Path | None, contents: str) -> list[str] | None:
    """The files in which the local bundle differs from an installed one; None without a local bundle."""
    if bundle is None or not (bundle / "manifest.json").is_file():
        return None
    files = bundle_files(bundle, read_manifest(bundle), contents)
    if version_id(files) == installed["id"]:
        return []
    on_device = {file["name"]: file["sha256"] for file in installed["files"]}
    local = {file.name: file.sha256 for file in files}
    return sorted(name for name in {*on_device, *local} if on_device.get(name) != local.get(name))
