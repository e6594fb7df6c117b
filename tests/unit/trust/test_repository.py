"""Repositories of bundles: fetches from a local server, and every attack that TUF names."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
from kiln.command_line import __main__ as command_line
from kiln.emit.bundle import pack, unpack
from kiln.errors import KilnError
from kiln.trust.fetch import fetch
from kiln.trust.release import kept_in
from kiln.trust.repository import publish
from kiln.trust.rotate import change_key
from kiln.trust.sign import sign

from .bundles import bundle, keys


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Place:
    """A repository with release 5 of a bundle, its server, and a client's folder."""

    folder: Path
    key: str
    url: str

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def release(self, number: int, content: str = "") -> None:
        """Sign and publish a bundle."""
        shutil.rmtree(self.folder / "tiny", ignore_errors=True)
        folder = bundle(self.folder / "tiny")
        (folder / "params.bin").write_text(f"parameters {number} {content}")
        sign(folder, self.key, number)
        publish(self.repository, self.key, folder)

    def fetch(self) -> int:
        """The release that the client gets."""
        root = self.folder / "1.root.json"
        found = fetch(self.url, "tiny", "board", self.folder / "bundles", root)
        assert (found.folder / "params.bin").read_text().startswith(f"parameters {found.release} ")
        return found.release


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    private, _ = keys(tmp_path, "one")
    handler = functools.partial(_Silent, directory=str(tmp_path / "repository"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Place(tmp_path, private, f"http://127.0.0.1:{server.server_address[1]}")
        made.release(5)
        shutil.copy(made.repository / "metadata/1.root.json", tmp_path)
        yield made
        server.shutdown()


def test_releases_come_one_after_the_other(place: Place) -> None:
    assert place.fetch() == 5
    place.release(6)
    assert place.fetch() == 6
    assert not list(place.folder.glob("bundles/board/.kiln-*"))
    with pytest.raises(KilnError, match="release 4, the repository has release 6 of it"):
        kept_in(place.folder / "tiny").unlink()  # signed elsewhere
        place.release(4)
    assert place.fetch() == 6
    place.release(6, "again")
    assert place.fetch() == 6


def test_a_first_publish_that_a_full_disk_ended(place: Place) -> None:
    """It has made the folder and no file, or a file without its name."""
    shutil.rmtree(place.repository)
    (place.repository / "metadata").mkdir(parents=True)
    (place.repository / "metadata" / ".1.root.json.x1").write_text("{")
    place.release(6)
    assert (place.repository / "metadata" / "1.root.json").is_file()


def test_an_older_state_of_the_repository(place: Place) -> None:
    shutil.copytree(place.repository, place.folder / "before")
    place.release(6)
    assert place.fetch() == 6
    shutil.rmtree(place.repository)
    (place.folder / "before").rename(place.repository)
    with pytest.raises(KilnError, match=r"http://.*version"):
        place.fetch()
    assert "parameters 6" in (place.folder / "bundles/board/tiny/params.bin").read_text()


def test_changed_files(place: Place) -> None:
    """One changed byte in each file of the repository that a client reads, and each of them missing."""
    files = [path for path in place.repository.rglob("*") if path.is_file() and path.name != "1.root.json"]
    assert len(files) == 4
    for path in files:
        content = path.read_bytes()
        changed = bytearray(content)
        changed[content.find(b'"version": 1') + 11 if path.suffix == ".json" else 100] ^= 1
        for other in (bytes(changed), content[:-40], None):
            path.unlink() if other is None else path.write_bytes(other)
            with pytest.raises(KilnError, match="http://"):
                place.fetch()
            assert not (place.folder / "bundles/board/tiny").exists()
            shutil.rmtree(place.folder / "data")
        path.write_bytes(content)
    assert place.fetch() == 5


def test_a_repository_that_is_not_renewed(place: Place) -> None:
    publish(place.repository, place.key, None, now=datetime(2001, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(KilnError, match=r"no longer valid.*kiln publish without a bundle renews it"):
        place.fetch()
    assert publish(place.repository, place.key, None).bundles == {"board/tiny.tar.gz": 5}
    assert place.fetch() == 5


def test_another_key(place: Place, tmp_path: Path) -> None:
    other_key, _ = keys(tmp_path, "other")
    with pytest.raises(KilnError, match=r"1.root.json: the repository belongs to another key"):
        publish(place.repository, other_key, None)
    folder = bundle(tmp_path / "unsigned")
    with pytest.raises(KilnError, match="not signed: it has no"):
        publish(place.repository, place.key, folder)
    sign(folder, other_key, 9)
    with pytest.raises(KilnError, match="the signature is wrong, or of another key"):
        publish(place.repository, place.key, folder)
    shutil.rmtree(place.repository)
    publish(place.repository, other_key, folder)  # somebody else's repository, at the same address
    with pytest.raises(KilnError, match="http://"):
        place.fetch()


def test_the_key_is_changed(place: Place, tmp_path: Path) -> None:
    """Clients follow from the old root and from the first one; the old key signs nothing any more."""
    assert place.fetch() == 5
    archives = {path.name for path in place.repository.rglob("*.tar.gz")}
    second, third = keys(tmp_path, "two")[0], keys(tmp_path, "three")[0]
    done = change_key(place.repository, second, place.key)
    assert (done.version, done.bundles) == (2, {"board/tiny.tar.gz": 5})
    assert {path.name for path in place.repository.rglob("*.tar.gz")} > archives
    assert place.fetch() == 5
    with pytest.raises(KilnError, match=r"2.root.json: the repository belongs to another key; --replaces"):
        place.release(6)
    with pytest.raises(KilnError, match=r"belongs to another key than that of --replaces"):
        change_key(place.repository, third, place.key)
    with pytest.raises(KilnError, match=r"^--replaces: the same key as --key$"):
        change_key(place.repository, second, second)
    place.key = second
    place.release(6)
    change_key(place.repository, third, second)
    place.key = third
    place.release(7)
    shutil.rmtree(place.folder / "data")  # a client that has 1.root.json alone
    assert place.fetch() == 7


def test_a_change_of_the_key_that_was_interrupted(place: Place, tmp_path: Path) -> None:
    """Whichever file was the last one: the same command completes it, and clients follow."""
    before = {path: path.read_bytes() for path in place.repository.rglob("*") if path.is_file()}
    second = keys(tmp_path, "two")[0]
    change_key(place.repository, second, place.key)
    after = {path: path.read_bytes() for path in place.repository.rglob("*") if path.is_file()}
    made = sorted(set(after) - set(before), key=lambda path: path.name.endswith("root.json"))
    assert [path.name.partition(".")[2] for path in made][-1] == "root.json" and len(made) == 4
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    for count in range(len(made) + 1):
        for path in made:
            path.unlink(missing_ok=True)
        for path in made[:count]:
            path.write_bytes(after[path])
        (place.repository / "metadata/timestamp.json").write_bytes(
            before[place.repository / "metadata/timestamp.json"]
        )
        change_key(place.repository, second, place.key)
        assert place.fetch() == 5
        shutil.rmtree(tmp_path / "data")


def test_a_bundle_that_the_old_key_has_not_signed_stops_the_change(place: Place, tmp_path: Path) -> None:
    (archive,) = place.repository.rglob("*.tar.gz")
    third = keys(tmp_path, "three")[0]
    with tempfile.TemporaryDirectory() as scratch:
        unpack(archive, Path(scratch))
        sign(Path(scratch) / "tiny", third, 5)
        pack(Path(scratch) / "tiny", archive)
    before = sorted(place.repository.rglob("*"))
    with pytest.raises(KilnError, match=r"tiny.*of another key"):
        change_key(place.repository, keys(tmp_path, "two")[0], place.key)
    assert sorted(place.repository.rglob("*")) == before
    archive.unlink()
    with pytest.raises(KilnError, match=r"tiny.tar.gz"):
        change_key(place.repository, keys(tmp_path, "two")[0], place.key)


def test_the_commands(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    words = ["fetch", "tiny", "--target", "board", "--from", place.url]
    assert command_line.main(words) == 2
    assert "not known yet: give the repository's metadata/1.root.json with --root" in capsys.readouterr().err
    assert command_line.main([*words, "--root", "1.root.json"]) == 0
    assert "bundles/board/tiny: fetched and verified, release 5" in capsys.readouterr().out
    assert command_line.main([*words, "--json"]) == 0  # the root is known now
    assert json.loads(capsys.readouterr().out)["results"][0]["data"]["release"] == 5
    for changed, message in (
        (
            ["fetch", "gone", "--target", "board", "--from", place.url],
            "no bundle board/gone.tar.gz; it has: board/tiny",
        ),
        (
            [*words[:-1], "ftp://host"],
            "--from ftp://host: a URL that begins with http:// or https:// is expected",
        ),
        (
            [*words[:-1], "http://127.0.0.1:1", "--root", "1.root.json"],
            "http://127.0.0.1:1: metadata: no answer: Failed to establish a new connection",
        ),
        ([*words, "--root", "none.json"], "--root none.json: No such file"),
        (
            [*words, "--root", "one.pem"],
            "--root one.pem: not the metadata of a repository; its metadata/1.root.json is expected",
        ),
        (
            [*words, "--root", "repository/metadata/timestamp.json"],
            "timestamp.json: metadata of the kind 'timestamp'; its metadata/1.root.json is expected",
        ),
        ([*words, "--into", "1.root.json"], "/1.root.json is not a folder"),
        (["publish", "--repository", "1.root.json/x", "--key", place.key], "1.root.json is not a folder"),
        (["publish", "--repository", ".", "--key", place.key, "--days", "0"], "days 0: at least 1"),
        (["publish", "bundles", "--repository", ".", "--key", place.key], "not a bundle"),
    ):
        assert command_line.main(changed) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    change = ["publish", "--repository", "repository", "--key", keys(place.folder, "two")[0]]
    assert command_line.main([*change, "--replaces", "none.pem"]) == 2
    assert "none.pem" in capsys.readouterr().err
    (place.folder / "bundle").mkdir()
    (place.folder / "bundle/manifest.json").write_text('{"name": "m"}')
    assert command_line.main([*change, "--replaces", place.key, "bundle"]) == 2
    assert "publish the bundle in a second command" in capsys.readouterr().err
    assert command_line.main([*change, "--replaces", place.key]) == 0
    assert "repository: version 2, valid for 30 days: 1 bundle\n" in capsys.readouterr().out
    (place.folder / "repository/metadata/timestamp.json").write_text("{")
    assert command_line.main(change) == 2
    assert "repository/metadata: damaged" in capsys.readouterr().err
