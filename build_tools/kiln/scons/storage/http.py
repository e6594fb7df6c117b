"""A cache on an HTTP server with the protocol of Bazel's remote cache.

    GET, PUT  <url>/ac/<key>      entries, by the key of a stage's run
    GET, PUT  <url>/cas/<sha256>  contents, by their SHA-256; HEAD: whether one exists

bazel-remote, nginx with WebDAV and the caches of CI services are such servers. Some of them read the entries,
so these are what Bazel stores: a message ActionResult of the Remote Execution API (v2) with the output files.
Its field stdout_raw has the check of the entry. A user and a password in the URL are sent as HTTP's basic
authentication, the token in KILN_CACHE_TOKEN as a bearer.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import os
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kiln.errors import KilnError
from kiln.scons.storage.common import (
    DamagedError,
    FileEntries,
    Storage,
    StorageError,
    digest_of_entry,
    receive,
    verified,
)

TOKEN = "KILN_CACHE_TOKEN"
_SECONDS = 30.0
_MOST_ENTRY = 16 << 20  # bytes
_OK, _CREATED, _NOT_FOUND = 200, 201, 404
_CONNECTION_ERRORS = (http.client.HTTPException, OSError)


class HttpStorage(Storage):
    """The cache at `url`; a connection for each thread, which stays open between requests."""

    def __init__(self, url: str) -> None:
        try:
            url_parts = urllib.parse.urlsplit(url)
            host, port = url_parts.hostname, url_parts.port
        except ValueError:  # of a port that is not a number, or of brackets without an IPv6 address
            raise _malformed(url) from None
        if not host or url_parts.query or url_parts.fragment or re.search(r"\s", url):
            raise _malformed(url)
        self.text = url
        self.shown = urllib.parse.urlunsplit(
            (url_parts.scheme, url_parts.netloc.rpartition("@")[2], url_parts.path, "", "")
        )
        self._secure, self._host, self._port = url_parts.scheme == "https", host, port
        self._path = url_parts.path.rstrip("/")
        self._headers = _authorisation(url_parts)
        self._local = threading.local()
        self._damaged: set[str] = set()  # SHA-256 of contents that the server returned damaged

    def entry(self, key: str) -> FileEntries:
        """See Storage."""
        with self._request("GET", f"ac/{key}") as answer:
            if answer.status == _NOT_FOUND:
                raise DamagedError(key)
            self._expect(answer, "GET", _OK)
            data = answer.read(_MOST_ENTRY + 1)
        if len(data) > _MOST_ENTRY:
            raise DamagedError(key)
        result = _messages()["ActionResult"]()
        try:
            result.ParseFromString(data)
            files = [_file_entry(output_file) for output_file in result.output_files]
            stored = result.stdout_raw.decode()
        except Exception as error:  # google.protobuf.message.DecodeError, or a wrong encoding
            raise DamagedError(key) from error
        return verified(files, stored)

    def put_entry(self, key: str, files: FileEntries) -> None:
        """See Storage."""
        result = _messages()["ActionResult"](stdout_raw=digest_of_entry(files).encode())
        for file in files:
            output_file = result.output_files.add(path=file["name"], is_executable=file["executable"])
            output_file.digest.hash, output_file.digest.size_bytes = file["sha256"], file["bytes"]
        self._put(f"ac/{key}", result.SerializeToString(deterministic=True))

    def has(self, sha256: str) -> bool:
        """See Storage."""
        if sha256 in self._damaged:
            return False
        with self._request("HEAD", f"cas/{sha256}") as answer:
            return bool(answer.status == _OK)

    def get(self, sha256: str, out: Path) -> None:
        """See Storage."""
        with self._request("GET", f"cas/{sha256}") as answer:
            if answer.status == _NOT_FOUND:
                raise DamagedError(sha256)
            self._expect(answer, "GET", _OK)
            try:
                receive(answer, sha256, out, self.shown)
            except http.client.HTTPException as error:
                raise StorageError(f"{self.shown}: {error or type(error).__name__}") from error
            except DamagedError:
                self._damaged.add(sha256)
                raise

    def put(self, path: Path, sha256: str) -> None:
        """See Storage."""
        with path.open("rb") as stream:
            self._put(f"cas/{sha256}", stream, path.stat().st_size)
        self._damaged.discard(sha256)

    def _put(self, path: str, body: bytes | BinaryIO, size: int | None = None) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else size)
        with self._request("PUT", path, body, headers) as answer:
            if not _OK <= answer.status < 300:
                self._expect(answer, "PUT", _CREATED)

    def _expect(self, answer: Any, method: str, status: int) -> None:
        if answer.status != status:
            hints = {
                401: f"; give a user and a password in the URL, or a token in {TOKEN}",
                403: "; this user may not do that",
            }
            hint = hints.get(answer.status, "")
            raise StorageError(f"{self.shown}: {method}: {answer.status} {answer.reason}{hint}")

    @contextlib.contextmanager
    def _request(
        self, method: str, url_path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Iterator[Any]:
        """Send a request and yield the answer. Raises StorageError where no answer comes.

        A server may close a connection between two requests; then the request is sent again, once.
        """
        try:
            for may_retry in (True, False):
                connection = self._connection()
                is_new = connection.sock is None
                try:
                    connection.request(
                        method, f"{self._path}/{url_path}", body, {**self._headers, **(headers or {})}
                    )
                    answer = connection.getresponse()
                    break
                except _CONNECTION_ERRORS:
                    connection.close()
                    if is_new or not may_retry:
                        raise
                    if hasattr(body, "seek"):
                        body.seek(0)
            yield answer
            answer.read()  # the rest, or the connection cannot be used again
        except _CONNECTION_ERRORS as error:
            self._connection().close()
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise StorageError(f"{self.shown}: {reason}") from error
        except BaseException:
            self._connection().close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._local.connection = kind(self._host, self._port, timeout=_SECONDS)
        connection: http.client.HTTPConnection = self._local.connection
        if connection.sock is not None:  # else small messages wait for the other side's acknowledgement
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _malformed(url: str) -> KilnError:
    return KilnError(f"option 'cache': '{url}': http://HOST:PORT/PATH is expected")


def _authorisation(url_parts: urllib.parse.SplitResult) -> dict[str, str]:
    if os.environ.get(TOKEN):
        return {"Authorization": f"Bearer {os.environ[TOKEN]}"}
    if url_parts.username is None:
        return {}
    user, password = (urllib.parse.unquote(text or "") for text in (url_parts.username, url_parts.password))
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _file_entry(output_file: Any) -> dict[str, Any]:
    return {
        "name": output_file.path,
        "sha256": output_file.digest.hash,
        "bytes": output_file.digest.size_bytes,
        "executable": output_file.is_executable,
    }


@functools.cache
def _messages() -> dict[str, Any]:
    """The classes of the messages Digest, OutputFile and ActionResult, with the fields that are used here.

    Names and numbers are from build/bazel/remote/execution/v2/remote_execution.proto.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    types = {
        "text": field.TYPE_STRING,
        "bytes": field.TYPE_BYTES,
        "bool": field.TYPE_BOOL,
        "int": field.TYPE_INT64,
    }
    package = "kiln.cache"
    file = descriptor_pb2.FileDescriptorProto(name="kiln_cache.proto", package=package, syntax="proto3")
    for name, fields in {
        "Digest": [("hash", 1, "text"), ("size_bytes", 2, "int")],
        "OutputFile": [("path", 1, "text"), ("digest", 2, "Digest"), ("is_executable", 4, "bool")],
        "ActionResult": [("output_files", 2, "OutputFile"), ("stdout_raw", 5, "bytes")],
    }.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            is_repeated = field_name == "output_files"
            field_message = message.field.add(
                name=field_name, number=number, type=types.get(kind, field.TYPE_MESSAGE)
            )
            field_message.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            if kind not in types:
                field_message.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Digest", "OutputFile", "ActionResult")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in names
    }
