"""Debian's packages: files are unpacked, checked and kept; an error is one line."""

from __future__ import annotations

import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from kiln.byoc.backend import Deb
from kiln.byoc.libraries import debian
from kiln.errors import KilnError

PATH = "pool/main/x/x/libx0_1.2-3_amd64.deb"
FILES = {"usr/lib/libx.so.0": b"\x7fELF x", "usr/share/doc/libx0/copyright": b"free\n"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def deb(**changed: str) -> Deb:
    names = {"usr/lib/libx.so.0": "lib/libx.so.0", "usr/share/doc/libx0/copyright": "licence.txt"}
    return Deb(
        PATH, {path: (name, changed.get(name, sha(FILES[path]))) for path, name in names.items()}, "MIT"
    )


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive with one package, and an empty cache."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mirror" / PATH
    folder.parent.mkdir(parents=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, content in FILES.items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    (tmp_path / "debian-binary").write_bytes(b"2.0\n")
    (tmp_path / "data.tar.xz").write_bytes(lzma.compress(data.getvalue()))
    command = [sys.executable, "-m", "ziglang", "ar", "rc", str(folder), "debian-binary", "data.tar.xz"]
    subprocess.run(command, check=True, cwd=tmp_path)
    return f"file://{tmp_path}/mirror/"


def test_files_are_taken_out_and_kept(mirror: str, tmp_path: Path) -> None:
    debian.fetch(deb(), tmp_path / "one", ["file:///nowhere/", mirror])
    assert (tmp_path / "one" / "lib" / "libx.so.0").read_bytes() == FILES["usr/lib/libx.so.0"]
    # A second time without any archive; a second licence goes after the first.
    debian.fetch(deb(), tmp_path / "two", [])
    debian.fetch(
        Deb(PATH, {"usr/share/doc/libx0/copyright": ("licence.txt", sha(b"free\n"))}), tmp_path / "two", []
    )
    assert (tmp_path / "two" / "licence.txt").read_bytes() == b"free\n\nfree\n"
    assert deb().version == "libx0 1.2-3"


def test_what_is_wrong_is_one_line(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"libx0_1.2-3_amd64.deb: cannot download .* file:///nowhere/: "):
        debian.fetch(deb(), tmp_path / "out", ["file:///nowhere/"])
    with pytest.raises(
        KilnError, match=rf"usr/lib/libx.so.0: SHA-256 is {sha(FILES['usr/lib/libx.so.0'])}, expected 0"
    ):
        debian.fetch(deb(**{"lib/libx.so.0": "0" * 64}), tmp_path / "out", [mirror])
    absent = Deb(PATH, {"usr/lib/liby.so": ("lib/liby.so", sha(b""))})
    with pytest.raises(KilnError, match=r"no file 'usr/lib/liby.so' in it"):
        debian.fetch(absent, tmp_path / "out", [mirror])
    (tmp_path / "mirror" / PATH).write_bytes(b"<html>")
    with pytest.raises(KilnError, match="cannot be read as a package of Debian"):
        debian.fetch(absent, tmp_path / "out", [mirror])
