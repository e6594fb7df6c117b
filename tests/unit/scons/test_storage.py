"""Caches on servers: an HTTP server with the protocol of Bazel's remote cache, and storages that fsspec
opens."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kiln.errors import KilnError
from kiln.scons.storage import DamagedError, Storage, StorageError, open_storage, receive
from kiln.scons.storage.requests import for_each

KEY = hashlib.sha256(b"a run of a stage").hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """A server with the protocol of Bazel's remote cache; it checks entries, as bazel-remote does."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self._answer(self.server.kept.get(self.path))

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != self.server.allowed:
            self._answer(None, 401)
            return
        kind, name = self.path.rsplit("/", 2)[1:]
        if kind == "cas" and hashlib.sha256(data).hexdigest() != name:
            self._answer(None, 400)
            return
        self.server.kept[self.path] = data
        self._answer(b"", 201)

    def _answer(self, data: bytes | None, status: int = 200) -> None:
        self.send_response(status if data is not None or status != 200 else 404)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    """A server; `kept`: its contents by path; `allowed`: the value of Authorization that may write."""
    made: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.kept, made.allowed = {}, None
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}/kiln"
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(params=["folder", "http", "fsspec", "fsspec-whole"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    """The text of a storage, and a function that damages a content in it."""
    if request.param == "http":
        server = request.getfixturevalue("server")

        def damage(sha256: str) -> None:
            server.kept[f"/kiln/cas/{sha256}"] = b"other"

        return server.url, damage
    if request.param == "fsspec-whole":
        import fsspec

        memory = fsspec.filesystem("memory")

        def overwrite(sha256: str) -> None:
            memory.pipe_file(f"/kiln{tmp_path}/blobs/{sha256[:2]}/{sha256}", b"other")

        return f"memory://kiln{tmp_path}", overwrite
    folder = tmp_path / "cache"

    def write(sha256: str) -> None:
        (folder / "blobs" / sha256[:2] / sha256).write_bytes(b"other")

    return (str(folder) if request.param == "folder" else f"file://{folder}"), write


def stored(storage: Storage, folder: Path, content: bytes) -> tuple[str, list[dict[str, Any]]]:
    file = folder / "content"
    file.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert not storage.has(sha256)
    storage.put(file, sha256)
    entry = {"name": "lib/a.o", "sha256": sha256, "bytes": len(content), "executable": True}
    storage.put_entry(KEY, [entry, {**entry, "name": "größe", "executable": False}])
    return sha256, [entry, {**entry, "name": "größe", "executable": False}]


def test_what_was_stored_comes_back(place: tuple[str, Any], tmp_path: Path) -> None:
    storage = open_storage(place[0])
    with pytest.raises(DamagedError):
        storage.entry(KEY)
    content = bytes(range(256)) * 9000  # more than a block
    sha256, files = stored(storage, tmp_path, content)
    other = open_storage(place[0])
    assert other.has(sha256) and list(other.entry(KEY)) == files
    other.get(sha256, tmp_path / "out" / "file")
    assert (tmp_path / "out" / "file").read_bytes() == content
    other.used(KEY, files)
    assert not list(tmp_path.rglob("*.????????????????????????????????"))  # names of unfinished files


def test_a_damaged_content_is_noticed_and_replaced(place: tuple[str, Any], tmp_path: Path) -> None:
    storage = open_storage(place[0])
    sha256, _ = stored(storage, tmp_path, b"right")
    place[1](sha256)
    with pytest.raises(DamagedError):
        storage.get(sha256, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))
    assert not storage.has(sha256)
    storage.put(tmp_path / "content", sha256)
    storage.get(sha256, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"right"


def test_an_entry_is_what_bazel_stores(server: Any, tmp_path: Path) -> None:
    """An ActionResult, whose wire format is written here by hand: field 2 has path 1, digest 2, flag 4."""
    sha256, _ = stored(open_storage(server.url), tmp_path, b"x")
    digest = b"\x0a\x40" + sha256.encode() + b"\x10\x01"
    file = b"\x0a\x07lib/a.o\x12" + bytes([len(digest)]) + digest + b"\x20\x01"
    assert server.kept[f"/kiln/ac/{KEY}"].startswith(b"\x12" + bytes([len(file)]) + file)
    for damaged in (b"", b"\xff\xff", server.kept[f"/kiln/ac/{KEY}"].replace(b"lib/a.o", b"lib/b.o")):
        server.kept[f"/kiln/ac/{KEY}"] = damaged
        with pytest.raises(DamagedError):
            open_storage(server.url).entry(KEY)


def test_users_and_tokens(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.allowed = "Basic bWU6YSBi"  # me:a b
    url = server.url.replace("//", "//me:a%20b@")
    stored(open_storage(url), tmp_path, b"x")
    with pytest.raises(StorageError, match="PUT: 401 Unauthorized; give a user and a password") as caught:
        stored(open_storage(server.url.replace("//", "//me:wrong@")), tmp_path, b"y")
    assert "wrong" not in str(caught.value)
    server.allowed = "Bearer t0k"
    monkeypatch.setenv("KILN_CACHE_TOKEN", "t0k")
    stored(open_storage(server.url), tmp_path, b"z")


def test_what_cannot_be_opened_or_reached(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, expected in {
        "http://": "http://HOST:PORT/PATH is expected",
        "http://host:port/": "http://HOST:PORT/PATH is expected",
        "http:x": "http://HOST:PORT/PATH is expected",
        "https:/host/kiln": "http://HOST:PORT/PATH is expected",
        "HTTP://host name": "http://HOST:PORT/PATH is expected",
        "http://[::1": "http://HOST:PORT/PATH is expected",
        "nothing://me:secret@a/b": "'nothing://a/b': unknown protocol 'nothing': a folder, http://HOST",
        "s3:bucket": "'s3:bucket': neither a URL such as .* nor a folder; .* is written ./s3:bucket",
        "://host": "neither a URL",
        "C:/kiln": "neither a URL",
    }.items():
        with pytest.raises(KilnError, match=expected):
            open_storage(text)
    assert not list(tmp_path.iterdir())  # no malformed URL is taken for a folder
    open_storage("./s3:bucket")
    assert (tmp_path / "s3:bucket").is_dir()
    server.shutdown()
    server.server_close()
    for act in (
        lambda one: one.entry(KEY),
        lambda one: one.has(KEY),
        lambda one: one.get(KEY, tmp_path / "a"),
        lambda one: one.put_entry(KEY, []),
    ):
        with pytest.raises(StorageError, match=r"http://127.0.0.1:\d+/kiln: Connection refused"):
            act(open_storage(server.url))
        # A file system that connects where it is made.
        ftp = server.url.replace("http://", "ftp://me:secret@")
        with pytest.raises(StorageError, match=r"^ftp://127.0.0.1:\d+/kiln: Connection refused$"):
            act(open_storage(ftp))


def test_a_server_may_close_the_connection_between_requests(server: Any, tmp_path: Path) -> None:
    storage = open_storage(server.url)
    sha256, _ = stored(storage, tmp_path, b"x")
    storage._local.connection.sock.shutdown(2)  # type: ignore[attr-defined]
    assert storage.has(sha256)
    storage._local.connection.sock.shutdown(2)  # type: ignore[attr-defined]
    storage.put(tmp_path / "content", sha256)


def test_a_content_that_ends_half_way_is_no_error_of_the_disk(tmp_path: Path) -> None:
    """It ended the build, which goes on without the cache for a StorageError."""

    class Half(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise TimeoutError("timed out")
            return super().read(1)

    with pytest.raises(StorageError, match=r"^http://there: cannot be read: timed out$"):
        receive(Half(b"content"), "0" * 64, tmp_path / "out", "http://there")
    assert not any(tmp_path.iterdir())


def test_several_requests_run_at_a_time_and_in_order() -> None:
    """One after the other, each file of a bundle waits for a distant server's answer."""
    together = threading.Barrier(4, timeout=60)

    def request(value: int) -> int:
        together.wait()
        if value > 4:
            raise StorageError(f"{value}")
        return value

    assert for_each(request, [3, 1, 4, 2]) == [3, 1, 4, 2]
    with pytest.raises(StorageError, match="7"):
        for_each(request, [1, 7, 2, 3])
    assert for_each(str, []) == [] and for_each(str, [1]) == ["1"]
