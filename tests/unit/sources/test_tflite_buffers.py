"""TFLite files whose data follow the FlatBuffer, as ai-edge-quantizer writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tflite
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.frontend.tflite.files import packed
from kiln.sources.tflite_axes import write_mended
from kiln.sources.tflite_buffers import with_data_inside
from relaxed import virtual_machine
from tflite_files import Tensor, write
from tvm.runtime import tensor

WEIGHTS = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def network(path: Path, wrong_axis: bool = False) -> Path:
    """A fully connected layer, its weights behind the FlatBuffer; `wrong_axis`: of its quantised bias."""
    tensors = [
        Tensor("x", (2, 4)),
        Tensor("w", (3, 4), data=WEIGHTS, scale=[1.0, 1.0, 1.0] if wrong_axis else None),
        Tensor("b", (3,), data=np.float32([1, 2, 3]), scale=[1.0] * 3 if wrong_axis else None, axis=3),
        Tensor("y", (2, 3)),
    ]
    inside = write(
        path,
        tensors,
        tflite.BuiltinOperator.FULLY_CONNECTED,
        schema.FullyConnectedOptionsT(),
        [0, 1, 2],
        [3],
    )
    model = schema.ModelT.InitFromPackedBuf(inside.read_bytes(), 0)
    weights = model.buffers[model.subgraphs[0].tensors[1].buffer]
    weights.data, weights.offset, weights.size = None, 1, WEIGHTS.nbytes  # 1: the place is not known yet
    weights.offset = -(-len(packed(model)) // 16) * 16
    path.write_bytes(packed(model).ljust(weights.offset, b"\0") + WEIGHTS.tobytes())
    return path


@pytest.mark.parametrize("wrong_axis", [False, True])
def test_weights_behind_the_flatbuffer_are_read(wrong_axis: bool, tmp_path: Path) -> None:
    given, out = network(tmp_path / "given.tflite", wrong_axis), tmp_path / "out.tflite"
    assert write_mended(given, out)
    x = np.float32([[1, -2, 3, 0.5], [0, 4, -1, 2]])
    expected = x @ WEIGHTS.T + np.float32([1, 2, 3])
    interpreter = Interpreter(str(out))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    np.testing.assert_allclose(interpreter.get_tensor(3), expected)
    machine = virtual_machine(import_model(out, ImportOptions("m"))[0])
    np.testing.assert_allclose(machine["main"](tensor(x)).numpy(), expected)
    assert with_data_inside(out, out.read_bytes()) == out.read_bytes()


def test_options_behind_the_flatbuffer_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "own.tflite", [Tensor("x", (2,)), Tensor("y", (2,))], "Own", b"\1\2\3", [0], [1])
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    op = model.subgraphs[0].operators[0]
    op.customOptions, op.largeCustomOptionsOffset, op.largeCustomOptionsSize = None, 1, 3
    op.largeCustomOptionsOffset = len(packed(model))
    content = with_data_inside(path, packed(model) + b"\1\2\3")
    op = schema.ModelT.InitFromPackedBuf(content, 0).subgraphs[0].operators[0]
    assert bytes(op.customOptions) == b"\1\2\3" and not op.largeCustomOptionsOffset


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    given = network(tmp_path / "given.tflite")
    content = given.read_bytes()[:-1]
    with pytest.raises(KilnError, match=rf"its data ends at byte {len(content) + 1}, the file at"):
        with_data_inside(given, content)
    assert with_data_inside(given, content[:100]) == content[:100]
