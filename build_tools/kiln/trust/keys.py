"""Ed25519 keys: in PEM, from files or variables of the environment, and in PKCS#11 tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.trust.token_uri import SCHEME, parse_uri

PASSWORD = (
    "KILN_KEY_PASSWORD"  # variable of the environment: the password of an encrypted key, or a token's PIN
)
_ENVIRONMENT = "env:"


def libraries() -> tuple[Any, Any, Any]:
    """The modules serialization (of cryptography), securesystemslib.signer and securesystemslib.dsse.

    Raises KilnError with the command that installs missing ones.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from securesystemslib import dsse, signer
    except ImportError as error:
        raise KilnError(
            f"signatures need the package {(error.name or 'cryptography').split('.')[0]}; install it with: "
            f"{sys.executable} -m pip install cryptography securesystemslib cyclonedx-python-lib"
        ) from None
    return serialization, signer, dsse


@contextmanager
def signing_key(source: str) -> Iterator[Any]:
    """The private key of --key: a PEM file, env:NAME, or a URI pkcs11:…, whose token is open until the end.

    Raises KilnError as `private_key` and `kiln.trust.token_key.token_key` do.
    """
    libraries()
    if not source.startswith(SCHEME):
        yield private_key(source)
        return
    from kiln.trust.token_key import token_key

    with token_key(parse_uri(source), os.environ.get(PASSWORD)) as key:
        yield key


def private_key(source: str) -> Any:
    """The private key of a PEM file (PKCS#8), or of env:NAME, a variable that contains one.

    Raises KilnError for what cannot be read, a wrong password, and a key of another kind than Ed25519.
    """
    serialization, _, _ = libraries()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem, password = _pem(source), os.environ.get(PASSWORD)
    if b"BEGIN PUBLIC KEY" in pem and b"PRIVATE" not in pem:
        raise KilnError(f"key '{source}': a public key; sign with the private one, which only you have")
    try:
        key = serialization.load_pem_private_key(pem, password.encode() if password else None)
    except TypeError:
        why = "it is not encrypted: unset" if password else "it is encrypted: its password is expected in"
        raise KilnError(f"key '{source}': {why} {PASSWORD}") from None
    except Exception:  # cryptography raises ValueError, UnsupportedAlgorithm and its own
        raise KilnError(
            f"key '{source}': no private key in PEM, or a wrong password; openssl genpkey -algorithm ed25519 "
            "makes one"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KilnError(f"key '{source}': {type(key).__name__.lstrip('_')}, an Ed25519 key is expected")
    return key


def public_key(pem: bytes, where: str) -> Any:
    """A public Ed25519 key as securesystemslib's Key; `where` names it in errors.

    A private key is refused, since it has no place where signatures are checked.
    """
    serialization, signer, _ = libraries()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if b"PRIVATE" in pem:
        raise KilnError(f"{where}: a private key; give the public one: openssl pkey -in KEY.pem -pubout")
    try:
        key = serialization.load_pem_public_key(pem)
    except Exception:  # as above
        fault = (
            "a damaged public key"
            if b"BEGIN PUBLIC KEY" in pem
            else "no public key in PEM (BEGIN PUBLIC KEY)"
        )
        raise KilnError(f"{where}: {fault}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KilnError(f"{where}: {type(key).__name__.lstrip('_')}, an Ed25519 key is expected")
    return signer.SSlibKey.from_crypto(key)


def public_key_of(source: str) -> Any:
    """The public key of --key: a PEM file, env:NAME, a variable that contains one, or a URI pkcs11:…"""
    if source.startswith(SCHEME):
        _, signer, _ = libraries()
        from kiln.trust.token_key import token_public_key

        return signer.SSlibKey.from_crypto(token_public_key(parse_uri(source)))
    return public_key(_pem(source), f"key '{source}'")


def _pem(source: str) -> bytes:
    if source.startswith(_ENVIRONMENT):
        name = source.removeprefix(_ENVIRONMENT)
        text = os.environ.get(name)
        if not text:
            raise KilnError(f"key '{source}': the variable {name} is not set")
        return text.encode()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise KilnError(
            f"key '{source}': {error.strerror}; a PEM file, env:NAME or pkcs11:… is expected"
        ) from None
