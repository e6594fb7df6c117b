"""TFLite files that the stage `import` refuses: one line on stderr, status 2, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from tflite_files import Tensor, write

from .model_files import tflite_file


def test_tflite_cut_short(tmp_path: Path, refused: Any) -> None:
    content = tflite_file(tmp_path / "whole.tflite").read_bytes()
    source = tmp_path / "m.tflite"
    for length in range(1, len(content) - 4, 4):
        source.write_bytes(content[:length])
        assert str(source) in refused(source)


def test_tflite_without_its_weights(tmp_path: Path, refused: Any) -> None:
    weights = np.ones((8, 4), np.float32)
    tensors = [Tensor("x", (1, 4)), Tensor("w", (8, 4), data=weights), Tensor("y", (1, 8))]
    options = schema.FullyConnectedOptionsT()
    source = write(
        tmp_path / "m.tflite", tensors, schema.BuiltinOperator.FULLY_CONNECTED, options, [0, 1], [2]
    )
    content = source.read_bytes()
    start = content.index(weights.tobytes())
    size = int.from_bytes(content[start - 4 : start], "little")
    assert size == weights.nbytes
    source.write_bytes(content[: start - 4] + (64).to_bytes(4, "little") + content[start:])
    assert "truncated or damaged" in refused(source)


def test_tflite_with_operators_that_cannot_be_imported(tmp_path: Path, refused: Any) -> None:
    assert "custom Frobnicate (output y)" in refused(tflite_file(tmp_path / "m.tflite", "Frobnicate"))
    assert "STABLEHLO" not in refused(
        tflite_file(tmp_path / "m.tflite", schema.BuiltinOperator.HASHTABLE_SIZE)
    )
    message = refused(tflite_file(tmp_path / "m.tflite", schema.BuiltinOperator.CUMSUM, "int8"))
    assert "quantised CUMSUM (output y)" in message


def test_tflite_sizes_are_fixed(tmp_path: Path, refused: Any) -> None:
    source = tflite_file(tmp_path / "m.tflite")
    assert "axis 0 is 1 in the file" in refused(source, inputs={"x": {"shape": [2, 4]}})
    assert "no such input; known: x" in refused(source, inputs={"z": {"shape": [1, 4]}})


def test_tflite_of_a_type_or_size_that_nothing_computes(tmp_path: Path, refused: Any) -> None:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite_file(tmp_path / "m.tflite").read_bytes()))
    source = tmp_path / "m.tflite"

    def change(**values: Any) -> Path:
        for key, value in values.items():
            setattr(model.subgraphs[0].tensors[0], key, value)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        source.write_bytes(bytes(builder.Output()))
        return source

    message = refused(change(type=schema.TensorType.STRING))
    assert "m.tflite: tensor 'x' is of type string, allowed: float32, " in message
    empty = change(type=schema.TensorType.FLOAT32, shape=[0, 4])
    assert "m.tflite: input 'x' axis 0 is 0, allowed: 1 and more" in refused(empty)


@pytest.mark.parametrize(
    ("operator", "code", "told"),
    [
        ("ADD", 4, "TANH, which LiteRT does not apply, allowed: NONE, RELU, RELU_N1_TO_1, RELU6"),
        ("CONCATENATION", 1, "RELU, which LiteRT does not apply, allowed: NONE;"),
    ],
)
def test_tflite_with_an_activation_that_litert_ignores(
    tmp_path: Path, refused: Any, operator: str, code: int, told: str
) -> None:
    options = schema.AddOptionsT() if operator == "ADD" else schema.ConcatenationOptionsT()
    options.fusedActivationFunction = code
    tensors = [Tensor("x", (1, 4)), Tensor("z", (1, 4)), Tensor("y", (1 if operator == "ADD" else 2, 4))]
    number = getattr(schema.BuiltinOperator, operator)
    path = write(tmp_path / "m.tflite", tensors, number, options, [0, 1], [2])
    assert f"operator 0 ({operator}): its fused activation is {told}" in refused(path)


def test_tflite_with_an_operator_of_a_name_that_is_taken(tmp_path: Path, refused: Any) -> None:
    tensors = [Tensor("x", (1, 4)), Tensor("y", (1, 4))]
    path = write(tmp_path / "m.tflite", tensors, "kiln.loop_begin", b"", [0], [1])
    assert "custom operator 'kiln.loop_begin': the name is Kiln's own, choose another" in refused(path)
