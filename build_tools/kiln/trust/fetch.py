"""Fetch a bundle from a repository of signed bundles, by the rules of TUF."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.emit.bundle import unpack
from kiln.errors import KilnError
from kiln.trust.repository import METADATA, TARGETS, path_of, tuf_errors, tuf_libraries
from kiln.trust.verify import verify


@dataclass(frozen=True)
class FetchedBundle:
    """A bundle that was fetched, unpacked and verified."""

    folder: Path
    release: int
    key: str


def state_dir() -> Path:
    """The folder with the known state of repositories; without it, the next fetch trusts on first use again.

    Raises KilnError for a user without a home, where the state would be forgotten.
    """
    try:
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "kiln/repositories"
    except RuntimeError:
        raise KilnError(
            "this user has no home folder, in which fetch remembers repositories: set XDG_DATA_HOME"
        ) from None


def fetch(url: str, model: str, target: str, into: Path, root: Path | None = None) -> FetchedBundle:
    """Fetch the bundle of a model for a target into the folder `into`/TARGET/MODEL, in place of one there.

    `root`: the repository's 1.root.json, from somewhere that is trusted; needed for the first fetch alone.
    Raises KilnError for everything that is not as the repository's key has signed it, for a state of the
    repository that is older than one seen before or no longer valid, and for a server that does not answer.
    """
    tuf, client = tuf_libraries()
    state = state_dir() / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    metadata = state / METADATA
    if not url.startswith(("http://", "https://")):
        raise KilnError(f"--from {url}: a URL that begins with http:// or https:// is expected")
    first = _root(tuf, url, root, metadata)
    archive = state / f"{target}-{model}.tar.gz"
    metadata.mkdir(parents=True, exist_ok=True)
    base, part = url.rstrip("/"), METADATA
    try:
        updater = client.Updater(
            str(metadata), f"{base}/{METADATA}/", str(state), f"{base}/{TARGETS}/", bootstrap=first
        )
        updater.refresh()
        info = updater.get_targetinfo(path_of(model, target))
        if info is None:
            names = sorted(tuf.Metadata.from_file(str(metadata / "targets.json")).signed.targets)
            raise KilnError(
                f"{url}: no bundle {path_of(model, target)}; it has: {', '.join(names) or 'none'}"
            )
        part = path_of(model, target)
        updater.download_target(info, str(archive))
        keys = _keys(tuf, metadata)
    except tuf_errors().ExpiredMetadataError as error:
        raise KilnError(f"{url}: no longer valid: {error}; kiln publish without a bundle renews it") from None
    except (tuf_errors().RepositoryError, tuf_errors().DownloadError) as error:
        raise KilnError(f"{url}: {part}: {_reason(error)}") from None
    return _unpack(archive, into / target / model, keys, int(info.custom["release"]))


def _reason(error: Exception) -> str:
    """The text of an error of TUF's client, or of its cause where it has none: a server that is not there."""
    if str(error):
        return str(error)
    cause = error.__cause__
    text = str(getattr(cause, "reason", None) or cause or type(error).__name__)
    return f"no answer: {re.sub(r'^[A-Za-z]+[(][^)]*[)]: ', '', text)}"


def _root(tuf: Any, url: str, root: Path | None, known: Path) -> bytes | None:
    """The first root: of the file, or None where one is known already."""
    if root is not None:
        try:
            content = root.read_bytes()
        except OSError as error:
            raise KilnError(f"--root {root}: {error.strerror}") from None
        try:
            kind = tuf.Metadata.from_bytes(content).signed.type
        except tuf_errors().RepositoryError:
            kind = ""
        if kind != "root":
            fault = f"metadata of the kind '{kind}'" if kind else "not the metadata of a repository"
            raise KilnError(f"--root {root}: {fault}; its {METADATA}/1.root.json is expected")
        return content
    if not (known / "root.json").is_file():
        raise KilnError(
            f"{url}: not known yet: give the repository's {METADATA}/1.root.json with --root FILE"
        )
    return None


def _keys(tuf: Any, known: Path) -> list[Any]:
    """The keys that may sign bundles."""
    root = tuf.Metadata.from_file(str(known / "root.json")).signed
    return [root.keys[name] for name in root.roles["targets"].keyids]


def _unpack(archive: Path, place: Path, keys: list[Any], release: int) -> FetchedBundle:
    """Unpack and verify an archive next to `place`, then put it there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kiln-", dir=place.parent) as scratch:
        unpack(archive, Path(scratch))
        folders = list(Path(scratch).iterdir())
        if len(folders) != 1:
            raise KilnError(f"{archive.name}: {len(folders)} files and folders, allowed: one folder")
        folder = folders[0]
        verified = verify(folder, keys, least=release)
        old = Path(scratch) / "old"
        if place.exists():
            place.rename(old)
        folder.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    archive.unlink()
    return FetchedBundle(place, verified.release, verified.key)
