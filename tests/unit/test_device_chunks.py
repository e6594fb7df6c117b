"""Files cut by their content, and put together from parts by a device's own tools."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kiln.device import chunks, script
from kiln.device.chunks import Chunk
from kiln.device.copies import File, file_of

OLD = random.Random(1).randbytes(300_000)
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "one byte": lambda old: old[:150_000] + bytes([old[150_000] ^ 1]) + old[150_001:],
    "something put in": lambda old: old[:1000] + b"seven b" + old[1000:],
    "something taken out": lambda old: old[:200_000] + old[200_111:],
    "the beginning": lambda old: b"\0" * 64 + old[64:],
    "the end": lambda old: old[:-1],
    "more": lambda old: old + old[:50_000] + b"and more",
    "halves exchanged": lambda old: old[150_000:] + old[:150_000],
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], File]:
    def file(name: str, content: bytes) -> File:
        (tmp_path / name).write_bytes(content)
        return file_of(name, tmp_path / name)

    return file


@pytest.mark.parametrize("size", [0, 1, 31, 5000, 100_000])
@pytest.mark.parametrize("content", ["random", "zeros", "text"])
def test_chunks_are_the_file(write: Callable[[str, bytes], File], size: int, content: str) -> None:
    given = {"random": OLD, "zeros": bytes(size), "text": b"all work and no play\n" * 5000}[content][:size]
    found = chunks.cut(write("x", given).source)
    assert sum(chunk.bytes for chunk in found) == len(given)
    assert all(256 <= chunk.bytes <= 4096 for chunk in found[:-1])
    assert chunks.read_list(chunks.write_list("x", found).splitlines()[1:]) == found


def test_blocks_of_reading_change_nothing(
    write: Callable[[str, bytes], File], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("x", OLD).source
    at_once = chunks.cut(path)
    monkeypatch.setattr(chunks, "_BLOCK", 10_000)
    assert chunks.cut(path) == at_once


@pytest.mark.parametrize("name", CHANGES)
def test_little_is_sent_and_put_together_there(
    write: Callable[[str, bytes], File], tmp_path: Path, name: str
) -> None:
    old, new = write("old", OLD), write("new", CHANGES[name](OLD))
    literal = io.BytesIO()
    parcel = chunks.pack([new], {old.sha256: chunks.cut(old.source)}, literal)
    ((file, parts),) = parcel.made
    assert file is new and not parcel.whole and literal.tell() < 10_000 and len(parts) < 6

    incoming = tmp_path / "store/.kiln/incoming/token"
    for folder in (incoming, tmp_path / "store/.kiln/blobs", tmp_path / "store/.kiln/lock"):
        folder.mkdir(parents=True)
    (tmp_path / "store/.kiln/lock/owner").write_text("token\n")
    (tmp_path / "store/.kiln/blobs" / old.sha256).write_bytes(OLD)
    (incoming / "pieces").write_bytes(literal.getvalue())
    lines = [f"{part.source} {part.start + 1} {part.bytes}" for part in parts]
    done = subprocess.run(
        script.command("assemble", str(tmp_path / "store"), "token"),
        input="".join(f"{line}\n" for line in [*lines, f"= {new.sha256}"]),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in incoming.iterdir()] == [new.sha256]
    assert file_of("made", incoming / new.sha256).sha256 == new.sha256


def test_what_two_new_files_share_is_sent_once(write: Callable[[str, bytes], File]) -> None:
    large, small = write("lib.a", b"head" + OLD), write("lib.so", OLD[:200_000])
    literal = io.BytesIO()
    parcel = chunks.pack([small, large], {}, literal)
    assert parcel.whole == [large]
    assert [file for file, _ in parcel.made] == [small] and literal.tell() < 10_000
    alone = chunks.pack([small, large], None, literal)
    assert alone.made == [] and set(map(id, alone.whole)) == {id(small), id(large)}


def test_what_has_little_in_common_goes_whole(write: Callable[[str, bytes], File]) -> None:
    old, new = write("old", OLD), write("new", OLD[:50_000] + random.Random(2).randbytes(250_000))
    parcel = chunks.pack([new], {old.sha256: chunks.cut(old.source)}, io.BytesIO())
    assert parcel.whole == [new]
    assert chunks.pack([write("tiny", OLD[:9000])], {}, io.BytesIO()).chunks == {}


def test_lists_that_are_none() -> None:
    good = f"{'a' * 16} 100"
    assert chunks.read_list([good]) == [Chunk("a" * 16, 100)]
    for line in (
        "",
        "x",
        "$(x) 1",
        f"{'a' * 16} -1",
        f"{'a' * 16} 0",
        f"{'a' * 16} 999999999999",
        good + " ",
    ):
        assert chunks.read_list([good, line]) == []


def test_kinds() -> None:
    assert chunks.kind_of("run_vectors-0123456789abcdef") == "run_vectors"
    assert chunks.kind_of("lib/libresnet.so") == "lib/libresnet.so"
