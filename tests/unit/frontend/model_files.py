"""Small model files: good ones, and those that tests damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from ai_edge_litert import schema_py_generated as schema
from tflite_files import Tensor, write

GOOD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y) { a = Relu(x) b = Exp(a) y = Add(a, b) }
"""


def onnx_file(path: Path, text: str = GOOD) -> Path:
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def tflite_file(path: Path, code: Any = schema.BuiltinOperator.RELU, dtype: str = "float32") -> Path:
    scale = 0.1 if dtype == "int8" else None
    return write(
        path, [Tensor("x", (1, 4), dtype, scale), Tensor("y", (1, 4), dtype, scale)], code, None, [0], [1]
    )
