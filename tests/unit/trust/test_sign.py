"""Signed bundles: what verifies, and every way of changing one."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kiln.command_line import __main__ as command_line
from kiln.errors import KilnError
from kiln.trust import PROVENANCE
from kiln.trust.keys import PASSWORD, private_key, public_key, public_key_of
from kiln.trust.release import kept_in
from kiln.trust.sign import sign
from kiln.trust.statement import statement
from kiln.trust.verify import verify

from .bundles import bundle, keys


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A bundle signed as release 5, and the paths of its keys."""
    folder = tmp_path_factory.mktemp("signed")
    private, public = keys(folder, "one")
    sign(bundle(folder / "tiny"), private, 5)
    return folder / "tiny", private, public


@pytest.fixture
def copy(signed: tuple[Path, str, str], tmp_path: Path) -> Path:
    return shutil.copytree(signed[0], tmp_path / "tiny")


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_signed_bundle(signed: tuple[Path, str, str]) -> None:
    folder, _, public = signed
    findings = verify(folder, [public_key_of(public)], least=5)
    assert (findings.model, findings.target, findings.release) == ("tiny", "board", 5)
    assert findings.files == len(files(folder)) - 1
    assert {"trust/sbom.cdx.json", "trust/params.bin.sig", "trust/libtiny.so.sig"} <= set(files(folder))


def test_equal_bundles_have_equal_signatures(signed: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, private, _ = signed
    again = bundle(tmp_path / "tiny")
    sign(again, private, 5)
    assert files(again) == files(folder)
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in files(folder))


def test_a_flipped_bit_of_any_file(signed: tuple[Path, str, str], copy: Path) -> None:
    """The first, a middle and the last byte of each file of the bundle, the signature itself included."""
    key = [public_key_of(signed[2])]
    for name in files(copy):
        path = copy / name
        content = path.read_bytes()
        for index in {0, len(content) // 2, len(content) - 1}:
            changed = bytearray(content)
            changed[index] ^= 1
            path.write_bytes(changed)
            if name == PROVENANCE and json_of(changed) == json_of(content):
                continue  # white space, or the name of a key that nothing was signed with
            with pytest.raises(KilnError) as raised:
                verify(copy, key)
            assert name in str(raised.value)
        path.write_bytes(content)
    verify(copy, key)


def json_of(content: bytes | bytearray) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return content


def test_every_character_of_the_payload_and_the_signature(signed: tuple[Path, str, str], copy: Path) -> None:
    path, key = copy / PROVENANCE, [public_key_of(signed[2])]
    content = json.loads(path.read_bytes())
    payload, signature = base64.b64decode(content["payload"]), content["signatures"][0]["sig"]
    for index in range(0, len(payload), 97):
        changed = bytearray(payload)
        changed[index] ^= 1
        path.write_text(json.dumps({**content, "payload": base64.b64encode(changed).decode()}))
        with pytest.raises(KilnError, match="signature is wrong"):
            verify(copy, key)
    raw = base64.b64decode(signature)
    for index in range(len(raw)):
        broken = bytearray(raw)
        broken[index] ^= 0x10
        entry = {**content["signatures"][0], "sig": base64.b64encode(broken).decode()}
        path.write_text(json.dumps({**content, "signatures": [entry]}))
        with pytest.raises(KilnError, match="signature is wrong"):
            verify(copy, key)


def removed(folder: Path) -> None:
    (folder / "include/tiny.h").unlink()


def added(folder: Path) -> None:
    (folder / "lib/libc.so").write_bytes(b"more")


def linked(folder: Path) -> None:
    content = (folder / "params.bin").read_bytes()
    (folder.parent / "outside").write_bytes(content)
    (folder / "params.bin").unlink()
    (folder / "params.bin").symlink_to(folder.parent / "outside")


def piped(folder: Path) -> None:
    os.mkfifo(folder / "lib/pipe")


def piped_statement(folder: Path) -> None:
    (folder / PROVENANCE).unlink()
    os.mkfifo(folder / PROVENANCE)


def swapped(folder: Path) -> None:
    one, two = folder / "params.bin", folder / "include/tiny.h"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def unsigned(folder: Path) -> None:
    (folder / PROVENANCE).unlink()


def no_signatures(folder: Path) -> None:
    content = json.loads((folder / PROVENANCE).read_bytes())
    (folder / PROVENANCE).write_text(json.dumps({**content, "signatures": []}))


def other_release(folder: Path) -> None:
    content = json.loads((folder / PROVENANCE).read_bytes())
    payload = json.loads(base64.b64decode(content["payload"]))
    payload["predicate"]["buildDefinition"]["externalParameters"]["release"] = 6
    text = base64.b64encode(json.dumps(payload).encode()).decode()
    (folder / PROVENANCE).write_text(json.dumps({**content, "payload": text}))


def empty(folder: Path) -> None:
    (folder / PROVENANCE).write_text("[]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed, "tiny.h: missing; the signed bundle has it"),
        (added, "libc.so: not part of the signed bundle"),
        (linked, "params.bin: a symbolic link"),
        (piped, "lib/pipe: neither a file nor a folder"),
        (piped_statement, "provenance.dsse.json: not a file"),
        (swapped, "changed since the bundle was signed"),
        (unsigned, "not signed: it has no"),
        (no_signatures, "signature is wrong"),
        (other_release, "signature is wrong"),
        (empty, "damaged: not a DSSE envelope"),
    ],
)
def test_changes(
    change: Callable[[Path], None], message: str, signed: tuple[Path, str, str], copy: Path
) -> None:
    change(copy)
    with pytest.raises(KilnError, match=message):
        verify(copy, [public_key_of(signed[2])])


def test_another_key_and_an_older_release(signed: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, _, public = signed
    _, other_key = keys(tmp_path, "other")
    with pytest.raises(KilnError, match="signature is wrong, or of another key"):
        verify(folder, [public_key_of(other_key)])
    assert verify(folder, [public_key_of(other_key), public_key_of(public)]).release == 5
    with pytest.raises(KilnError, match="release 5, at least 6 is required: an older bundle"):
        verify(folder, [public_key_of(public)], least=6)


def test_a_release_never_falls(tmp_path: Path) -> None:
    """Neither over the signed bundle, nor after a new build of it, nor with another key; it may stay."""
    private, _ = keys(tmp_path, "one")
    other_key, _ = keys(tmp_path, "other")
    folder = bundle(tmp_path / "tiny")
    sign(folder, private, 5)
    sign(folder, private, 5)
    for again in (False, True):
        if again:
            shutil.rmtree(folder)
            bundle(folder)
        before = {name: (folder / name).read_bytes() for name in files(folder)}
        for key in (private, other_key):
            with pytest.raises(KilnError) as raised:
                sign(folder, key, 4)
            assert str(raised.value).startswith(
                f"release 4: {folder} was signed as release 5, and a device that has had it refuses lower "
                f"ones; allowed: 5 or more (if none has: remove {folder}.release.json"
            )
            assert str(raised.value).endswith(f" and remove {folder}/trust)") != again
        assert {name: (folder / name).read_bytes() for name in files(folder)} == before
    sign(folder, private, 6)
    kept_in(folder).unlink()  # the signature itself still says it
    with pytest.raises(
        KilnError, match=rf"was signed as release 6, .* \(if none has: remove {folder}/trust\)$"
    ):
        sign(folder, private, 5)
    kept_in(folder).write_text("{}")
    with pytest.raises(KilnError, match=r"tiny.release.json: damaged: it has no number 'release'"):
        sign(folder, private, 7)


def test_a_signed_statement_of_something_else(signed: tuple[Path, str, str], copy: Path) -> None:
    """A statement about other software, signed with the same key, is refused."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    signer, key = CryptoSigner(private_key(signed[1])), [public_key_of(signed[2])]
    whole = statement(copy, json.loads((copy / "manifest.json").read_text()), 5)
    kind = "application/vnd.in-toto+json"
    for payload, of in (
        (json.dumps({**whole, "predicateType": "x"}).encode(), kind),
        (json.dumps({"_type": "x"}).encode(), kind),
        (b"7", kind),
        (json.dumps(whole).encode(), "text/plain"),
    ):
        envelope = Envelope(payload=payload, payload_type=of, signatures={})
        envelope.sign(signer)
        (copy / PROVENANCE).write_text(json.dumps(envelope.to_dict()))
        with pytest.raises(KilnError, match=r"not the statement of a bundle|about something else"):
            verify(copy, key)


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, public = keys(tmp_path, "plain")
    locked, _ = keys(tmp_path, "locked", b"secret")
    monkeypatch.setenv("MY_KEY", Path(plain).read_text())
    assert private_key("env:MY_KEY").private_bytes_raw() == private_key(plain).private_bytes_raw()
    monkeypatch.setenv(PASSWORD, "secret")
    private_key(locked)
    for given, message in (
        (plain, "it is not encrypted: unset KILN_KEY_PASSWORD"),
        ("env:NOT_SET", "the variable NOT_SET is not set"),
        (
            str(tmp_path / "none.pem"),
            "No such file or directory; a PEM file, env:NAME or pkcs11:… is expected",
        ),
        (public, "a public key; sign with the private one"),
    ):
        with pytest.raises(KilnError) as raised:
            private_key(given)
        assert message in str(raised.value)
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(KilnError, match="or a wrong password"):
        private_key(locked)
    monkeypatch.delenv(PASSWORD)
    with pytest.raises(KilnError, match="it is encrypted: its password is expected in KILN_KEY_PASSWORD"):
        private_key(locked)
    with pytest.raises(KilnError, match="a private key; give the public one"):
        public_key_of(plain)
    with pytest.raises(KilnError, match="no public key in PEM"):
        public_key(b"x", "key")
    with pytest.raises(KilnError, match="key: a damaged public key"):
        public_key(b"-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----\n", "key")


def test_a_missing_library_changes_nothing(
    signed: tuple[Path, str, str], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (copy / name).read_bytes() for name in files(copy)}
    for module in ("cyclonedx.model", "cryptography.hazmat.primitives"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(KilnError, match=r"needs? the package .*; install it with"):
                sign(copy, signed[1], 6)
    assert {name: (copy / name).read_bytes() for name in files(copy)} == before


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, (private, public) = bundle(tmp_path / "tiny"), keys(tmp_path, "one")
    assert command_line.main(["sign", str(folder), "--key", private, "--release", "2"]) == 0
    assert command_line.main(["verify", str(folder), "--key", public]) == 0
    assert "release 2" in capsys.readouterr().out.splitlines()[-1]
    (folder / "params.bin").write_bytes(b"other")
    assert command_line.main(["verify", str(folder), "--key", public, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "signature"
    assert command_line.main(["sign", str(tmp_path), "--key", private, "--release", "2"]) == 2
    assert "not a bundle: no manifest.json" in capsys.readouterr().err
    assert command_line.main(["sign", str(folder), "--key", private, "--release", "-1"]) == 2
    assert "release -1: allowed 0.." in capsys.readouterr().err
