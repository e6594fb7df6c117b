"""A small folder with the form of a bundle, and keys."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from kiln.emit.bundle import list_files

HASH = "ab" * 32


def keys(folder: Path, name: str, password: bytes | None = None) -> tuple[str, str]:
    """Write a new pair of keys; returns the paths of the private and of the public one."""
    key = Ed25519PrivateKey.generate()
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}.pem").write_bytes(key.private_bytes(pem, form, encryption))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return str(folder / f"{name}.pem"), str(folder / f"{name}.pub")


def bundle(folder: Path) -> Path:
    """Write a folder with files and the manifest of a bundle."""
    for name in ("params.bin", "lib/libtiny.so", "include/tiny.h", "golden/golden.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"the content of {name}".encode() * 3)
    library = {"name": "OpenBLAS", "version": "0.3", "licence": "BSD-3-Clause", "backend": "openblas"}
    manifest = {
        "name": "tiny", "licence": "MIT (the authors)", "model_hash": HASH, "source_sha256": "cd" * 32,
        "threads": "none", "precision": {"name": "fp32"}, "libraries": [library],
        "target": {"name": "board", "triple": "thumbv7em-none-eabi", "cpu": "cortex-m4", "features": []},
        "params": {"bytes": 12, "storage": "file"}, "tools": {"kiln": "0.1.0", "ziglang": "0.17.0"},
        "files": list_files(folder),
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
