"""Names of keys in PKCS#11 tokens: URIs of RFC 7512, such as `pkcs11:token=release;object=kiln`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from kiln.errors import KilnError

SCHEME = "pkcs11:"
MODULE = "KILN_PKCS11_MODULE"  # variable of the environment: the shared library of the token
_OF_TOKEN = ("token", "serial", "manufacturer", "model", "slot-id")
_OF_KEY = ("object", "id", "type")
_QUERY = ("module-path", "pin-source", "pin-value")


@dataclass(frozen=True)
class TokenUri:
    """A URI of a key: how its token and the key are recognised, and where library and PIN are.

    `token`, `key`: attributes by the names of RFC 7512, percent-decoded. `pin_source`: a file, or None.
    """

    given: str
    token: Mapping[str, str]
    key: Mapping[str, bytes]
    module: str
    pin_source: Path | None

    def error(self, text: str) -> KilnError:
        """An error that names the URI."""
        return KilnError(f"key '{self.given}': {text}")


def parse_uri(uri: str) -> TokenUri:
    """Parse a URI; raises KilnError for unknown, empty and repeated attributes, and without a library."""
    path, _, query = uri.removeprefix(SCHEME).partition("?")
    attributes = _pairs(uri, path, ";", (*_OF_TOKEN, *_OF_KEY))
    queries = _pairs(uri, query, "&", _QUERY)
    if "pin-value" in queries:
        raise KilnError(
            f"key '{uri.partition('?')[0]}': pin-value: other users see the PIN in the list of processes; "
            "set KILN_KEY_PASSWORD, or name a file with pin-source"
        )
    if attributes.get("type", "private") not in ("private", "public"):
        raise KilnError(f"key '{uri}': type {attributes['type']}: allowed: private, public")
    slot = attributes.get("slot-id", "0")
    if not (slot.isascii() and slot.isdigit()):
        raise KilnError(f"key '{uri}': slot-id {slot}: a number is expected")
    module = unquote(queries.get("module-path", "")) or os.environ.get(MODULE, "")
    if not module:
        raise KilnError(
            f"key '{uri}': the token's library is missing: ?module-path=FILE.so at the end, or {MODULE}"
        )
    source = queries.get("pin-source")
    return TokenUri(
        uri,
        {name: unquote(value) for name, value in attributes.items() if name in _OF_TOKEN},
        {name: unquote_to_bytes(value) for name, value in attributes.items() if name in ("object", "id")},
        module,
        None if source is None else Path(unquote(source.removeprefix("file://").removeprefix("file:"))),
    )


def _pairs(uri: str, text: str, separator: str, allowed: tuple[str, ...]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for pair in filter(None, text.split(separator)):
        name, _, value = pair.partition("=")
        if name not in allowed:
            raise KilnError(f"key '{uri}': attribute '{name}', allowed: {', '.join(allowed)}")
        if not value or name in attributes:
            raise KilnError(
                f"key '{uri}': attribute '{name}' {'twice' if name in attributes else 'without a value'}"
            )
        attributes[name] = value
    return attributes
