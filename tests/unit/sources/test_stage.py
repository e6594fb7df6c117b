"""The fetch stage: it writes the whole file or nothing, and reports an error in one line."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import IO

import numpy as np
import onnx
import pytest
from kiln.__main__ import main
from kiln.files import write_json
from kiln.sources.onnx_data import external_files

BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x, bool c) => (float[1,4] y) {
  b = Add(x, w)
  y = If (c) <
    then_branch = one () => (float[1,4] p) { p = Neg(b) },
    else_branch = two () => (float[1,4] q) { v = Constant<value = float[4] {1, 2, 3, 4}>() q = Mul(b, v) }>
}"""


def run(tmp_path: Path, path: Path, **more: str) -> int:
    write_json(tmp_path / "fetch.json", {"source": {"kind": "file", "path": str(path), **more}})
    return main(
        ["fetch", "--config", str(tmp_path / "fetch.json"), "--out", str(tmp_path / "out" / "net.onnx")]
    )


def test_copies(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    assert run(tmp_path, tmp_path / "net.onnx") == 0
    assert (tmp_path / "out" / "net.onnx").read_bytes() == b"abc"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net.onnx"]


def test_mismatch_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    assert run(tmp_path, tmp_path / "net.onnx", sha256="0" * 64) == 2
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.startswith("kiln: error: ")
    assert error.count("\n") == 1


def test_unwritable_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(b"abc")
    (tmp_path / "out").write_text("in the way")
    assert run(tmp_path, tmp_path / "net.onnx") == 2
    assert "cannot write" in capsys.readouterr().err


def test_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full refuses bytes as a full disk does; the half-written file must not stay."""
    (tmp_path / "net.onnx").write_bytes(b"abc")

    def write_to_full_disk(source: IO[bytes], target: IO[bytes], length: int) -> None:
        target.write(source.read(1))
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(source.read())

    monkeypatch.setattr(shutil, "copyfileobj", write_to_full_disk)
    assert run(tmp_path, tmp_path / "net.onnx") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def with_weights_beside(folder: Path) -> tuple[Path, bytes]:
    """A model with weights in two files, one of them of an operator in a branch; the same as one file."""
    model = onnx.parser.parse_model(BRANCHES)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), "w"))
    inner = model.graph.node[1].attribute[1].g.node[0].attribute[0].t
    inner.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(inner)))
    content = model.SerializeToString()
    path = folder / "net.onnx"
    onnx.save(
        model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0,
        convert_attribute=True,
    )  # fmt: skip
    return path, content


def test_weights_beside_the_model(tmp_path: Path) -> None:
    path, whole = with_weights_beside(tmp_path)
    assert [file.parent for file in external_files(path)] == [tmp_path] * 2
    assert run(tmp_path, path) == 0
    fetched = onnx.load(tmp_path / "out" / "net.onnx")
    plain = onnx.load_from_string(whole)
    (one,), (other,) = fetched.graph.initializer, plain.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other))
    branch = fetched.graph.node[1].attribute[1].g
    assert np.array_equal(onnx.numpy_helper.to_array(branch.node[0].attribute[0].t), [1, 2, 3, 4])
    assert external_files(tmp_path / "out" / "net.onnx") == []


def test_weights_that_are_not_beside_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = with_weights_beside(tmp_path)
    first, second = external_files(path)
    first.write_bytes(b"x")
    assert run(tmp_path, path) == 2
    reason = f"' ends at byte [0-9,]+ of '{first.name}', which has 1 bytes: copy both files again, or export"
    assert re.search(f"{re.escape(str(path))}: cannot read its weights: '.*{reason}", capsys.readouterr().err)
    second.unlink()
    assert run(tmp_path, path) == 2
    error = capsys.readouterr().err
    assert f"{path}: its weights are in '{second.name}', which is not in its folder: put that" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_weights_of_more_than_one_file_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Protobuf raised an error of its own, after all weights had been read."""
    path, _ = with_weights_beside(tmp_path)
    model = onnx.load(path, load_external_data=False)
    del model.graph.initializer[0].external_data[1:]  # the offset and the length, which are optional
    path.write_bytes(model.SerializeToString())
    os.truncate(tmp_path / model.graph.initializer[0].external_data[0].value, 1 << 31)
    assert run(tmp_path, path) == 2
    assert re.search(r"net.onnx: with its weights it takes 2,147,48\d,\d+ bytes, allowed: less than 2 GiB",
                     capsys.readouterr().err)  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_file_that_only_looks_like_a_model_with_weights_beside(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\xff location")
    assert run(tmp_path, tmp_path / "net.onnx") == 0


@pytest.mark.parametrize(
    "name",
    [
        b"/dev/zero",
        b"../../../../../../dev/zero",
        b"a/../../b",
        b"a\0b",
        b"\xff\xfe",
        b"",
        b"folder",
        b"zeros",
    ],
)
def test_names_of_weights_that_lead_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: bytes
) -> None:
    """SCons reads what `external_files` names, in its own process: a device would never end."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").symlink_to("/dev/zero")
    model = onnx.parser.parse_model(BRANCHES)
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type, tensor.data_location = (
        "w",
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.EXTERNAL,
    )
    tensor.dims.append(4)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "?" * len(name)
    content = model.SerializeToString().replace(b"?" * len(name), name) if name else model.SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert external_files(path) == []
    assert run(tmp_path, path) == 2
    printed = capsys.readouterr().err
    assert (
        "its weights are in " in printed
        and "which is not in its folder" in printed
        and printed.count("\n") == 1
    )
