"""One kernel to be measured: lowered on its own, with operands and rotating copies of its weights."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from kiln.config import Target
from kiln.kernels.choices import Choice, shapes_of
from kiln.kernels.pipeline import lower
from kiln.kernels.steps import Steps

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


def module_of(key: str, seed: int = 0) -> tvm.IRModule:
    """A Relax module with the convolution of a key, a bias and ReLU; operands are drawn from `seed`."""
    x_shape, w_shape, stride, dilation, groups = shapes_of(key)
    rng = np.random.default_rng(seed)
    scale = float(np.sqrt(np.prod(w_shape[:3])))
    weights = rng.standard_normal(w_shape, dtype="float32") / np.float32(scale)
    bias = rng.standard_normal(w_shape[3], dtype="float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(x_shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = relax.op.nn.conv2d(
                x, relax.const(weights), strides=stride, dilation=dilation, groups=groups,
                data_layout="NHWC", kernel_layout="HWIO",
            )  # fmt: skip
            result = relax.op.nn.relu(relax.op.add(product, relax.const(bias)))
            output = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(output)
    return builder.get()


class Subject:
    """A kernel (or several that belong together) made with one choice."""

    def __init__(self, name: str, key: str, choice: Choice, target: Target, threads: str) -> None:
        self.key, self.choice = key, choice
        self.steps: Steps = lower(
            module_of(key), name, target, threads, winograd="auto", choices={key: choice}
        )
        self.functions: Mapping[str, tvm.tirx.PrimFunc] = {
            f"{name}_{symbol}": func.with_attr("global_symbol", f"{name}_{symbol}")
            for symbol, func in self.steps.functions.items()
        }
        self.name = name

    def load(self, library: ctypes.CDLL, cold_bytes: int) -> None:
        """Make memory for every tensor, and copies of the weights of `cold_bytes` together."""
        kernels = {kernel["symbol"]: kernel for kernel in self.steps.kernels}
        rng = np.random.default_rng(1)
        memory: dict[str, Bytes] = {}
        for name, tensor in self.steps.tensors.items():
            size = int(tensor.describe(self.steps.box)["bytes"])
            memory[name] = _aligned(size)
            if name in self.steps.params:
                memory[name][:] = np.frombuffer(self.steps.params[name].tobytes(), "uint8")
            elif tensor.kind == "input":
                values = rng.standard_normal(size // 4, dtype="float32")
                memory[name][:] = np.frombuffer(values.tobytes(), "uint8")
        cold = max(self.steps.params, key=lambda name: self.steps.params[name].nbytes)
        count = max(2, min(64, -(-cold_bytes // max(1, memory[cold].nbytes))))
        self._copies = [memory[cold], *(_aligned(memory[cold].nbytes) for _ in range(count - 1))]
        for copy in self._copies[1:]:
            copy[:] = memory[cold]
        self._calls = []
        for step in self.steps.steps:
            function = getattr(library, f"{self.name}_{step['kernel']}")
            function.restype = None
            pointers = [ctypes.c_void_p(memory[name].ctypes.data) for name in step["args"]]
            rotating = [index for index, name in enumerate(step["args"]) if name == cold]
            tasks: list[Any] = []
            if kernels[step["kernel"]]["parallel"]:
                tasks = [ctypes.c_int32(0), ctypes.c_int32(step["extent"])]
            self._calls.append((function, pointers, rotating, tasks))
        self._memory = memory
        self._turn = 0

    def run(self) -> int:
        """Run once on the next copy of the weights; nanoseconds of this thread's CPU time."""
        self._turn = (self._turn + 1) % len(self._copies)
        place = ctypes.c_void_p(self._copies[self._turn].ctypes.data)
        for _, pointers, rotating, _ in self._calls:
            for index in rotating:
                pointers[index] = place
        start = time.thread_time_ns()
        for function, pointers, _, tasks in self._calls:
            function(*pointers, *tasks)
        return time.thread_time_ns() - start

    def output(self) -> Array:
        """What the last run computed."""
        found: Array = self._memory[self.steps.outputs[0]].view("float32").copy()
        return found

    def unload(self) -> None:
        """Give the memory back."""
        del self._memory, self._copies, self._calls


def _aligned(size: int) -> Bytes:
    whole = np.zeros(size + 64, "uint8")
    start = -whole.ctypes.data % 64
    return whole[start : start + size]
