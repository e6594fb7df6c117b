"""kiln.build: wrong arguments are KilnError, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kiln
import pytest


class ModelInMemory:
    """A model in memory, as far as it is read before it is written."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        return b""


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("resnet", {"tarket": "x"}, "unknown option 'tarket'; did you mean 'target'?"),
        ("resnet,magika", {}, "build: 'resnet,magika': one model and one target are allowed"),
        ("resnet", {"target": "host,armv7"}, "build: 'host,armv7': one model and one target are allowed"),
        ("", {}, "build: model='', expected: what to build: a model's name"),
        ("a\0b", {}, "build: model 'a\\x00b': no path has a null byte"),
        ("resnet", {"target": None}, "build: target of type NoneType, a text is expected: what to build for"),
        ("resnet", {"target": ["host"]}, "build: target of type list, a text is expected"),
        ("resnet", {"target": " "}, "build: target=' ', expected: what to build for"),
        ("resnet", {"byoc": ["onednn"]}, "build: byoc of type list, a text is expected"),
        ("resnet", {"dump": True}, "build: dump of type bool, a text is expected: dump=1"),
        (ModelInMemory(), {"name": None}, "build: name 'None' must be a C identifier"),
        (b"resnet", {}, "build: a model of type bytes, allowed is a name"),
        (3, {}, "build: a model of type int, allowed is a name, a path, an onnx.ModelProto"),
        ("resnet", {"args": (1,)}, "build: args are for a torch.nn.Module, the model is of type str"),
        ("resnet", {"dynamic_shapes": {}}, "build: dynamic_shapes are for a torch.nn.Module, the model is"),
    ],
)
def test_wrong_arguments(tmp_path: Path, model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kiln.KilnError) as raised:
        kiln.build(model, folder=tmp_path, **options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (None, "build: folder of type NoneType: a path is expected, such as '.'"),
        (b"x", "build: folder b'x': a path is expected"),
        ("absent", "build: folder absent: no such folder; make it first"),
    ],
)
def test_wrong_folders(folder: Any, message: str) -> None:
    for model in ("resnet", ModelInMemory()):
        with pytest.raises(kiln.KilnError) as raised:
            kiln.build(model, folder=folder)
        assert str(raised.value).startswith(message)


def test_the_commands_error_is_the_exception(tmp_path: Path) -> None:
    with pytest.raises(kiln.KilnError, match=r"^unknown model 'resnte'; did you mean 'resnet'\?"):
        kiln.build("resnte", folder=tmp_path)
