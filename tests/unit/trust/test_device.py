"""The verifier for devices accepts signed files, refuses every kind of change, and needs no library."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from kiln.trust.record import record

SOURCES = Path(__file__).resolve().parents[3] / "build_tools/kiln/trust/device"
KEY, CONTENT, HASH = Ed25519PrivateKey.generate(), bytes(range(256)) * 5, "5a" * 32
RECORD = record(CONTENT, HASH, 7, KEY)
PUBLIC = KEY.public_key().public_bytes_raw()
OK, NULL, NO_RECORD, SIGNATURE, OTHER_MODEL, WRONG_CONTENT, RELEASE = range(7)

Verify = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def verify(tmp_path_factory: pytest.TempPathFactory) -> Verify:
    """kiln_verify, compiled as a program would; returns the status and the release afterwards."""
    out = tmp_path_factory.mktemp("verify") / "verify.so"
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))

    def call(
        content: bytes | None = CONTENT, given: bytes | None = RECORD,
        model: bytes | None = bytes.fromhex(HASH), key: bytes | None = PUBLIC,
        least: int = 0, length: int | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        release = ctypes.c_uint64(least)
        size = len(content or b"") if length is None else length
        status = library.kiln_verify(
            content, ctypes.c_size_t(size), given, ctypes.c_size_t(len(given or b"")), model, key,
            ctypes.byref(release),
        )  # fmt: skip
        return int(status), release.value

    return call


def test_what_is_accepted(verify: Verify) -> None:
    assert verify() == (OK, 7)
    assert verify(least=7) == (OK, 7)
    assert verify(model=None) == (OK, 7)
    assert verify(b"", record(b"", HASH, 2**63 - 1, KEY)) == (OK, 2**63 - 1)
    assert verify(None, record(b"", HASH, 1, KEY)) == (OK, 1)


def test_every_bit_of_the_record(verify: Verify) -> None:
    for index in range(len(RECORD) * 8):
        changed = bytearray(RECORD)
        changed[index // 8] ^= 1 << index % 8
        status, release = verify(given=bytes(changed))
        assert status == (NO_RECORD if index < 64 else SIGNATURE) and release == 0


def test_changed_contents(verify: Verify) -> None:
    for index in (0, 500, len(CONTENT) - 1):
        changed = bytearray(CONTENT)
        changed[index] ^= 0x80
        assert verify(bytes(changed)) == (WRONG_CONTENT, 0)
    assert verify(CONTENT[:-1]) == (WRONG_CONTENT, 0)
    assert verify(CONTENT + b"\0") == (WRONG_CONTENT, 0)


def test_other_keys_models_and_releases(verify: Verify) -> None:
    other_key = Ed25519PrivateKey.generate()
    assert verify(key=other_key.public_key().public_bytes_raw()) == (SIGNATURE, 0)
    assert verify(given=record(CONTENT, HASH, 9, other_key)) == (SIGNATURE, 0)
    assert verify(model=bytes(32)) == (OTHER_MODEL, 0)
    assert verify(least=8) == (RELEASE, 8)
    # All bits of the number count.
    assert verify(given=record(CONTENT, HASH, 1 << 40, KEY), least=7) == (OK, 1 << 40)


def test_arguments(verify: Verify) -> None:
    assert verify(None, length=4) == (NULL, 0)
    assert verify(given=None) == (NULL, 0)
    assert verify(key=None) == (NULL, 0)
    assert verify(given=RECORD[:-1]) == (NO_RECORD, 0)
    assert verify(given=RECORD + b"\0") == (NO_RECORD, 0)


def test_it_needs_no_library(tmp_path: Path) -> None:
    """For a Cortex-M0 without any C library, only compiler functions are undefined."""
    flags = ["--target=thumbv6m-none-eabi", "-ffreestanding", "-nostdlibinc", "-Os", "-std=c99", "-c"]
    defined, undefined = set(), set()
    for source in sorted(SOURCES.glob("*.c")):
        out = tmp_path / f"{source.stem}.o"
        subprocess.run(["clang", *flags, str(source), "-o", str(out)], check=True)
        names = subprocess.run(["nm", str(out)], check=True, capture_output=True, text=True).stdout
        for kind, name in re.findall(r"^\s*[0-9a-f]* +([A-Za-z]) (\w+)$", names, re.MULTILINE):
            (undefined if kind == "U" else defined).add(name)
    compiler = re.compile(r"__aeabi_\w+|mem(cpy|set|move)|__\w+di3")
    assert [name for name in undefined - defined if not compiler.fullmatch(name)] == []
    assert "kiln_verify" in defined


def test_monocypher_is_the_published_one() -> None:
    pin = json.loads((SOURCES / "monocypher.json").read_text())
    found = {name: hashlib.sha256((SOURCES / name).read_bytes()).hexdigest() for name in pin["sha256"]}
    assert found == pin["sha256"] and "monocypher.c" in found and "monocypher-LICENCE.md" in found
