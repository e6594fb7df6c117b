"""Sparse constants of TFLite files against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
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
from tflite_files import Node, Tensor, write_graph

BUILTIN = schema.BuiltinOperator


def level(size: int = 0, segments: Sequence[int] = (), chosen: Sequence[int] = ()) -> Any:
    """The metadata of a dense level of a size, or of a compressed one."""
    made = schema.DimensionMetadataT()
    made.format, made.denseSize = (1 if len(segments) else 0), size
    if len(segments):
        for name, values in (("Segments", segments), ("Indices", chosen)):
            vector = schema.Uint8VectorT()
            vector.values = np.asarray(values, np.uint8)
            setattr(made, f"array{name}", vector)
            setattr(made, f"array{name}Type", schema.SparseIndexVector.Uint8Vector)
    return made


def compressed(path: Path, name: str, block: int, damaged: bool = False) -> Path:
    """The file with constant `name`, a matrix, stored as rows of blocks of `block` columns."""
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    tensor = next(one for one in model.subgraphs[0].tensors if one.name == name.encode())
    rows, columns = tensor.shape
    types = schema.TensorType
    dtype = {types.FLOAT32: "float32", types.FLOAT16: "float16", types.INT8: "int8"}[tensor.type]
    buffer = model.buffers[tensor.buffer]
    parts = np.frombuffer(bytes(buffer.data), dtype).reshape(rows, columns // block, block)
    chosen = [np.nonzero(row.any(-1))[0] for row in parts]
    segments = np.cumsum([0, *(len(one) for one in chosen)])
    values = np.concatenate([row[one].reshape(-1) for row, one in zip(parts, chosen, strict=True)])
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    sparsity = schema.SparsityParametersT()
    sparsity.traversalOrder = [0, 1] + ([2] if block > 1 else [])
    sparsity.blockMap = [1] if block > 1 else []
    sparsity.dimMetadata = [level(rows), level(0, segments, np.concatenate(chosen))]
    sparsity.dimMetadata += [level(block)] if block > 1 else []
    if damaged:
        sparsity.traversalOrder[0] = 1
    tensor.sparsity = sparsity
    for code in model.operatorCodes:
        code.version = 1 if code.builtinCode == BUILTIN.DENSIFY else code.version
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def weights(dtype: str) -> Any:
    generator = np.random.default_rng(1)
    values = generator.integers(-100, 100, (8, 16)).astype(dtype) / (1 if dtype == "int8" else 100)
    blocks = generator.integers(0, 2, (8, 4, 1)).astype(bool)
    return np.where(blocks, values.reshape(8, 4, 4), 0).reshape(8, 16).astype(dtype)


def layer(path: Path, dtype: str, densify: bool) -> Path:
    """FULLY_CONNECTED with weights `w`, through a DENSIFY or not, and of float16 through a DEQUANTIZE."""
    scales = {"int8": (0.05, 0.01, 0.4)}.get(dtype, (None, None, None))
    real = "float32" if dtype == "float16" else dtype
    tensors = [
        Tensor("x", (3, 16), real, scales[0]),
        Tensor("w", (8, 16), dtype, scales[1], data=weights(dtype)),
        Tensor("d", (8, 16), dtype, scales[1]),
        Tensor("y", (3, 8), real, scales[2]),
        Tensor("f", (8, 16)),
    ]
    read = 4 if dtype == "float16" else 2 if densify else 1
    nodes = [Node(BUILTIN.FULLY_CONNECTED, schema.FullyConnectedOptionsT(), [0, read, -1], [3])]
    if dtype == "float16":
        nodes.insert(0, Node(BUILTIN.DEQUANTIZE, schema.DequantizeOptionsT(), [2], [4]))
    if densify:
        nodes.insert(0, Node(BUILTIN.DENSIFY, schema.DensifyOptionsT(), [1], [2]))
    return write_graph(path, tensors, nodes, [0], [3])


@pytest.mark.parametrize(
    ("dtype", "densify", "block"),
    [
        ("float32", False, 1),
        ("float32", False, 4),
        ("float32", True, 4),
        ("int8", True, 1),
        ("float16", True, 1),
    ],
)
def test_sparse_weights(dtype: str, densify: bool, block: int, tmp_path: Path) -> None:
    path = compressed(layer(tmp_path / "m.tflite", dtype, densify), "w", block)
    x = (np.random.default_rng(2).uniform(-1, 1, (3, 16)) * (100 if dtype == "int8" else 1)).astype(
        dtype if dtype == "int8" else "float32"
    )
    [want] = open_reference(path, "builtin_ref").run([x])
    [got] = runner(import_model(path, ImportOptions("m"))[0])([x], {})
    assert np.abs(got.astype("f8") - want.astype("f8")).max() <= (1 if dtype == "int8" else 1e-5)
    assert np.abs(want.astype("f8")).max() > 0.5


def test_damaged_sparsity_is_refused(tmp_path: Path) -> None:
    path = compressed(layer(tmp_path / "m.tflite", "float32", False), "w", 1, damaged=True)
    with pytest.raises(KilnError, match="tensor 'w' is sparse and cannot be read: its levels are"):
        import_model(path, ImportOptions("m"))
