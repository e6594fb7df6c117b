"""Change the key of a repository of bundles: TUF's rotation of the root, and every bundle signed anew.

The next root is signed with the old and the new key, so that clients who trust the old one accept it. The
bundles get signatures of the new key with their releases; whoever has the old key can do nothing any more.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kiln.emit.bundle import pack, unpack
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.scratch import scratch_folder
from kiln.trust.keys import signing_key
from kiln.trust.repository import (
    DAYS,
    METADATA,
    ROLES,
    ROOT_DAYS,
    PublishedBundle,
    add_archive,
    archive_path,
    latest_root,
    prepared,
    read_targets,
    signed_by,
    write_version,
)
from kiln.trust.sign import sign
from kiln.trust.verify import verify


def change_key(
    repository: Path, key: str, old: str, days: int = DAYS, now: datetime | None = None
) -> PublishedBundle:
    """Give a repository the key `key` in place of `old`. Both are private keys, as for `publish`.

    Raises KilnError where the repository belongs to another key than `old`, and for a bundle that `old` has
    not signed: nothing has been changed then. After an interruption the same call completes the change.
    """
    tuf, signers, begin = prepared(days, now)
    folder = repository / METADATA
    path, root = latest_root(tuf, folder)
    with signing_key(old) as before, signing_key(key) as after:
        earlier, signer = signers.CryptoSigner(before), signers.CryptoSigner(after)
        if earlier.public_key.keyid == signer.public_key.keyid:
            raise KilnError("--replaces: the same key as --key")
        keys = root.roles["targets"].keyids
        changed = signer.public_key.keyid in keys
        if not changed and earlier.public_key.keyid not in keys:
            raise KilnError(f"{path}: the repository belongs to another key than that of --replaces")
        targets, version = read_targets(tuf, folder)
        with scratch_folder("rotate") as scratch:
            bundles = {
                name: _signed_anew(
                    repository, name, targets.targets[name], (earlier, signer), key, Path(scratch)
                )
                for name in sorted(targets.targets)
            }
            for name, archive in bundles.items():
                add_archive(tuf, repository, targets, name, archive, targets.targets[name].custom["release"])
        if not changed:
            _rotate(root, earlier, signer, begin)
            content = signed_by(tuf, root, earlier, signer)
            atomic_write(folder / f"{root.version}.root.json", content)
        return write_version(tuf, repository, targets, version + 1, signer, begin + timedelta(days=days))


def _rotate(root: Any, earlier: Any, signer: Any, begin: datetime) -> None:
    """Make `root` its next version, whose roles belong to the new key alone."""
    root.version += 1
    root.expires = begin + timedelta(days=ROOT_DAYS)
    for role in ROLES:
        root.add_key(signer.public_key, role)
        root.revoke_key(earlier.public_key.keyid, role)


def _signed_anew(
    repository: Path, name: str, file: Any, signers: tuple[Any, Any], key: str, scratch: Path
) -> bytes:
    """The archive of a published bundle with a signature of the new key, which it may have already."""
    earlier, signer = signers
    path = archive_path(repository, name, file)
    unpacked = scratch / name.replace("/", "_")
    unpacked.mkdir()
    unpack(path, unpacked)
    (bundle,) = unpacked.iterdir()
    verified = verify(bundle, [earlier.public_key, signer.public_key], least=file.custom["release"])
    if verified.key != signer.public_key.keyid:
        sign(bundle, key, verified.release)
    archive = unpacked / "bundle.tar.gz"
    pack(bundle, archive)
    return archive.read_bytes()
