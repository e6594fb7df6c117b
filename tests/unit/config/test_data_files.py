"""Data files named in a model's YAML that are of another kind are refused in one line."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.sources.image import load_image
from kiln.sources.labels import load_labels
from kiln.sources.npy import load_npy
from kiln.specialize.traffic import Range, read_traffic
from PIL import Image


def npy(shape: str, data: bytes, dtype: str = "'<f4'") -> bytes:
    head = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr("x.npy", npy("(1,)", bytes(4)))
    return content.getvalue()


NOT_TENSORS = {
    "empty": b"",
    "text": b"1, 2, 3",
    "short": npy("(4,)", bytes(8)),
    "huge": npy("(1099511627776, 1099511627776)", bytes(8)),
    "negative": npy("(-1,)", bytes(8)),
    "pickle": npy("(1,)", b"cos\nsystem\n(S'x'\ntR.", "'|O'"),
    "code": npy("__import__('os').system('x')", bytes(8)),
    "deep": npy("(" * 5000, bytes(8)),
    "type": npy("(1,)", bytes(4), "'zzz'"),
    "archive": archive(),
    "cut": b"\x93NUMPY\x01",
}


@pytest.mark.parametrize("name", NOT_TENSORS)
def test_files_that_are_no_tensor(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(NOT_TENSORS[name])
    with pytest.raises(KilnError, match=r"x\.npy: not a \.npy tensor"):
        load_npy(path)


def test_tensors_of_every_rank(tmp_path: Path) -> None:
    for shape in ((), (3,), (0, 4), (2, 1, 3)):
        values = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
        np.save(tmp_path / "x.npy", values)
        found = load_npy(tmp_path / "x.npy")
        assert found.shape == shape and (found == values).all() and found.flags.writeable


def test_damaged_pictures(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(content, "PNG")
    whole, path = content.getvalue(), tmp_path / "x.png"
    for index in range(8, len(whole), 3):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0xFF]) + whole[index + 1 :])
        try:
            load_image(path)
        except KilnError as error:
            assert "cannot be read as an image" in str(error)


def test_lists_inside_lists_and_long_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 6000):
        path.write_text(text)
        with pytest.raises(KilnError, match="not valid JSON"):
            read_json(path)
        with pytest.raises(KilnError, match="class names"):
            load_labels({"kind": "json", "source": {"kind": "file", "path": str(path)}})
    path.write_text(json.dumps({"seq": 1}))
    table = tmp_path / "t.csv"
    table.write_text(f"seq,count\n{'9' * 6000},1\n")
    with pytest.raises(KilnError, match="is not a whole number of at most 18 digits"):
        read_traffic(table, {"seq": Range(1, 8, 1)})
