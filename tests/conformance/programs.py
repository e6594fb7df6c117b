"""ONNX graphs imported, simplified, lowered and compiled as one program, and run at any sizes."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from kiln.config import sizes
from kiln.emit.objects import compile_all
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import lower
from kiln.plan.lifetimes import root_of
from symbolic import Array, Dims, imported

from .lowered import Memory, runnable


class Program:
    """The kernels of the ONNX file `path`, compiled for x86_64 and loaded into this process.

    `dims`: the ranges of the dynamic dimensions.
    """

    def __init__(self, path: Path, dims: Dims | None = None) -> None:
        mod, _ = imported(path, dims or {})
        self.steps = lower(simplify(mod), "m", runnable("x86_64"), "pthread")
        self.tensors = {tensor["name"]: tensor for tensor in self.steps.describe()["tensors"]}
        self.kernels = {kernel["symbol"]: kernel for kernel in self.steps.kernels}
        target = path.with_suffix(".o")
        compile_all(
            self.steps.functions, runnable("x86_64"), target, {"name": "m", "kernels": self.steps.kernels}
        )
        subprocess.run(["cc", "-shared", "-o", target.with_suffix(".so"), target], check=True)
        self.object = target
        self._library = ctypes.CDLL(str(target.with_suffix(".so")))

    def run(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
        """The outputs at the sizes `dims`, every tensor between guards, in memory for the greatest sizes."""
        memory = {
            name: Memory(tensor["bytes"], 64) for name, tensor in self.tensors.items() if not tensor["alias"]
        }
        given = dict(zip(self.steps.inputs, inputs, strict=True))
        for name, value in {**self.steps.params, **given}.items():
            memory[name].bytes[: value.nbytes] = np.frombuffer(np.ascontiguousarray(value).tobytes(), "u1")
        for step in self.steps.steps:
            arguments = [
                memory[root_of(self.tensors, argument)].pointer
                if isinstance(argument, str)
                else ctypes.c_int32(sizes.evaluate(argument["dim"], dims or {}))
                for argument in step["args"]
            ]
            if self.kernels[step["kernel"]]["parallel"]:
                tasks = sizes.evaluate(step["extent"], dims or {})
                arguments += [ctypes.c_int32(0), ctypes.c_int32(tasks)]
            getattr(self._library, step["kernel"])(*arguments)
        for name, item in memory.items():
            item.check(name)
        return [self._read(memory, name, dims or {}) for name in self.steps.outputs]

    def _read(self, memory: Mapping[str, Memory], name: str, dims: Mapping[str, int]) -> Array:
        tensor = self.tensors[name]
        shape = [sizes.evaluate(size, dims) for size in tensor["shape"]]
        raw = memory[root_of(self.tensors, name)].bytes
        dtype = np.dtype(tensor["dtype"])
        count = int(np.prod(shape, dtype="int64")) * dtype.itemsize
        return raw[:count].view(dtype).reshape(shape).copy()
