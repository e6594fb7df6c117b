"""TFLite files imported by Kiln and by TVM alone, and run by TVM and by LiteRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite
import tvm
from ai_edge_litert import schema_py_generated as schema
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from relaxed import virtual_machine
from tflite_files import Tensor, write
from tvm.relax.frontend.tflite import from_tflite

Array = npt.NDArray[Any]
OP = schema.BuiltinOperator
OPTIONS = ImportOptions("model")
GONE = "TVM no longer has this fault: Kiln's own conversion of it can go"


def run(module: tvm.IRModule, *inputs: Array) -> Array:
    machine = virtual_machine(module)
    result: Array = machine["main"](*[tvm.runtime.tensor(value) for value in inputs]).numpy()
    return result


def imported(path: Path) -> tvm.IRModule:
    return import_model(path, OPTIONS)[0]


def stock(path: Path) -> tvm.IRModule:
    """The module that TVM's converter makes, without anything of Kiln's."""
    module = from_tflite(tflite.Model.GetRootAsModel(path.read_bytes(), 0))
    module["main"] = module["main"].without_attr("params")
    return module


def reference(path: Path, *inputs: Array, kind: str = "builtin_ref") -> Array:
    return open_reference(path, kind).run(inputs)[0]


def levels(got: Array, want: Array) -> int:
    return int(np.abs(got.astype(int) - want.astype(int)).max())


def random_int8(*shape: int) -> Array:
    return np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)


def pool(path: Path, padding: int, size: int, activation: int = 0, zero_point: int = -7) -> Path:
    options = schema.Pool2DOptionsT()
    options.padding, options.strideH, options.strideW = padding, 2, 2
    options.filterHeight = options.filterWidth = size
    options.fusedActivationFunction = activation
    edge = -(-8 // 2) if padding == schema.Padding.SAME else (8 - size) // 2 + 1
    tensors = [
        Tensor("x", (1, 8, 8, 16), "int8", 0.1, zero_point),
        Tensor("y", (1, edge, edge, 16), "int8", 0.1, zero_point),
    ]
    return write(path, tensors, schema.BuiltinOperator.AVERAGE_POOL_2D, options, [0], [1])
