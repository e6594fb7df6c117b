"""TFLite files of several graphs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_files import set_options


class TfliteFile:
    """A file of several graphs over float32 vectors, int32 counters and bool conditions."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.buffers = 3, [schema.BufferT()]
        self.model.operatorCodes, self.model.subgraphs = [], []

    def code(self, builtin: int) -> int:
        entry = schema.OperatorCodeT()
        entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = builtin, min(builtin, 127), 1
        self.model.operatorCodes.append(entry)
        return len(self.model.operatorCodes) - 1

    def graph(
        self, tensors: Sequence[tuple[str, str, Any]], steps: Sequence[tuple[int, Any, Any, Any]],
        inputs: Sequence[int], outputs: Sequence[int],
    ) -> None:  # fmt: skip
        """Add a graph. A tensor is (name, type, constant or shape), a step (operator, options, in, out)."""
        subgraph = schema.SubGraphT()
        subgraph.tensors, subgraph.operators, subgraph.inputs, subgraph.outputs = (
            [],
            [],
            list(inputs),
            list(outputs),
        )
        for name, dtype, value in tensors:
            tensor = schema.TensorT()
            tensor.name, tensor.type = name, getattr(schema.TensorType, dtype.upper())
            if isinstance(value, list):
                tensor.shape = value
            else:
                array = np.asarray(value, dtype)
                tensor.shape = list(array.shape)
                buffer = schema.BufferT()
                buffer.data = np.frombuffer(array.tobytes(), np.uint8)
                self.model.buffers.append(buffer)
                tensor.buffer = len(self.model.buffers) - 1
            subgraph.tensors.append(tensor)
        for builtin, options, given, results in steps:
            step = schema.OperatorT()
            step.opcodeIndex, step.inputs, step.outputs = self.code(builtin), list(given), list(results)
            if options is not None:
                set_options(step, options)
            subgraph.operators.append(step)
        self.model.subgraphs.append(subgraph)

    def write(self, path: Path) -> Path:
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        path.write_bytes(bytes(builder.Output()))
        return path
