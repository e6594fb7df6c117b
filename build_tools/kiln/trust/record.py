"""Signatures that a device checks without JSON: one small record for each file that a program may load.

A record has 176 bytes, numbers in little-endian order: "KILNSIG1", the release (64 bits), the model's hash
(32 bytes), the SHA-512 of the file, and the Ed25519 signature of these 112 bytes.
trust/device/kiln_verify.c checks it.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from kiln.files import atomic_write
from kiln.manifest import Manifest
from kiln.trust import FOLDER

MAGIC = b"KILNSIG1"
_DEVICE = Path(__file__).resolve().parent / "device"


def record(content: bytes, model_hash: str, release: int, private: Any) -> bytes:
    """The record of a file's content; `private` is an Ed25519 key of the library cryptography."""
    head = struct.pack("<8sQ32s", MAGIC, release, bytes.fromhex(model_hash))
    signed = head + hashlib.sha512(content).digest()
    return bytes(signed + private.sign(signed))


def signed_files(bundle: Path, model: str) -> list[Path]:
    """The files of a bundle that a program loads at run time: parameters and the shared library."""
    candidates = [bundle / "params.bin", bundle / "lib" / f"lib{model}.so"]
    return [path for path in candidates if path.is_file()]


def records(bundle: Path, manifest: Manifest, private: Any, release: int) -> dict[str, bytes]:
    """The record of each file that a program loads, by the record's name in trust/."""
    return {
        f"{path.name}.sig": record(path.read_bytes(), manifest["model_hash"], release, private)
        for path in signed_files(bundle, manifest["name"])
    }


def write_verifier(bundle: Path, public: Any) -> None:
    """Write the verifier's C source, Monocypher with its licence, and the public key, as a header and PEM."""
    for path in sorted(_DEVICE.iterdir()):
        if path.suffix in (".c", ".h", ".md"):
            atomic_write(bundle / FOLDER / "device" / path.name, path.read_bytes())
    values = ", ".join(f"0x{byte:02x}" for byte in public.public_bytes_raw())
    text = f"/* The public key with which this bundle was signed. */\n#define KILN_PUBLIC_KEY {{{values}}}\n"
    atomic_write(bundle / FOLDER / "device" / "public_key.h", text)
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    atomic_write(bundle / FOLDER / "device" / "public_key.pem", pem)
