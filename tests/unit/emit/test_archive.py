"""Archives of bundles: packed files come back, and nothing is written outside of the folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from kiln.emit.bundle import pack, unpack
from kiln.errors import KilnError


def test_what_is_packed_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libnet.a").write_bytes(bytes(range(256)) * 9)
    (folder / "empty").mkdir()
    pack(folder, tmp_path / "net.tar.gz")
    unpack(tmp_path / "net.tar.gz", tmp_path / "out")
    assert (tmp_path / "out/net/lib/libnet.a").read_bytes() == bytes(range(256)) * 9
    assert (tmp_path / "out/net/empty").is_dir()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../x", tarfile.REGTYPE), ("/tmp/x", tarfile.REGTYPE), ("net/x", tarfile.SYMTYPE), ("net/y", b"1")],
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.addfile(entry, io.BytesIO())
    with pytest.raises(KilnError, match="allowed: files and folders below one folder"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert not (tmp_path / "x").exists() and not list((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00 damaged"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(KilnError, match=r"a\.tar\.gz: not an archive of a bundle"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_half_an_archive(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "a").write_bytes(bytes(i * i % 251 for i in range(100_000)))
    pack(tmp_path / "net", tmp_path / "a.tar.gz")
    content = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(KilnError, match=r"a\.tar\.gz: not an archive of a bundle"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
