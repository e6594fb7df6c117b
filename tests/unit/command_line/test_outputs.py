"""Results of commands do not replace the files that the commands read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.command_line.compare import reduce
from kiln.command_line.evaluate import evaluate
from kiln.command_line.quantise.run import quantise
from kiln.command_line.running import destination_of
from kiln.errors import KilnError
from networks import normal, save_network
from onnx import helper


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """net.onnx, net.yaml and x.npz in the current folder; data.npz is a link to x.npz."""
    monkeypatch.chdir(tmp_path)
    save_network(
        Path("net.onnx"), [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]},
        normal(1, 1.0, w=(4, 4)),
    )  # fmt: skip
    Path("net.yaml").write_text("source: {kind: file, path: net.onnx}\n")
    np.savez("x.npz", x=np.ones((3, 4), np.float32))
    Path("data.npz").symlink_to("x.npz")
    return tmp_path


HOST = destination_of("host", None)
DATA = Path("data.npz")


@pytest.mark.parametrize(
    ("out", "command"),
    [
        ("net.onnx", lambda out: quantise("net.onnx", None, out)),
        ("net.onnx", lambda out: quantise("net.yaml", DATA, out)),
        ("net.yaml", lambda out: quantise("net.yaml", None, out)),
        ("x.npz", lambda out: quantise("net.onnx", DATA, out)),
        ("net.onnx", lambda out: reduce.reduce_model("net.yaml", HOST, None, out)),
        ("x.npz", lambda out: reduce.reduce_model("net.onnx", HOST, DATA, out.with_suffix(".onnx"))),
        ("x.npz", lambda out: evaluate("net.onnx", DATA, HOST, out)),
        ("net.onnx", lambda out: evaluate("net.yaml", DATA, HOST, out)),
    ],
)
def test_a_file_that_is_read_is_not_replaced(folder: Path, out: str, command: Callable[[Path], Any]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(KilnError, match=rf"^--outp?u?t?s? {re.escape(out)}: the command reads this file"):
        command(Path(out))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_quantised_model_is_an_onnx_file(folder: Path) -> None:
    with pytest.raises(KilnError, match=r"^--out out\.json: its name must end in \.onnx"):
        quantise("net.onnx", None, Path("out.json"))
