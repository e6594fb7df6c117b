"""Keys in a PKCS#11 token, SoftHSM's: a bundle signed with one, and everything that can be wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from kiln import packages
from kiln.command_line import __main__ as command_line
from kiln.errors import KilnError
from kiln.trust.keys import PASSWORD, public_key, public_key_of
from kiln.trust.sign import sign
from kiln.trust.token_uri import MODULE
from kiln.trust.verify import verify

from .bundles import bundle

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        shutil.which("softhsm2-util") is None, reason=packages.missing_program("softhsm2-util")
    ),
]

PIN = "135790"
URI = "pkcs11:token=release;object=kiln"


def library() -> str:
    """SoftHSM's library."""
    return str(next(Path("/usr").glob("lib*/**/softhsm/libsofthsm2.so")))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration file of SoftHSM with two tokens, `release` with keys and `other` without."""
    folder = tmp_path_factory.mktemp("tokens")
    configuration = folder / "softhsm2.conf"
    (folder / "store").mkdir()
    configuration.write_text(f"directories.tokendir = {folder / 'store'}\nobjectstore.backend = file\n")
    script = f"""
import pkcs11, subprocess
for label in ("release", "other"):
    pins = ["--pin", {PIN!r}, "--so-pin", "0000"]
    subprocess.run(["softhsm2-util", "--init-token", "--free", "--label", label, *pins], check=True)
library = pkcs11.lib({library()!r})
with library.get_token(token_label="release").open(rw=True, user_pin={PIN!r}) as session:
    def ed25519(label, key_id):
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC_EDWARDS, {{pkcs11.Attribute.EC_PARAMS: b"\\x13\\x0cedwards25519"}}, local=True)
        return parameters.generate_keypair(
            mechanism=pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN, label=label, id=key_id, store=True)
    ed25519("kiln", b"\\1")
    ed25519("second", b"\\2")
    public, _ = ed25519("lonely", b"\\3")
    public.destroy()
    ed25519("mixed", b"\\4")[0].destroy()
    ed25519("mixed", b"\\4")[1].destroy()
    session.generate_keypair(pkcs11.KeyType.RSA, 2048, label="rsa", id=b"\\5", store=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"SOFTHSM2_CONF": str(configuration), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return configuration


@pytest.fixture(autouse=True)
def _environment(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTHSM2_CONF", str(tokens))
    monkeypatch.setenv(MODULE, library())
    monkeypatch.setenv(PASSWORD, PIN)


def test_a_bundle_signed_by_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundle(tmp_path / "tiny")
    done = sign(folder, URI, 3)
    monkeypatch.delenv(PASSWORD)  # public keys are read without a PIN
    assert verify(folder, [public_key_of(URI)], least=3).key == done.key
    pem = (folder / "trust/device/public_key.pem").read_bytes()
    assert verify(folder, [public_key(pem, "the bundle's")]).release == 3
    record = (folder / "trust/params.bin.sig").read_bytes()
    load_pem_public_key(pem).verify(record[112:], record[:112])  # type: ignore[union-attr, call-arg, arg-type]
    with pytest.raises(KilnError, match="or of another key"):
        verify(folder, [public_key_of("pkcs11:token=release;object=second")])


def test_the_pin_of_a_file_and_a_key_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD)
    (tmp_path / "pin").write_text(f"{PIN}\n")
    folder = bundle(tmp_path / "tiny")
    key = f"pkcs11:token=release;id=%02?module-path={library()}&pin-source=file:{tmp_path / 'pin'}"
    assert command_line.main(["sign", str(folder), "--key", key, "--release", "1", "--json"]) == 0
    assert verify(folder, [public_key_of("pkcs11:token=release;object=second")]).release == 1


@pytest.mark.parametrize(
    ("key", "pin", "message"),
    [
        (URI, "0001", "the PIN of token 'release' is wrong"),
        (URI, "1", "the PIN of token 'release' is wrong"),
        (
            URI,
            None,
            "the PIN of token 'release' is expected in KILN_KEY_PASSWORD, or in a file: ?pin-source=FILE",
        ),
        (URI + "?pin-source=/none/pin", PIN, "pin-source /none/pin: No such file or directory"),
        ("pkcs11:token=gone;object=kiln", PIN, "no such token; present: "),
        ("pkcs11:object=kiln", PIN, "2 tokens match, one is expected: name it with token= or serial="),
        ("pkcs11:token=release;object=gone", PIN, "the token has no such private key; it has: "),
        ("pkcs11:token=release", PIN, "5 private keys match, one is expected: name it with object= or id="),
        ("pkcs11:token=release;object=rsa", PIN, "key 'rsa' is RSA, an Ed25519 key is expected"),
        (
            "pkcs11:token=release;object=lonely",
            PIN,
            "no public key with the id or label of the private key 'lonely'",
        ),
        (
            "pkcs11:token=release;object=mixed",
            PIN,
            "the token's public key does not belong to the private one",
        ),
        (URI + "?module-path=/none/lib.so", PIN, "module-path /none/lib.so: no such file"),
        (URI + "?module-path=/etc/passwd", PIN, "module-path /etc/passwd: no library of PKCS#11"),
        (URI + "?module-path=libc.so.6", PIN, "module-path libc.so.6: no library of PKCS#11"),
    ],
)
def test_what_is_wrong(
    key: str, pin: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and the bundle stays as it was."""
    if pin is None:
        monkeypatch.delenv(PASSWORD)
    else:
        monkeypatch.setenv(PASSWORD, pin)
    folder = bundle(tmp_path / "tiny")
    with pytest.raises(KilnError) as raised:
        sign(folder, key, 3)
    assert message in str(raised.value)
    assert not (folder / "trust").exists()


def test_a_token_that_fails_half_way_leaves_no_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kiln.trust.token_key import TokenKey

    folder, count = bundle(tmp_path / "tiny"), iter(range(9))
    sign(folder, URI, 3)
    whole = TokenKey.sign

    def fails(self: TokenKey, data: bytes) -> bytes:
        if next(count) == 2:
            raise KilnError("the token was pulled out")
        return whole(self, data)

    monkeypatch.setattr(TokenKey, "sign", fails)
    with pytest.raises(KilnError, match="pulled out"):
        sign(folder, URI, 4)
    assert not (folder / "trust").exists()


def test_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    command = ["sign", str(bundle(tmp_path / "tiny")), "--key", URI, "--release", "1", "--json"]
    assert command_line.main(command) == 2
    message = json.loads(capsys.readouterr().out)["error"]["text"]
    assert "keys in tokens need the package python-pkcs11; install it with: " in message
