"""kiln.build: wrong arguments are KilnError, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kiln
import pytest


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("resnet", {"tarket": "x"}, "unknown option 'tarket'; did you mean 'target'?"),
        ("resnet,magika", {}, "build: 'resnet,magika': one model and one target are allowed"),
        ("resnet", {"target": "host,armv7"}, "build: 'host,armv7': one model and one target are allowed"),
        (3, {}, "build: a model of type int, allowed is a name, a path, an onnx.ModelProto"),
        ("resnet", {"args": (1,)}, "build: args are for a torch.nn.Module, the model is of type str"),
        ("resnet", {"dynamic_shapes": {}}, "build: dynamic_shapes are for a torch.nn.Module, the model is"),
    ],
)
def test_wrong_arguments(tmp_path: Path, model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kiln.KilnError) as raised:
        kiln.build(model, folder=tmp_path, **options)
    assert str(raised.value).startswith(message)


def test_the_commands_error_is_the_exception(tmp_path: Path) -> None:
    with pytest.raises(kiln.KilnError, match=r"^unknown model 'resnte'; did you mean 'resnet'\?"):
        kiln.build("resnte", folder=tmp_path)
