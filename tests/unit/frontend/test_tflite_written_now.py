"""TFLite files as ai-edge-quantizer writes them: operators by their new number alone, weights after a
DEQUANTIZE, and float operators with weights of 8 and 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tflite
import tvm
from ai_edge_litert import schema_py_generated as schema
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.frontend.tflite.files import builtin_of, packed, rounds_activations, rounds_to_levels
from kiln.golden.reference import open_reference
from relaxed import virtual_machine
from tflite_files import Node, Tensor, write_graph

Array = npt.NDArray[Any]
OPERATORS = schema.BuiltinOperator
WEIGHTS = np.random.default_rng(5).integers(-128, 128, (3, 2, 2, 4)).astype(np.int8)
SCALES = [0.01, 0.02, 0.005]


def run(path: Path, x: Array) -> Array:
    module = import_model(path, ImportOptions("model"))[0]
    machine = virtual_machine(module)
    result: Array = machine["main"](tvm.runtime.tensor(x)).numpy()
    return result


def new_numbers(path: Path) -> Path:
    """The file without the older field of 8 bits."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    for code in model.operatorCodes:
        code.deprecatedBuiltinCode = 0
    path.write_bytes(packed(model))
    return path


def upsampling(path: Path, *, dequantised: bool) -> Path:
    """A TRANSPOSE_CONV of floats with int8 weights, which it reads directly or after a DEQUANTIZE."""
    options = schema.TransposeConvOptionsT()
    options.strideW = options.strideH = 2
    options.padding = schema.Padding.VALID
    tensors = [
        Tensor("x", (1, 3, 3, 4)),
        Tensor("w", (3, 2, 2, 4), "int8", SCALES, data=WEIGHTS),
        Tensor("size", (4,), "int32", data=np.array([1, 6, 6, 3], np.int32)),
        Tensor("y", (1, 6, 6, 3)),
        Tensor("real", (3, 2, 2, 4)),
    ]
    nodes = [Node(OPERATORS.TRANSPOSE_CONV, options, [2, 4 if dequantised else 1, 0], [3])]
    if dequantised:
        nodes.insert(0, Node(OPERATORS.DEQUANTIZE, None, [1], [4]))
    return write_graph(path, tensors, nodes, [0], [3])


@pytest.mark.parametrize("dequantised", [False, True])
def test_operators_have_new_numbers_and_narrow_weights(tmp_path: Path, dequantised: bool) -> None:
    """The package `tflite` reads 0, ADD, for every operator of such a file."""
    path = new_numbers(upsampling(tmp_path / "net.tflite", dequantised=dequantised))
    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    assert model.OperatorCodes(0).BuiltinCode() == 0, "the package reads the new field: builtin_of can go"
    assert builtin_of(model.OperatorCodes(0)) == (
        OPERATORS.DEQUANTIZE if dequantised else OPERATORS.TRANSPOSE_CONV
    )
    x = np.random.default_rng(6).normal(size=(1, 3, 3, 4)).astype(np.float32)
    real = WEIGHTS.astype(np.float32) * np.array(SCALES, np.float32).reshape(3, 1, 1, 1)
    # Windows do not overlap: each element makes a block of 2 x 2.
    want = np.einsum("bhwi,oyxi->bhywxo", x, real).reshape(1, 6, 6, 3)
    np.testing.assert_allclose(run(path, x), want, rtol=1e-5, atol=1e-5)
    # Behind a DEQUANTIZE LiteRT computes floats; directly it rounds the input to 8 bits.
    near = 1e-5 if dequantised else 0.03 * np.abs(want).max()
    np.testing.assert_allclose(open_reference(path).run([x])[0], want, atol=near)


@pytest.mark.parametrize("dtype", ["int8", "int4", "float32"])
def test_float_operators_with_narrow_weights_round_activations(tmp_path: Path, dtype: str) -> None:
    """Activations of operators with weights of 4 bits count as rounded, as LiteRT rounds them too."""
    narrow = dtype != "float32"
    weights = np.ones((2, 4), np.int8 if narrow else np.float32)
    tensors = [
        Tensor("x", (1, 4)),
        Tensor("w", (2, 4), "int8" if narrow else dtype, 0.1 if narrow else None, data=weights),
        Tensor("y", (1, 2)),
    ]
    path = tmp_path / "net.tflite"
    node = Node(OPERATORS.FULLY_CONNECTED, schema.FullyConnectedOptionsT(), [0, 1], [2])
    write_graph(path, tensors, [node], [0], [2])
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    if dtype == "int4":
        model.subgraphs[0].tensors[1].type = schema.TensorType.INT4
    written = tflite.Model.GetRootAsModel(packed(model), 0)
    assert rounds_activations(written) == narrow
    assert not rounds_to_levels(written)
