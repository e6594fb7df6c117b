"""A repository of signed bundles by the rules of TUF: a folder that any HTTP server can serve.

metadata/ has the roles root, targets, snapshot and timestamp, each signed with the same Ed25519 key, as
python-tuf writes and reads them; targets/<target>/ the archives of bundles, named by their SHA-256. Clients
notice changed files, missing ones, mixed versions, an older state of the repository, and one not renewed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from kiln.emit.bundle import pack
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.scratch import scratch_folder
from kiln.trust.keys import libraries, signing_key
from kiln.trust.verify import verify

METADATA, TARGETS = "metadata", "targets"
DAYS = 30  # for which targets, snapshot and timestamp are valid by default
ROOT_DAYS = 3650
ROLES = ("root", "targets", "snapshot", "timestamp")


@dataclass(frozen=True)
class PublishedBundle:
    """The content of a repository after `publish`: its bundles by name, each with its release."""

    repository: Path
    version: int
    bundles: dict[str, int]


def tuf_libraries() -> tuple[Any, Any]:
    """The modules tuf.api.metadata and tuf.ngclient; raises KilnError with the command that installs them."""
    try:
        from tuf import ngclient
        from tuf.api import metadata
    except ImportError:
        raise KilnError(
            f"repositories need the package tuf; install it with: {sys.executable} -m pip install tuf"
        ) from None
    return metadata, ngclient


def path_of(model: str, target: str) -> str:
    """The name of a bundle's archive in a repository."""
    return f"{target}/{model}.tar.gz"


def prepared(days: int, now: datetime | None) -> tuple[Any, Any, datetime]:
    """TUF's metadata module, the module of signers, and the time from which a new version is valid.

    Raises KilnError for fewer `days` than one and where a package is missing.
    """
    if days < 1:
        raise KilnError(f"days {days}: at least 1 is required")
    tuf, _ = tuf_libraries()
    _, signers, _ = libraries()
    return tuf, signers, now or datetime.now(timezone.utc).replace(microsecond=0)


def publish(
    repository: Path, key: str, bundle: Path | None, days: int = DAYS, now: datetime | None = None
) -> PublishedBundle:
    """Add a signed bundle to a repository, or renew the repository without one; makes an empty folder one.

    The bundle must have been signed with the same key, and its release must not be below that of the bundle
    in its place. Clients see the new state only when the last file, timestamp.json, is there.
    """
    tuf, signers, begin = prepared(days, now)
    folder = repository / METADATA
    with signing_key(key) as private:
        signer = signers.CryptoSigner(private)
        targets, version = _targets(tuf, folder, signer, begin)
        if bundle is not None:
            _add(tuf, repository, targets, bundle, signer)
        return write_version(tuf, repository, targets, version + 1, signer, begin + timedelta(days=days))


def write_version(
    tuf: Any, repository: Path, targets: Any, version: int, signer: Any, expires: datetime
) -> PublishedBundle:
    """Write a version of the repository, timestamp.json last."""
    targets.version, targets.expires = version, expires
    snapshot = tuf.Snapshot(version, expires=expires, meta={"targets.json": tuf.MetaFile(version)})
    timestamp = tuf.Timestamp(version, expires=expires, snapshot_meta=tuf.MetaFile(version))
    files = {
        f"{version}.targets.json": signed_by(tuf, targets, signer),
        f"{version}.snapshot.json": signed_by(tuf, snapshot, signer),
        "timestamp.json": signed_by(tuf, timestamp, signer),
    }
    for name, content in files.items():
        atomic_write(repository / METADATA / name, content)
    releases = {name: int(file.custom["release"]) for name, file in sorted(targets.targets.items())}
    return PublishedBundle(repository, version, releases)


def _targets(tuf: Any, folder: Path, signer: Any, begin: datetime) -> tuple[Any, int]:
    """The targets of a repository and their version; writes the root of a new one, whose version is 0."""
    if not any(folder.glob("*.json")):  # also after a first `publish` that met a full disk
        new_root = tuf.Root(expires=begin + timedelta(days=ROOT_DAYS), consistent_snapshot=True)
        for role in ROLES:
            new_root.add_key(signer.public_key, role)
        atomic_write(folder / "1.root.json", signed_by(tuf, new_root, signer))
        return tuf.Targets(), 0
    path, root = latest_root(tuf, folder)
    if signer.public_key.keyid not in root.roles["targets"].keyids:
        raise KilnError(f"{path}: the repository belongs to another key; --replaces OLD changes it")
    return read_targets(tuf, folder)


def latest_root(tuf: Any, folder: Path) -> tuple[Path, Any]:
    """The path and content of the newest root in metadata/. Raises KilnError: none is there, or damaged."""
    versions = {
        int(path.name.split(".")[0]): path
        for path in folder.glob("*.root.json")
        if path.name.split(".")[0].isdecimal()
    }
    if 1 not in versions:
        raise KilnError(f"{folder}: not a repository: it has no 1.root.json")
    path = versions[max(versions)]
    try:
        return path, tuf.Metadata[tuf.Root].from_file(str(path)).signed
    except Exception as error:  # the library's, and OSError
        raise KilnError(f"{path}: damaged: {error}") from None


def read_targets(tuf: Any, folder: Path) -> tuple[Any, int]:
    """The targets of a repository and their version, which is 0 before the first one is complete."""
    if not (folder / "timestamp.json").is_file():
        return tuf.Targets(), 0
    try:
        version = tuf.Metadata.from_file(str(folder / "timestamp.json")).signed.version
        return tuf.Metadata.from_file(str(folder / f"{version}.targets.json")).signed, version
    except Exception as error:  # the library's, and OSError, for files that are damaged or missing
        raise KilnError(f"{folder}: damaged: {error}") from None


def _add(tuf: Any, repository: Path, targets: Any, bundle: Path, signer: Any) -> None:
    """Add the archive of a bundle to the targets, and its file to the repository."""
    verified = verify(bundle, [signer.public_key])
    name = path_of(verified.model, verified.target)
    before = targets.targets.get(name)
    if before is not None and before.custom["release"] > verified.release:
        raise KilnError(
            f"{bundle}: release {verified.release}, "
            f"the repository has release {before.custom['release']} of it"
        )
    with scratch_folder("publish") as scratch:
        archive = Path(scratch) / "bundle.tar.gz"
        pack(bundle, archive)
        add_archive(tuf, repository, targets, name, archive.read_bytes(), verified.release)


def add_archive(tuf: Any, repository: Path, targets: Any, name: str, content: bytes, release: int) -> None:
    """Add the archive of a bundle to the targets, and its file to the repository."""
    file = tuf.TargetFile.from_data(name, content, ["sha256"])
    file.unrecognized_fields["custom"] = {"release": release}
    targets.targets[name] = file
    atomic_write(archive_path(repository, name, file), content)


def archive_path(repository: Path, name: str, file: Any) -> Path:
    """The path of an archive, whose name there begins with its SHA-256."""
    target, _, archive = name.rpartition("/")
    return repository / TARGETS / target / f"{file.hashes['sha256']}.{archive}"


def signed_by(tuf: Any, role: Any, *signers: Any) -> bytes:
    """The content of a role's file, signed by each of `signers`."""
    metadata = tuf.Metadata(role)
    try:
        for signer in signers:
            metadata.sign(signer, append=True)
    except tuf_errors().UnsignedMetadataError as error:  # of a token
        raise KilnError(str(error.__cause__ or error)) from None
    content: bytes = metadata.to_bytes()
    return content


def tuf_errors() -> Any:
    """The module with the errors of python-tuf."""
    from tuf.api import exceptions

    return exceptions
