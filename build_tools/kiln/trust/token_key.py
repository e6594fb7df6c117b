"""Ed25519 keys that stay in a PKCS#11 token: a smart card, a USB token, an HSM or SoftHSM.

Uses python-pkcs11. The signature is computed by the token; only the public key leaves it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kiln.errors import KilnError
from kiln.trust.token_uri import TokenUri

_POINT = 32  # bytes of an Ed25519 public key


class TokenKey(Ed25519PrivateKey):  # type: ignore[misc]
    """A private key in a token, with the interface of the library cryptography.

    Signatures are checked with the public key, so that two objects of a token that do not belong together are
    noticed. The key's value cannot be read.
    """

    def __init__(self, uri: TokenUri, key: Any, public: Ed25519PublicKey) -> None:
        self._uri, self._key, self._public = uri, key, public

    def public_key(self) -> Ed25519PublicKey:
        """The public key."""
        return self._public

    def sign(self, data: Any) -> bytes:
        """The signature of `data`, 64 bytes. Raises KilnError where the token refuses."""
        import pkcs11

        try:
            signature = bytes(self._key.sign(bytes(data), mechanism=pkcs11.Mechanism.EDDSA))
        except pkcs11.PKCS11Error as error:
            raise self._uri.error(f"the token does not sign: {_reason(error)}") from None
        try:
            self._public.verify(signature, bytes(data))
        except InvalidSignature:
            raise self._uri.error(
                "the token's public key does not belong to the private one; give both the same id"
            ) from None
        return signature

    def private_bytes(self, encoding: Any, format: Any, encryption_algorithm: Any) -> bytes:  # noqa: A002
        """Refused: the key stays in the token."""
        raise self._uri.error("the private key stays in the token")

    def private_bytes_raw(self) -> bytes:
        """Refused: the key stays in the token."""
        raise self._uri.error("the private key stays in the token")

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: Any) -> TokenKey:
        return self


@contextmanager
def token_key(uri: TokenUri, pin: str | None) -> Iterator[TokenKey]:
    """The private key of a URI, until the session with the token ends.

    `pin`: the token's user PIN, unless the URI names a file with it. Raises KilnError for a library that
    cannot be loaded, a token or key that is missing or not the only one, a wrong PIN, and a key that
    is not Ed25519.
    """
    with _session(uri, pin, login=True) as session:
        import pkcs11

        private = _one_key(uri, session, pkcs11.ObjectClass.PRIVATE_KEY)
        yield TokenKey(uri, private, _public_of(uri, session, private))


def token_public_key(uri: TokenUri) -> Ed25519PublicKey:
    """The public key of a URI; needs no PIN. Raises KilnError as `token_key` does."""
    with _session(uri, None, login=False) as session:
        import pkcs11

        return _point(uri, _one_key(uri, session, pkcs11.ObjectClass.PUBLIC_KEY))


@contextmanager
def _session(uri: TokenUri, pin: str | None, login: bool) -> Iterator[Any]:
    try:
        import pkcs11
    except ImportError:
        raise KilnError(
            f"keys in tokens need the package python-pkcs11; install it with: "
            f"{sys.executable} -m pip install python-pkcs11"
        ) from None
    token = _token(uri, _library(uri))
    try:
        session = token.open(user_pin=_pin(uri, token, pin)) if login else token.open()
    except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange):
        raise uri.error(f"the PIN of token '{token.label}' is wrong") from None
    except pkcs11.PinLocked:
        raise uri.error(f"the PIN of token '{token.label}' is locked, after too many wrong ones") from None
    except pkcs11.PKCS11Error as error:
        raise uri.error(f"token '{token.label}' cannot be opened: {_reason(error)}") from None
    with session:
        yield session


def _library(uri: TokenUri) -> Any:
    import pkcs11

    if os.sep in uri.module and not Path(uri.module).is_file():
        raise uri.error(f"module-path {uri.module}: no such file")
    try:
        return pkcs11.lib(uri.module)
    except pkcs11.PKCS11Error as error:
        # The loader's text; errors of PKCS#11 have classes of their own.
        if type(error) is pkcs11.PKCS11Error:
            raise uri.error(f"module-path {uri.module}: no library of PKCS#11: {error}") from None
        raise uri.error(f"the library {uri.module} cannot be initialised: {_reason(error)}") from None


def _token(uri: TokenUri, library: Any) -> Any:
    import pkcs11

    try:
        present = list(library.get_tokens(token_flags=pkcs11.TokenFlag.TOKEN_INITIALIZED))
    except pkcs11.PKCS11Error as error:
        raise uri.error(f"the library lists no tokens: {_reason(error)}") from None
    matching = [
        token
        for token in present
        if all(_described(token)[name] == value for name, value in uri.token.items())
    ]
    labels = ", ".join(f"'{token.label}'" for token in present) or "none"
    if not matching:
        raise uri.error(f"no such token; present: {labels}")
    if len(matching) > 1:
        raise uri.error(
            f"{len(matching)} tokens match, one is expected: name it with token= or serial=; "
            f"present: {labels}"
        )
    return matching[0]


def _described(token: Any) -> dict[str, str]:
    serial = token.serial
    return {
        "token": token.label,
        "serial": serial.decode(errors="replace").strip() if isinstance(serial, bytes) else str(serial),
        "manufacturer": token.manufacturer_id,
        "model": token.model,
        "slot-id": str(token.slot.slot_id),
    }


def _pin(uri: TokenUri, token: Any, pin: str | None) -> Any:
    """The login of the token: a PIN, the token's key pad, or None if it needs no login."""
    import pkcs11

    if uri.pin_source is not None:
        try:
            return uri.pin_source.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, ValueError) as error:
            raise uri.error(
                f"pin-source {uri.pin_source}: {getattr(error, 'strerror', None) or 'no text'}"
            ) from None
    if pin:
        return pin
    if pkcs11.TokenFlag.PROTECTED_AUTHENTICATION_PATH in token.flags:
        return pkcs11.PROTECTED_AUTH
    if pkcs11.TokenFlag.LOGIN_REQUIRED not in token.flags:
        return None
    raise uri.error(
        f"the PIN of token '{token.label}' is expected in KILN_KEY_PASSWORD, or in a file: ?pin-source=FILE"
    )


def _one_key(uri: TokenUri, session: Any, kind: Any) -> Any:
    """The only key of a class (private or public) that the URI names."""
    import pkcs11

    names = {"object": pkcs11.Attribute.LABEL, "id": pkcs11.Attribute.ID}
    wanted = {names[n]: v.decode(errors="replace") if n == "object" else v for n, v in uri.key.items()}
    present = list(session.get_objects({pkcs11.Attribute.CLASS: kind}))
    keys = list(session.get_objects({pkcs11.Attribute.CLASS: kind, **wanted}))
    kind_name = "private" if kind == pkcs11.ObjectClass.PRIVATE_KEY else "public"
    labels = ", ".join(f"'{key.label}'" for key in present) or "none"
    if not keys:
        raise uri.error(f"the token has no such {kind_name} key; it has: {labels}")
    if len(keys) > 1:
        raise uri.error(
            f"{len(keys)} {kind_name} keys match, one is expected: name it with object= or id=; "
            f"it has: {labels}"
        )
    if keys[0].key_type != pkcs11.KeyType.EC_EDWARDS:
        raise uri.error(f"key '{keys[0].label}' is {keys[0].key_type.name}, an Ed25519 key is expected")
    return keys[0]


def _public_of(uri: TokenUri, session: Any, private: Any) -> Ed25519PublicKey:
    """The public key that belongs to a private one: of the same id, else of the same label."""
    import pkcs11

    for name in (pkcs11.Attribute.ID, pkcs11.Attribute.LABEL):
        if not private[name]:
            continue
        wanted = {pkcs11.Attribute.CLASS: pkcs11.ObjectClass.PUBLIC_KEY, name: private[name]}
        keys = [key for key in session.get_objects(wanted) if key.key_type == pkcs11.KeyType.EC_EDWARDS]
        if len(keys) == 1:
            return _point(uri, keys[0])
    raise uri.error(f"the token has no public key with the id or label of the private key '{private.label}'")


def _point(uri: TokenUri, key: Any) -> Ed25519PublicKey:
    """The value of a public key; tokens store it as it is or, as PKCS#11 says, in DER."""
    import pkcs11

    value = bytes(key[pkcs11.Attribute.EC_POINT])
    if value[:2] in (b"\x04\x20", b"\x03\x21") and len(value) in (_POINT + 2, _POINT + 3):
        value = value[-_POINT:]
    if len(value) != _POINT:
        raise uri.error(f"the public key '{key.label}' has {len(value)} bytes, an Ed25519 key is expected")
    return Ed25519PublicKey.from_public_bytes(value)


def _reason(error: Exception) -> str:
    """The name of an error of PKCS#11, with its text if there is one."""
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name
