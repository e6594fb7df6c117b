"""Archives in blocks: what every tool reads, in bytes that depend on the content alone."""

from __future__ import annotations

import gzip
import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
from kiln.emit import gzip_blocks
from kiln.emit.gzip_blocks import GzipWriter


def packed(content: bytes, piece: int) -> bytes:
    raw = io.BytesIO()
    with GzipWriter(raw) as stream:
        for start in range(0, len(content), piece):
            assert stream.write(content[start : start + piece]) <= piece
        assert stream.tell() == len(content)
    return raw.getvalue()


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000, 2345])
def test_content_comes_back_and_bytes_follow_from_it(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_blocks, "_BLOCK", 100)
    content = random.Random(size).randbytes(size)
    results = []
    for cores, piece in ((1, 7), (3, 250), (8, 10000)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        results.append(packed(content, piece))
    assert results[0] == results[1] == results[2]
    assert gzip.decompress(results[0]) == content
    assert results[0][3:9] == bytes(5) + b"\0"  # no name, no date


def test_weights_are_coded_and_text_is_searched() -> None:
    """Random floats get no larger than by zlib's default; text with repetitions gets as small as by it."""
    generator = np.random.default_rng(0)
    weights = generator.standard_normal(1 << 18).astype("float32").tobytes()
    text = b"".join(b"weight %d is %f\n" % (n, n / 7) for n in range(40_000))
    for content in (weights, text, text + weights):
        compressed = packed(content, 1 << 16)
        assert gzip.decompress(compressed) == content
        assert len(compressed) < 1.02 * len(gzip.compress(content, 6))


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"), GzipWriter(Full()) as stream:
        stream.write(bytes(100))
