"""Sign an image, and verify it: the record after its bytes, which kiln_verify checks on the device."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.emit.image_file import MOST_VERSION, RECORD_BYTES, image_bytes, read_header
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.trust.keys import libraries, signing_key
from kiln.trust.record import MAGIC, record
from kiln.trust.release import check, keep

_SIGNED = 112  # bytes of a record before its signature


@dataclass(frozen=True)
class SignedImage:
    """A signed image: its model's name, its version, and the id of the key."""

    model: str
    release: int
    key: str


def sign_image(path: Path, key: str, version: int) -> SignedImage:
    """Give the image in the file `path` a version, and sign it with the private key `key`, in place.

    Raises KilnError, and changes nothing, for a file that is not an image and for a version below an earlier
    one.
    """
    if not 0 <= version <= MOST_VERSION:
        raise KilnError(f"release {version}: allowed 0..{MOST_VERSION}")
    _, signers, _ = libraries()
    content = _read(path)
    header = read_header(content, str(path))
    body = content[len(header.encode()) : header.bytes_count]
    check(path, version, header.version)
    header = replace(header, version=version)
    unsigned = image_bytes(header, body)[: header.bytes_count]
    with signing_key(key) as private:
        signed = unsigned + record(unsigned, header.model_hash.hex(), version, private)
        public = str(signers.SSlibKey.from_crypto(private.public_key()).keyid)
    atomic_write(path, signed)
    keep(path, version)
    return SignedImage(header.name, version, public)


def verify_image(path: Path, keys: Sequence[Any], least: int = 0) -> SignedImage:
    """Verify the image in the file `path` with public keys (see `public_key_of`).

    Raises KilnError for a missing or wrong signature, a damaged image, and a version below `least`.
    """
    _, signers, _ = libraries()
    content = _read(path)
    header = read_header(content, str(path))
    record_bytes = content[header.bytes_count :]
    if record_bytes == bytes(RECORD_BYTES):
        raise KilnError(f"{path}: not signed; kiln sign signs it")
    for key in keys:
        try:
            key.verify_signature(
                signers.Signature(key.keyid, record_bytes[_SIGNED:].hex()), record_bytes[:_SIGNED]
            )
        except Exception:  # UnverifiedSignatureError, and others for a signature that is none
            continue
        head = struct.pack("<8sQ32s", MAGIC, header.version, header.model_hash)
        if record_bytes[:_SIGNED] != head + hashlib.sha512(content[: header.bytes_count]).digest():
            raise KilnError(f"{path}: changed since it was signed")
        if header.version < least:
            raise KilnError(f"{path}: version {header.version}, at least {least} is required: an older image")
        return SignedImage(header.name, header.version, str(key.keyid))
    raise KilnError(f"{path}: the signature is wrong, or of another key")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
