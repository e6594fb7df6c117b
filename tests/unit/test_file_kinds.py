"""The error about a file that is not a model names its kind, and how to make a model."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest
from kiln.command_line.model_files import graph_of
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.file_kinds import kind_of
from kiln.frontend.onnx.model import read as read_onnx
from kiln.frontend.tflite.model import read as read_tflite
from kiln.sources.torch_archive import read_archive

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
KINDS = {
    "lfs": (POINTER, "'git lfs pull' fetches the file"),
    "page": (b"\n<!DOCTYPE html><html>404</html>", "a web page, as of a download that failed"),
    "text": (b"This is a README, not a model.\n", "plain text"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(40), "tf.lite.TFLiteConverter writes a .tflite file"),
    "weights": (struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(4), "a safetensors file"),
    "llama": (b"GGUF" + bytes(40), "holds weights without a graph; torch.export.save"),
    "pickle": (b"\x80\x02}q\x00.", "a Python pickle"),
    "packed": (b"\x1f\x8b\x08" + bytes(20), "compressed by gzip; unpack it first"),
    "array": (b"\x93NUMPY\x01\x00", "an array of NumPy"),
}
ARCHIVES = {
    "state": ({"archive/data.pkl": b"\x80\x02}q\x00."}, "a Python pickle, such as torch.save writes"),
    "script": (
        {"net/data.pkl": b"", "net/code/__torch__.py": b""},
        "a TorchScript archive; torch.export.save",
    ),
    "keras3": ({"config.json": b"{}", "model.weights.h5": b""}, "a Keras model"),
    "arrays": ({"x.npy": b""}, "arrays of NumPy"),
    "zip": ({"net.onnx": b""}, "a ZIP archive; unpack it first"),
}


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.fixture(params=[*KINDS, *ARCHIVES])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file without a suffix, and a part of the error about it."""
    path = tmp_path / "file"
    if request.param in KINDS:
        content, told = KINDS[request.param]
        path.write_bytes(content)
        return path, told
    members, told = ARCHIVES[request.param]
    return archive(path, members), told


def test_under_each_ending(case: tuple[Path, str]) -> None:
    path, told = case
    for suffix, read, expected in (
        (".onnx", read_onnx, "not an ONNX model: the file is "),
        (".tflite", read_tflite, "not a TFLite model: the file is "),
        (".pt2", read_archive, "not an archive of torch.export: the file is "),
    ):
        named = path.rename(path.with_suffix(suffix))
        with pytest.raises(KilnError) as refused:
            read(named)
        assert str(refused.value).startswith(f"{named}: {expected}") and told in str(refused.value)
        path = named


def test_under_other_endings_and_none(case: tuple[Path, str]) -> None:
    path, told = case
    for name in ("file", "net.pt", "net.bin"):
        path = path.rename(path.with_name(name))
        with pytest.raises(KilnError) as refused:
            load_model(str(path))
        assert told in str(refused.value)
        assert str(refused.value).endswith("; allowed: .onnx, .tflite, .pt2")


@pytest.mark.parametrize(("suffix", "kind"), [(".onnx", "an ONNX"), (".tflite", "a TFLite")])
def test_commands_that_read_the_graph(suffix: str, kind: str, tmp_path: Path) -> None:
    """compare and reduce say of a file that is not a model what a build says of it."""
    path = tmp_path / f"net{suffix}"
    path.write_text("not a model\n")
    with pytest.raises(KilnError, match=rf"net{suffix}: not {kind} model: the file is plain text$"):
        graph_of(load_model(str(path)), tmp_path, "compare", (".onnx", ".tflite"))


def test_models_under_the_ending_of_another(tmp_path: Path) -> None:
    net = tmp_path / "net.onnx"
    net.write_bytes(b"\x80\x02\x00\x00TFL3" + bytes(60))  # begins like a pickle, too
    with pytest.raises(
        KilnError, match=r"not an ONNX model: the file is a TFLite model; its name must end in"
    ):
        read_onnx(net)
    net = net.rename(tmp_path / "net.tflite")
    assert kind_of(net) == "a TFLite model; its name must end in .tflite"
    net.write_bytes(b"\x08\x08\x12\x04test" + bytes(60))
    with pytest.raises(KilnError, match=r"the file is an ONNX model; its name must end in \.onnx"):
        read_tflite(net)
    archive(net, {"net/models/model.json": b"{}"})
    with pytest.raises(
        KilnError, match=r"the file is an archive of torch.export; its name must end in \.pt2"
    ):
        read_tflite(net)


def test_folders_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    with pytest.raises(KilnError, match=r"a folder, not a file; allowed: \.onnx"):
        load_model(str(tmp_path / "saved"))
    (tmp_path / "saved/saved_model.pb").write_bytes(b"\x08\x01\x12\x00")
    with pytest.raises(KilnError, match=r"TensorFlow's SavedModel; tf\.lite.TFLiteConverter writes"):
        load_model(str(tmp_path / "saved"))
    with pytest.raises(KilnError, match="a graph of TensorFlow"):
        load_model(str(tmp_path / "saved/saved_model.pb"))
    with pytest.raises(KilnError, match=r"net\.pt': no such file; allowed: \.onnx"):
        load_model(str(tmp_path / "net.pt"))
    for device in ("/dev/null", "/dev/zero"):
        with pytest.raises(KilnError, match=r"neither a file nor a folder; allowed: \.onnx"):
            load_model(device)
    (tmp_path / "one.bin").write_bytes(b"\x08")
    with pytest.raises(KilnError, match=r"one\.bin'"):
        load_model(str(tmp_path / "one.bin"))
    (tmp_path / "empty.pt").touch()
    with pytest.raises(KilnError, match="an empty file"):
        load_model(str(tmp_path / "empty.pt"))
