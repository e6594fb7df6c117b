"""Names that would escape their place or inject a command: from YAML, from a bundle, and from the device."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kiln.config import load_target
from kiln.device.deploy.facts import read_facts, short
from kiln.device.deploy.fit import obstacle
from kiln.device.deploy.registry import load_device, target_of
from kiln.device.deploy.store import Store
from kiln.device.deploy.transports import Answer, open_transport
from kiln.device.flash import bundle_files
from kiln.device.posix import as_text, as_text_and_input
from kiln.errors import KilnError
from kiln.files import read_json

from . import tiny
from .flashing import BuiltBundle, DeviceStages, build, yaml_of

WORDS = [
    "a b", " leading", "it's", 'say "x"', "$(touch pwned)", "`touch pwned`", "a;touch pwned", "a&&b", "a|b",
    "$HOME", "*", "?", "[a]", "{a,b}", "~", "-rf", "--", "!x", "#x", "\\", "a\\", "%s", "é", "日本", "<x>",
]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltBundle:
    return build(tmp_path_factory.mktemp("built"), tiny.base_target())


@pytest.mark.parametrize("word", [*WORDS, "line\nfeed", "tab\t", "cr\r", "'\n'", "", "\\n", "a" * 5000])
def test_an_argument_arrives_as_it_is(word: str) -> None:
    """In every shell that is here, as ssh and adb hand a command to a login shell."""
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-c", as_text(["printf", "%s|", "x", word])], capture_output=True)
        assert done.stdout == f"x|{word}|".encode()
        text, stdin = as_text_and_input(["sh", "-c", 'printf "%s|" "$1"; cat', "sh", word], b"input")
        assert isinstance(stdin, bytes) and len(text) < 2000
        done = subprocess.run([shell, "-c", text], input=stdin, capture_output=True)
        assert done.stdout == f"{word}|input".encode()


def test_a_folder_of_any_name_is_a_folder(built: BuiltBundle, tmp_path: Path) -> None:
    folder = tmp_path / "/".join(word for word in WORDS if word not in ("~",))
    desk = DeviceStages(tmp_path, yaml_of(tmp_path / "board.yaml", str(folder), kind="local"))
    desk.flashed(built)
    assert (folder / "tiny/current/lib/libtiny.a").is_file()
    assert "whole, checked" in desk.installed("status").stdout
    assert not list(tmp_path.rglob("*pwned")) or all(
        "touch" in path.name for path in tmp_path.rglob("*pwned")
    )
    assert not Path("/pwned").exists()


@pytest.mark.parametrize(
    "folder",
    ["relative", "/a/../b", "/..", "/a//b", "/", "~", "~root/x", "/a\nb", "/a\x1b[2J", "/a\u2028", ""],
)
def test_folders_that_are_none(tmp_path: Path, folder: str) -> None:
    with pytest.raises(KilnError, match=r"board.yaml:1: key 'folder': a path"):
        load_device(yaml_of(tmp_path / "board.yaml", folder, kind="local"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("host", v) for v in ("-oProxyCommand=x", "a b", "$(x)", "a;b", "a\nb", "a/b", "u@h", "%h", "")),
        *(("user", v) for v in ("-l", "a b", "$(x)", "a\nb", "")),
    ],
)
def test_hosts_and_users_that_are_none(tmp_path: Path, key: str, value: str) -> None:
    transport = {"kind": "ssh", "host": "board", key: value}
    with pytest.raises(KilnError, match=f"key 'transport.{key}': letters, digits"):
        load_device(yaml_of(tmp_path / "board.yaml", "/x", **transport))


@pytest.mark.parametrize("address", ["localhost", "host:99999", "a b:1", "$(x):1", "h:1\n", "-x:"])
def test_addresses_that_are_none(tmp_path: Path, address: str) -> None:
    with pytest.raises(KilnError, match=r"key 'transport.address': HOST:PORT"):
        load_device(yaml_of(tmp_path / "board.yaml", "/x", kind="gdb", address=address))


@pytest.mark.parametrize("stem", ["a b", "$(x)", "..x", "-x", "a'b"])
def test_names_of_devices_that_are_none(tmp_path: Path, stem: str) -> None:
    with pytest.raises(KilnError, match="letters, digits"):
        load_device(yaml_of(tmp_path / f"{stem}.yaml", "/x", kind="local"))


def test_the_way_to_connect_by_hand(tmp_path: Path) -> None:
    """The command in the error connects as Kiln does: with the same port, user, key and configuration."""
    files = {"identity": "my key", "config": "ssh.conf"}
    (tmp_path / "ssh.conf").touch()
    transport = {"kind": "ssh", "host": "127.0.0.1", "port": 1, "user": "me", **files}
    device = load_device(yaml_of(tmp_path / "board.yaml", "/x", **transport))
    with pytest.raises(KilnError) as raised:
        open_transport(device)
    command = shlex.split(str(raised.value).partition("; try: ")[2])
    key, config = (str(tmp_path / files[name]) for name in ("identity", "config"))
    assert command == ["ssh", "-F", config, "-i", key, "-p", "1", "me@127.0.0.1"]


def test_a_target_that_is_none_is_the_fault_of_the_devices_file(tmp_path: Path) -> None:
    path = yaml_of(tmp_path / "board.yaml", "/x", target="aarch46", kind="local")
    with pytest.raises(KilnError, match=r"board.yaml:1: key 'target': unknown target 'aarch46'; did"):
        target_of(path)
    assert target_of(yaml_of(tmp_path / "board.yaml", "/x", target="cortex-m4", kind="local")) == "cortex-m4"


def test_misspelt_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"key 'transport.hots': unknown key; did you mean 'host'"):
        load_device(yaml_of(tmp_path / "board.yaml", "/x", kind="ssh", hots="x"))
    with pytest.raises(
        KilnError, match=r"key 'transport.kind': 'telnet' is not allowed, allowed: adb, gdb, "
    ):
        load_device(yaml_of(tmp_path / "board.yaml", "/x", kind="telnet"))


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\nb", "a//b", "x\x1b[2J", " x", "./x"])
def test_a_bundles_file_stays_in_its_folder(built: BuiltBundle, name: str) -> None:
    manifest = read_json(built.bundle / "manifest.json")
    manifest["files"] = [{"name": name, "bytes": 1, "sha256": "0" * 64}]
    with pytest.raises(KilnError, match="cannot be used on a device"):
        bundle_files(built.bundle, manifest, "all")


def damaged_note(desk: DeviceStages, **changes: Any) -> None:
    note = desk.folder / "store/tiny/current/installed.json"
    installed = {**json.loads(note.read_text()), **changes}
    note.chmod(0o644)
    note.unlink()
    note.write_text(json.dumps(installed))


OTHERS = [pytest.param(name, marks=pytest.mark.heavy) for name in ("..", "/etc", "a b", "$(x)", ["x"])]


@pytest.mark.parametrize("previous", ["../../victim", 7, *OTHERS])
def test_what_a_device_says_of_the_version_before(built: BuiltBundle, tmp_path: Path, previous: Any) -> None:
    desk = DeviceStages(tmp_path, yaml_of(tmp_path / "board.yaml", str(tmp_path / "store"), kind="local"))
    desk.flashed(built)
    (tmp_path / "store/victim").mkdir()
    damaged_note(desk, previous=previous)
    done = desk.installed("rollback")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    desk.flashed(built)
    assert (tmp_path / "store/victim").is_dir()


@pytest.mark.parametrize(
    "current",
    [
        "../../victim",
        pytest.param("/etc", marks=pytest.mark.heavy),
        pytest.param("versions/../../victim", marks=pytest.mark.heavy),
        pytest.param("versions/$(x)", marks=pytest.mark.heavy),
    ],
)
def test_what_a_device_says_is_in_use(built: BuiltBundle, tmp_path: Path, current: str) -> None:
    desk = DeviceStages(tmp_path, yaml_of(tmp_path / "board.yaml", str(tmp_path / "store"), kind="local"))
    (tmp_path / "store/tiny").mkdir(parents=True)
    victim = tmp_path / "store/victim"
    victim.mkdir()
    (victim / "installed.json").write_text("{}")
    (tmp_path / "store/tiny/current").symlink_to(current)
    assert "nothing" in desk.installed("status").stdout
    desk.flashed(built)
    assert victim.is_dir() and sorted(path.name for path in victim.iterdir()) == ["installed.json"]


class Liar:
    """A device that answers with what could drive a terminal or break a table."""

    description, has_shell = "device 'liar'", True

    def __init__(self, **answers: str) -> None:
        self._answers = {"home": "/root", "machine": "x86_64", "checksum": "sha256sum", **answers}

    def run(self, command: Any, *, stdin: Any = None, timeout: float = 0) -> Answer:
        text = "".join(f"{key}\t{value}\n" for key, value in self._answers.items())
        return Answer(0, text.encode(), "")


def test_what_a_device_calls_itself() -> None:
    facts = read_facts(Liar(host="x\x1b]0;owned\x07\x1b[2J", board="\u202egnp.exe"), "/x")  # type: ignore[arg-type]
    printed = short(facts.identity) + str(facts.identity)
    assert printed.isprintable()
    with pytest.raises(KilnError, match=r"its home folder '/root; rm -rf /\?' cannot be used"):
        read_facts(Liar(home="/root; rm -rf /\x07"), "~/x")  # type: ignore[arg-type]
    facts = read_facts(Liar(machine="\x1b[31mz80"), "/x")  # type: ignore[arg-type]
    why = obstacle(facts, load_target("x86_64"))
    assert why is not None and why.isprintable()


def test_a_checksum_tool_is_one_of_ours(tmp_path: Path) -> None:
    device = load_device(yaml_of(tmp_path / "liar.yaml", "/x", kind="local"))
    with pytest.raises(KilnError, match="no tool for SHA-256"):
        Store(device, Liar(checksum="sh -c 'touch pwned'"))  # type: ignore[arg-type]
