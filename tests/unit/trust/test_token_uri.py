"""URIs of keys in PKCS#11 tokens: their attributes, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.trust.token_uri import MODULE, parse_uri

LIBRARY = "?module-path=/usr/lib/x.so"


@pytest.fixture(autouse=True)
def _no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODULE, raising=False)


def test_a_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = parse_uri(
        "pkcs11:token=My%20token;object=a%3Bb;id=%01%ff?module-path=/x/y.so&pin-source=file:/p%20q"
    )
    assert uri.token == {"token": "My token"}
    assert uri.key == {"object": b"a;b", "id": b"\x01\xff"}
    assert (uri.module, uri.pin_source) == ("/x/y.so", Path("/p q"))
    monkeypatch.setenv(MODULE, "/from/environment.so")
    assert parse_uri("pkcs11:").module == "/from/environment.so"
    assert parse_uri("pkcs11:type=private" + LIBRARY).module == "/usr/lib/x.so"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "pkcs11:token=a",
            "the token's library is missing: ?module-path=FILE.so at the end, or KILN_PKCS11_MODULE",
        ),
        (
            "pkcs11:label=a" + LIBRARY,
            "attribute 'label', allowed: token, serial, manufacturer, model, slot-id",
        ),
        ("pkcs11:token=a;token=b" + LIBRARY, "attribute 'token' twice"),
        ("pkcs11:token=" + LIBRARY, "attribute 'token' without a value"),
        ("pkcs11:slot-id=x" + LIBRARY, "slot-id x: a number is expected"),
        ("pkcs11:type=cert" + LIBRARY, "type cert: allowed: private, public"),
        (
            "pkcs11:" + LIBRARY + "&library=x",
            "attribute 'library', allowed: module-path, pin-source, pin-value",
        ),
    ],
)
def test_refused(given: str, message: str) -> None:
    with pytest.raises(KilnError) as raised:
        parse_uri(given)
    assert message in str(raised.value)


def test_a_pin_on_the_command_line_is_refused_and_not_repeated() -> None:
    with pytest.raises(KilnError, match="pin-value: other users see the PIN") as raised:
        parse_uri("pkcs11:token=a" + LIBRARY + "&pin-value=4711")
    assert "4711" not in str(raised.value)
