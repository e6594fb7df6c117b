"""The adb transport: the real client, against an adb server that the tests bring along."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kiln.device.deploy.registry import load_device
from kiln.device.deploy.transports import open_transport
from kiln.errors import KilnError

from . import tiny
from .adb_server import AdbServer
from .flashing import BuiltBundle, DeviceStages, build, yaml_of

SERIAL = "emulator-5554"


@pytest.fixture
def server() -> Iterator[AdbServer]:
    if shutil.which("adb") is None:
        pytest.skip("adb is not installed")
    with AdbServer(SERIAL) as adb_server:
        yield adb_server
        adb_server.shutdown()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltBundle:
    return build(tmp_path_factory.mktemp("built"), tiny.base_target())


def phone(folder: Path, serial: str = SERIAL) -> DeviceStages:
    path = yaml_of(folder / "phone.yaml", str(folder / "it's $(a) store"), kind="adb", serial=serial)
    return DeviceStages(folder, path)


def test_flash(server: AdbServer, built: BuiltBundle, tmp_path: Path) -> None:
    desk = phone(tmp_path)
    done = desk.flash(built, **server.environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "device 'phone' (adb emulator-5554)" in done.stdout
    current = tmp_path / "it's $(a) store/tiny/current"
    assert (current / "lib/libtiny.a").read_bytes() == (built.bundle / "lib/libtiny.a").read_bytes()
    assert not (current / "missing").exists()
    assert {"host:version", "sync:"} <= set(server.asked)
    again = desk.flash(built, **server.environment)
    assert again.returncode == 0 and "copied │ 0 bytes" in again.stdout


def test_arguments_and_streams_arrive_as_they_are(
    server: AdbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in server.environment.items():
        monkeypatch.setenv(key, value)
    transport = open_transport(load_device(phone(tmp_path).device))
    words = ["a b", "it's", '"', "$(touch x)", "`x`", "l\nm", "\\", "-n", "", "é", ";", "*", "~", "!x"]
    script = 'printf "<%s>" "$@"; cat; echo worse >&2; exit 7'
    done = transport.run(["sh", "-c", script, "sh", *words], stdin=bytes(range(256)) * 500)
    assert done.stdout == "".join(f"<{word}>" for word in words).encode() + bytes(range(256)) * 500
    assert (done.status, done.stderr) == (7, "worse\n")
    long = "x" * 20000
    assert transport.run(["printf", "%s", long]).text == long
    target = tmp_path / "copy of it"
    target.write_bytes(b"1")
    transport.send({str(tmp_path / "sent $(x)"): target})
    assert (tmp_path / "sent $(x)").read_bytes() == b"1"
    assert transport.fetch(str(target), tmp_path / "back") and (tmp_path / "back").read_bytes() == b"1"
    assert not transport.fetch(str(tmp_path / "absent"), tmp_path / "back")


def test_what_goes_wrong_is_one_line(server: AdbServer, built: BuiltBundle, tmp_path: Path) -> None:
    error = phone(tmp_path, "other").refused(built, **server.environment)
    assert "it is not connected; `adb devices` does not list other" in error
    for state, words in (("unauthorized", "allow USB debugging"), ("offline", "it is offline; plug it in")):
        server.state = state
        assert words in phone(tmp_path).refused(built, **server.environment)
    server.state, server.fails_at = "device", 3
    assert "No space left on device" in phone(tmp_path).refused(built, **server.environment)
    assert not (tmp_path / "it's $(a) store/tiny/current").exists()
    server.fails_at = None
    assert phone(tmp_path).flash(built, **server.environment).returncode == 0
    lonely = tmp_path / "no tools"
    lonely.mkdir()
    assert "'adb' is not installed; install it with" in phone(tmp_path).refused(built, PATH=str(lonely))


@pytest.mark.parametrize("serial", ["-e", "a b", "$(x)", "a;b", "a\nb", ""])
def test_serials_that_are_none(tmp_path: Path, serial: str) -> None:
    with pytest.raises(KilnError, match=r"key 'transport.serial': letters, digits"):
        load_device(phone(tmp_path, serial).device)
