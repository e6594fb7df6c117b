"""Errors about files that are not models: the kind of the file, and how to make a model of it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from kiln.errors import KilnError

_EXPORT = "torch.export.save writes a .pt2 file, torch.onnx.export an .onnx file"
_KERAS = "tf.lite.TFLiteConverter writes a .tflite file"
_SAVED_MODEL = f"TensorFlow's SavedModel; {_KERAS}, tf2onnx an .onnx file"
_UNPACK = "unpack it first"
_PICKLE = f"a Python pickle, such as torch.save writes, without a graph; {_EXPORT}"
_WEIGHTS = f"which holds weights without a graph; {_EXPORT}"

# First bytes of files.
_BEGINNINGS = {
    b"version https://git-lfs": "a Git LFS pointer in place of the file; 'git lfs pull' fetches the file",
    b"\x89HDF\r\n\x1a\n": f"an HDF5 file, such as Keras writes; {_KERAS}",
    b"GGUF": f"a GGUF file, {_WEIGHTS}",
    b"\x93NUMPY": "an array of NumPy",
    b"\x1f\x8b": f"compressed by gzip; {_UNPACK}",
    b"BZh": f"compressed by bzip2; {_UNPACK}",
    b"\xfd7zXZ": f"compressed by xz; {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"compressed by Zstandard; {_UNPACK}",
    b"7z\xbc\xaf": f"a 7z archive; {_UNPACK}",
    b"Rar!": f"a RAR archive; {_UNPACK}",
    b"\x7fELF": "a program or library (ELF)",
    b"\x89PNG": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"%PDF": "a PDF document",
}
_PICKLED = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def kind_of(path: Path, content: bytes | None = None) -> str | None:
    """A noun for the file or folder `path`, with a remedy; None for a file of an unknown kind.

    `content`: the file's bytes, if they have been read already. Two formats of models are known as well, so
    that a file with another format's ending is told. Raises OSError if the file cannot be read.
    """
    if path.is_dir():
        return _SAVED_MODEL if (path / "saved_model.pb").is_file() else None
    if content is None:
        if path.stat().st_size == 0:
            return "an empty file"
        with path.open("rb") as stream:
            head = stream.read(512)
    else:
        head = content[:512]
    if head[4:8] == b"TFL3":  # the first four bytes may be any
        return "a TFLite model; its name must end in .tflite"
    for beginning, kind in _BEGINNINGS.items():
        if head.startswith(beginning):
            return kind
    if head.startswith(b"PK\x03\x04"):
        return _archive(path if content is None else io.BytesIO(content))
    if path.suffix == ".pb":
        return f"a graph of TensorFlow; {_KERAS}, tf2onnx an .onnx file"
    return _by_structure(head)


def refuse_other(path: Path, content: bytes | None, expected_kind: str) -> None:
    """Raise KilnError if a file is of a known kind that is not `expected_kind`, such as `an ONNX model`.

    `content`: the file's bytes, if they have been read already. An empty file is refused, too.
    """
    if content is None and path.stat().st_size == 0:
        raise KilnError(f"{path}: the model file is empty")
    kind = kind_of(path, content)
    if kind is not None and not kind.startswith(expected_kind):
        raise KilnError(f"{path}: not {expected_kind}: the file is {kind}")


def _by_structure(head: bytes) -> str | None:
    """The kind of a file without a fixed beginning, from its first 512 bytes."""
    if head[8:10] == b'{"' and head[5:8] == bytes(3):  # the header's length, then the header
        return f"a safetensors file, {_WEIGHTS}"
    if head.startswith(_PICKLED):
        return _PICKLE
    if head[:1] == b"\x08" and b"\x03" <= head[1:2] < b"\x80":  # the field ir_version
        return "an ONNX model; its name must end in .onnx"
    if _is_text(head):
        start = head.lstrip().lower()
        page = start.startswith((b"<!doctype html", b"<html"))
        return "a web page, as of a download that failed" if page else "plain text"
    return None


def _archive(file: Path | io.BytesIO) -> str:
    """The kind of a ZIP archive, from the names of its members."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError):
        return "a damaged ZIP archive"
    inner = {name.partition("/")[2] for name in names}
    if "data.pkl" in inner:
        script = any(name.startswith("code/") for name in inner)
        return f"a TorchScript archive; {_EXPORT}" if script else _PICKLE
    if "config.json" in names and any(name.endswith(".weights.h5") for name in names):
        return f"a Keras model; {_KERAS}"
    if "models/model.json" in inner or "serialized_exported_program.json" in names:
        return "an archive of torch.export; its name must end in .pt2"
    if names and all(name.endswith(".npy") for name in names):
        return "arrays of NumPy (.npz)"
    return f"a ZIP archive; {_UNPACK}"


def _is_text(head: bytes) -> bool:
    """Whether bytes are plain text. Files of models have control bytes near their start."""
    return all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in head[:256])
