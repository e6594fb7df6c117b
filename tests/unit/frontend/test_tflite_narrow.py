"""Constants of 4 and 2 bits in TFLite files, and scales of blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from symbolic import runner
from tflite_files import Node, Tensor, write, write_graph

BUILTIN = schema.BuiltinOperator
RANDOM = np.random.default_rng(3)


def _run(path: Path, x: Any) -> Any:
    return runner(import_model(path, ImportOptions("m"))[0])([x], {})[0]


@pytest.mark.parametrize(("dtype", "low", "high"), [("int4", -8, 8), ("int2", -2, 2)])
def test_packed_constants(tmp_path: Path, dtype: str, low: int, high: int) -> None:
    """Of every level, an odd number of elements."""
    levels = np.resize(np.arange(low, high), 21).reshape(3, 7).astype(np.int8)
    tensors = [
        Tensor("x", (3, 7)), Tensor("w", (3, 7), dtype, 0.5, data=levels), Tensor("d", (3, 7)),
        Tensor("y", (3, 7)),
    ]  # fmt: skip
    nodes = [
        Node(BUILTIN.DEQUANTIZE, schema.DequantizeOptionsT(), [1], [2]),
        Node(BUILTIN.ADD, schema.AddOptionsT(), [0, 2], [3]),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [3])
    x = RANDOM.standard_normal((3, 7)).astype(np.float32)
    np.testing.assert_array_equal(_run(path, x), x + 0.5 * levels.astype(np.float32))
    if dtype == "int4":
        np.testing.assert_array_equal(_run(path, x), open_reference(path, "builtin_ref").run([x])[0])


def _blocks(path: Path, change: Callable[[Any], Any] = lambda details: details) -> tuple[Path, Any]:
    """FULLY_CONNECTED with weights [4, 64] of 4 bits in blocks of 32, and the real weights."""
    levels = RANDOM.integers(-8, 8, (4, 64)).astype(np.int8)
    scales = RANDOM.uniform(0.01, 0.1, (4, 2)).astype(np.float16)
    tensors = [
        Tensor("x", (2, 64)), Tensor("w", (4, 64), "int4", 1.0, data=levels),
        Tensor("s", (4, 2), "float16", data=scales), Tensor("y", (2, 4)),
    ]  # fmt: skip
    write(path, tensors, BUILTIN.FULLY_CONNECTED, schema.FullyConnectedOptionsT(), [0, 1, -1], [3])
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    details = schema.BlockwiseQuantizationT()
    details.scales, details.blockSize = 2, 32
    quantisation = schema.QuantizationParametersT()
    quantisation.detailsType, quantisation.details = 2, change(details) or details
    model.subgraphs[0].tensors[1].quantization = quantisation
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path, levels * np.repeat(scales.astype(np.float32), 32, 1)


def test_scales_of_blocks(tmp_path: Path) -> None:
    path, weights = _blocks(tmp_path / "m.tflite")
    x = RANDOM.standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_allclose(_run(path, x), x @ weights.T, rtol=1e-5, atol=1e-5)
    path, _ = _blocks(tmp_path / "m.tflite", lambda details: setattr(details, "blockSize", 24))
    with pytest.raises(
        KilnError, match=r"tensor 'w' of type int4 has blocks of 24, allowed: a divisor of \[64\]"
    ):
        import_model(path, ImportOptions("m"))
    path, _ = _blocks(tmp_path / "m.tflite", lambda details: setattr(details, "blockSize", 16))
    with pytest.raises(KilnError, match=r"tensor 'w' of type int4 has 8 scales or zero points"):
        import_model(path, ImportOptions("m"))
    for index in (0, 99):  # a tensor without data, and none
        path, _ = _blocks(
            tmp_path / "m.tflite", lambda details, index=index: setattr(details, "scales", index)
        )
        with pytest.raises(KilnError, match=r"of type int4 has scales or zero points that cannot be read"):
            import_model(path, ImportOptions("m"))


def test_what_is_not_there(tmp_path: Path) -> None:
    tensors = [Tensor("x", (2, 4), "int4", 0.5), Tensor("y", (2, 4))]
    path = write(tmp_path / "m.tflite", tensors, BUILTIN.DEQUANTIZE, None, [0], [1])
    with pytest.raises(KilnError, match="tensor 'x' of type int4 is computed, allowed: dense constants"):
        import_model(path, ImportOptions("m"))
    tensors = [
        Tensor("x", (3,)),
        Tensor("w", (3,), "int4", 0.5, data=np.zeros(3, np.int8)),
        Tensor("y", (3,)),
    ]
    path = write(tmp_path / "m.tflite", tensors, BUILTIN.ADD, schema.AddOptionsT(), [0, 1], [2])
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    model.subgraphs[0].tensors[1].shape = [9]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    with pytest.raises(KilnError, match=r"'w' of type int4 has 4 elements, its shape \[9\] needs 9"):
        import_model(path, ImportOptions("m"))
