"""Damaged .npz files are refused in one line that names the file and the array."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kiln.errors import KilnError
from kiln.sources.npy import load_npz


def archive(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return content.getvalue()


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=allow_pickle)
    return content.getvalue()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def test_arrays_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for save in (np.savez, np.savez_compressed):
        save(path, x=np.arange(6).reshape(2, 3), mask=np.array([True, False]))
        arrays = load_npz(path)
        assert arrays["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and arrays["mask"].tolist() == [True, False]


X = npy(np.arange(8.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "it is not an archive of numpy.savez, or damaged"),
        (lambda: b"no archive", "it is not an archive of numpy.savez, or damaged"),
        (lambda: X, "it is one array of numpy.save; numpy.savez(file, NAME=array) names its input"),
        (lambda: b"PK\x03\x04" + bytes(40), "it is not an archive of numpy.savez, or damaged"),
        (lambda: archive(**{"x.npy": X})[:-30], "it is not an archive of numpy.savez, or damaged"),
        (lambda: archive(**{"x.npy": X[:-8]}), "array 'x' is damaged: EOF"),
        (lambda: archive(**{"x.npy": X[:5]}), "array 'x' is damaged: "),
        (lambda: archive(**{"x.npy": b"no array"}), "array 'x' is damaged: "),
        (lambda: flipped(archive(**{"x.npy": X}), 150), "array 'x' is damaged: Bad CRC-32"),
        (lambda: archive(**{"x.npy": X, "notes.txt": b"x"}), "its file 'notes.txt' is not an array"),
        (lambda: archive(**{"x.npy": npy(np.array([{}]), True)}), "array 'x' holds Python objects"),
        (lambda: archive(**{"x.npy": npy(np.array(["a"]))}), "array 'x' is of type <U1, allowed are numbers"),
    ],
)
def test_damaged(tmp_path: Path, content: Callable[[], bytes], message: str) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content())
    with pytest.raises(KilnError) as caught:
        load_npz(path)
    assert str(caught.value).startswith(f"{path}: not a .npz file of arrays: {message}")


def test_no_file(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "Is a directory"),
        (tmp_path / "absent.npz", "No such file or directory"),
    ):
        with pytest.raises(KilnError, match=message):
            load_npz(path)
