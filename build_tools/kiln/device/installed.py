"""Stage for installed bundles: rolls back to the version before, or compares with the bundle built here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.device.deploy import listing
from kiln.device.deploy.registry import read_device
from kiln.device.deploy.store import Store, open_store
from kiln.device.flash import bundle_files, greatest_release, version_id
from kiln.errors import KilnError
from kiln.manifest import read_manifest
from kiln.stages.use import InstalledStage


def run(args: InstalledStage) -> None:
    """Roll back or read the status, and print the result."""
    device = read_device(args.device)
    if args.list:
        print(listing.listing(args.goal, device, args.model))
        return
    with open_store(device) as store, store.locked():
        entries = rollback(store, args.model) if args.goal == "rollback" else status(store, args)
        listing.rows(f"{args.model} on {store.transport.description}", entries)


def rollback(store: Store, model: str) -> dict[str, str]:
    """Switch to the version before the current one, after reading it back; returns the rows to print.

    Raises KilnError, and changes nothing, when there is no earlier version or it is damaged.
    """
    who, state = store.transport.description, store.state(model)
    if state.current is None:
        raise KilnError(f"{who}: no bundle of '{model}' is installed there")
    previous = state.installed["previous"] if state.installed else None
    if previous is None or previous not in state.versions:
        raise KilnError(f"{who}: there is no bundle of '{model}' before {state.current} to go back to")
    installed = store.installed(model, previous)
    wrong = _damaged(store, model, previous, installed)
    if installed is None or wrong:
        raise KilnError(
            f"{who}: {previous} cannot be used, {(wrong or ['installed.json'])[0]} is damaged; "
            f"{state.current} stays in use"
        )
    release, floor = installed.get("release"), greatest_release(state.installed)
    if store.device.trusted_keys and (not isinstance(release, int) or release < floor):
        raise KilnError(
            f"{who}: {previous} is of release {release}, at least {floor} is required; {state.current} stays "
            "in use"
        )
    store.switch(model, previous)
    return {"in use": previous, "installed": listing.when(installed), "before": state.current}


def status(store: Store, args: InstalledStage) -> dict[str, str]:
    """Rows to print: the installed version, the state of its files, how it differs from the local bundle."""
    state = store.state(args.model)
    if state.current is None:
        return {"in use": "nothing"}
    if state.installed is None:
        return {"in use": state.current, "files": "installed.json is damaged; flash again"}
    wrong = _damaged(store, args.model, state.current, state.installed)
    previous = state.installed["previous"]
    return {
        "in use": f"{store.root}/{args.model}/current: {state.current}",
        "installed": listing.when(state.installed),
        "files": f"damaged: {', '.join(wrong)}; flash again" if wrong else "whole, checked by SHA-256",
        "built here": _compared(state.installed, args.bundle, store.device.contents),
        "before": previous if previous in state.versions else "none",
    }


def _damaged(store: Store, model: str, version: str, installed: Mapping[str, Any] | None) -> list[str]:
    files = installed["files"] if installed else []
    hashes = {file["name"]: file["sha256"] for file in files}
    return store.damaged(model, version, hashes, sum(file["bytes"] for file in files))


def _compared(installed: Mapping[str, Any], bundle: Path | None, contents: str) -> str:
    if bundle is None or not (bundle / "manifest.json").is_file():
        return "nothing"
    files = bundle_files(bundle, read_manifest(bundle), contents)
    if version_id(files) == installed["id"]:
        return "the same"
    there = {file["name"]: file["sha256"] for file in installed["files"]}
    here = {file.name: file.sha256 for file in files}
    other = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    return f"differs in {', '.join(other[:3])}{more}"
