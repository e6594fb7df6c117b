"""Sign a bundle: bills of materials, records for devices, and a signed statement of all files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.emit.bundle import pack
from kiln.errors import KilnError
from kiln.files import atomic_write, write_json
from kiln.manifest import Manifest, read_manifest
from kiln.trust import FOLDER, PROVENANCE
from kiln.trust.keys import libraries, signing_key
from kiln.trust.record import records, write_verifier
from kiln.trust.release import check, keep
from kiln.trust.sbom import cyclonedx, write_sboms
from kiln.trust.statement import MOST_RELEASE, PAYLOAD, statement


@dataclass(frozen=True)
class SignedBundle:
    """A signed bundle: its folder, its release, and the id of the key."""

    folder: Path
    release: int
    key: str


def sign(bundle: Path, key: str, release: int) -> SignedBundle:
    """Sign the bundle in the folder `bundle` with the private key `key` (see `signing_key`).

    Writes trust/ in the bundle, in place of an earlier one, and the archive next to it anew. Raises KilnError
    before anything is written, also for a release below an earlier one of this bundle; but if a token fails
    between two signatures, the bundle is left without a signature.
    """
    if not 0 <= release <= MOST_RELEASE:
        raise KilnError(f"release {release}: allowed 0..{MOST_RELEASE}")
    manifest = read_manifest(bundle)
    check(bundle, release, _present_release(bundle))
    with signing_key(key) as private:
        cyclonedx(bundle, manifest)  # a missing library is noticed before anything is written
        signed = records(bundle, manifest, private, release)
        shutil.rmtree(bundle / FOLDER, ignore_errors=True)
        try:
            signer = _write(bundle, manifest, private, release, signed)
        except BaseException:
            shutil.rmtree(bundle / FOLDER, ignore_errors=True)
            raise
    keep(bundle, release)
    archive = bundle.with_name(f"{bundle.name}.tar.gz")
    if archive.is_file():
        pack(bundle, archive)
    return SignedBundle(bundle, release, signer)


def _present_release(bundle: Path) -> int:
    """The release that the bundle is signed as, whoever has signed it; 0 where it is not."""
    _, _, dsse = libraries()
    try:
        envelope = dsse.Envelope.from_dict(json.loads((bundle / PROVENANCE).read_bytes()))
        content = json.loads(envelope.payload)
        return int(content["predicate"]["buildDefinition"]["externalParameters"]["release"])
    except Exception:  # json's and those of the library, for a statement that is damaged or not there
        return 0


def _write(bundle: Path, manifest: Manifest, private: Any, release: int, signed: Mapping[str, bytes]) -> str:
    """Write trust/ in a bundle that has none; returns the id of the key."""
    _, signers, dsse = libraries()
    for name, content in signed.items():
        atomic_write(bundle / FOLDER / name, content)
    write_verifier(bundle, private.public_key())
    write_sboms(bundle, manifest)
    payload = json.dumps(statement(bundle, manifest, release), sort_keys=True).encode()
    envelope = dsse.Envelope(payload=payload, payload_type=PAYLOAD, signatures={})
    signature = envelope.sign(signers.CryptoSigner(private))
    write_json(bundle / PROVENANCE, envelope.to_dict())
    return str(signature.keyid)
