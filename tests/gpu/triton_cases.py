"""Graphs for Triton's templates, lowered with a stand-in for its compiler, which needs no package.

The stand-in's PTX is the request itself as a comment, so that a step of the plan says which kernel, with
which constants, it launches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
import waiting
from kiln.byoc.backend import TargetFacts
from kiln.byoc.partition import Partition
from kiln.byoc.passes import ChosenBackends, Passes
from kiln.byoc.registry import load
from kiln.byoc.triton import compiler, kernel_call
from kiln.byoc.triton.compiler import CompiledKernel, KernelRequest
from kiln.config import load_target, sizes
from kiln.config.byoc import Byoc
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from kiln.sources.triton_wheel import triton_folder
from relaxed import const, module
from tvm import relax, tirx

from .graphs import clip, few_bits

Array = npt.NDArray[Any]
TARGET = load_target("cuda_sm90")
RANDOM = np.random.default_rng(23)
HERE = Path(__file__).resolve().parent


weights = partial(few_bits, RANDOM)


def dense(x: Any, depth: int, columns: int) -> Any:
    return relax.op.add(relax.op.matmul(x, const(weights(depth, columns) / 8)), const(weights(columns)))


def conv(x: Any, *shape: int, **attributes: Any) -> Any:
    filters = const(weights(*shape) / 8)
    return relax.op.nn.conv2d(x, filters, data_layout="NHWC", kernel_layout="HWIO", **attributes)


def norm(x: Any, width: int) -> Any:
    return relax.op.nn.layer_norm(x, const(weights(width)), const(weights(width)), [-1], 1e-5)


def gelu(x: Any) -> Any:
    inner = relax.op.add(relax.op.erf(relax.op.multiply(x, const(0.70710678))), const(1.0))
    return relax.op.multiply(relax.op.multiply(x, inner), const(0.5))


def heads(x: Any, shape: Sequence[Any], *, mask: Any = None, merged: bool = True) -> Any:
    """Attention of a vision transformer, (1, t, e) → (1, t, heads, size). `merged`: q, k, v of one x."""
    width = shape[-1] * shape[-2]
    q, k, v = (
        relax.op.reshape(dense(x, width, width) if merged else relax.op.multiply(x, const(factor)), shape)
        for factor in (1.0, 0.5, 2.0)
    )
    scores = relax.op.multiply(relax.op.einsum((q, k), "acbe,adbe->abcd"), const(0.25))
    scores = scores if mask is None else relax.op.add(scores, mask)
    return relax.op.einsum((relax.op.nn.softmax(scores, -1), v), "abce,aebd->acbd")


def _matmuls(q: Any, k: Any, v: Any) -> Any:
    return relax.op.matmul(relax.op.nn.softmax(relax.op.divide(relax.op.matmul(q, k), const(4.0)), -1), v)


_CAUSAL = np.triu(np.full((21, 21), -3.0e38, np.float32), 1)

# name → (shapes of the inputs, the graph, keys of the parts that become kernels of Triton)
CASES: dict[str, tuple[list[list[int]], Callable[..., Any], list[str]]] = {
    "dense": (
        [[2, 70, 45], [2, 70, 33]],
        lambda x, r: relax.op.nn.relu(relax.op.add(dense(x, 45, 33), r)),
        ["dense 2x70x45 45x33 bias residual relu"],
    ),
    "one_row": ([[1, 300]], lambda x: dense(x, 300, 10), ["dense 1x300 300x10 bias"]),
    "norm": (
        [[37, 48]],
        lambda x: gelu(dense(norm(x, 48), 48, 72)),
        ["dense 37x48 48x72 norm bias gelu"],
    ),
    "bare_norm": (
        [[5, 40]],
        lambda x: relax.op.matmul(norm(x, 40), const(weights(40, 24))),
        ["dense 5x40 40x24 norm"],
    ),
    "silu": (
        [[9, 16]],
        lambda x: (lambda y: relax.op.multiply(y, relax.op.sigmoid(y)))(dense(x, 16, 16)),
        ["dense 9x16 16x16 bias silu"],
    ),
    "tanh": ([[9, 16]], lambda x: relax.op.tanh(dense(x, 16, 16)), ["dense 9x16 16x16 bias tanh"]),
    "batched": ([[3, 9, 20], [3, 20, 40]], relax.op.matmul, ["matmul 3x9x20 3x20x40"]),
    "strided": (
        [[2, 13, 11, 5]],
        lambda x: clip(
            relax.op.add(conv(x, 3, 2, 5, 37, strides=[2, 1], padding=[1, 0, 0, 1]), const(weights(37))),
            -1.5,
            6.0,
        ),
        ["conv2d 2x13x11x5 3x2x5x37 p1x0x0x1 s2x1 bias clip"],
    ),
    "patches": (  # windows side by side, whose rows are runs of numbers in memory
        [[2, 12, 8, 3]],
        lambda x: conv(x, 4, 4, 3, 20, strides=[4, 4]),
        ["conv2d 2x12x8x3 4x4x3x20 s4x4"],
    ),
    "gaps": (  # few channels, and a dilation that takes their rows apart
        [[1, 9, 9, 6]],
        lambda x: relax.op.nn.relu(conv(x, 3, 3, 6, 16, dilation=[1, 2], padding=[1, 2, 1, 2])),
        ["conv2d 1x9x9x6 3x3x6x16 p1x2x1x2 d1x2 relu"],
    ),
    "dilated": (
        [[1, 12, 12, 72], [1, 8, 8, 48]],
        lambda x, r: relax.op.add(conv(x, 3, 3, 72, 48, dilation=[2, 2]), r),
        ["conv2d 1x12x12x72 3x3x72x48 d2x2 residual"],
    ),
    "depthwise": (
        [[2, 9, 8, 37]],
        lambda x: clip(
            relax.op.add(
                conv(x, 3, 3, 1, 37, groups=37, strides=[2, 1], padding=[1, 1, 0, 1]), const(weights(37))
            ),
            0.0,
            6.0,
        ),
        ["conv2d 2x9x8x37 3x3x1x37 g37 p1x1x0x1 s2x1 bias clip"],
    ),
    "depthwise_gaps": (
        [[1, 12, 9, 64], [1, 8, 9, 64]],
        lambda x, r: relax.op.add(conv(x, 3, 1, 1, 64, groups=64, dilation=[2, 1]), r),
        ["conv2d 1x12x9x64 3x1x1x64 g64 d2x1 residual"],
    ),
    "pointwise": ([[1, 7, 7, 33]], lambda x: conv(x, 1, 1, 33, 66), ["conv2d 1x7x7x33 1x1x33x66"]),
    "parts": (  # few pixels and many channels: the sum over the depth is divided
        [[1, 3, 3, 320], [1, 3, 3, 40]],
        lambda x, r: relax.op.nn.relu(relax.op.add(conv(x, 3, 3, 320, 40, padding=[1, 1, 1, 1]), r)),
        ["conv2d 1x3x3x320 3x3x320x40 p1x1x1x1 residual relu"] * 2,
    ),
    "attention": (
        [[1, 21, 48]],
        lambda x: heads(x, [1, 21, 3, 16]),
        ["dense 1x21x48 48x144 bias", "attention 1x21x3x16 1x21x3x16 1x21x3x16 scalar"],
    ),
    "masked": (
        [[1, 21, 40], [1, 1, 1, 21]],
        lambda x, m: heads(x, [1, 21, 2, 20], mask=m, merged=False),
        ["attention 1x21x2x20 1x21x2x20 1x21x2x20 scalar 1x1x1x21 mask multiply"],
    ),
    "causal": (
        [[1, 21, 40]],
        lambda x: heads(x, [1, 21, 2, 20], mask=const(_CAUSAL), merged=False),
        ["attention 1x21x2x20 1x21x2x20 1x21x2x20 scalar 21x21 mask multiply"],
    ),
    "matmuls": (  # keys are stored transposed, and there are more of them than queries
        [[6, 5, 16], [6, 16, 70], [6, 70, 24]],
        _matmuls,
        ["attention 6x5x16 6x16x70 6x70x24 scalar divide"],
    ),
}


def case(name: str) -> tvm.IRModule:
    shapes, graph, _ = CASES[name]
    return module([(shape, "float32") for shape in shapes], graph)


def masked(shape: list[int]) -> tvm.IRModule:
    """Attention over 21 positions with a mask of this shape."""
    return module(
        [([1, 21, 40], "float32"), (shape, "float32")],
        lambda x, m: heads(x, [1, 21, 2, 20], mask=m, merged=False),
    )


def open_rows() -> tvm.IRModule:
    """A dense layer, a convolution and attention over n positions, 1 to 20."""
    size = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, size, 32], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(heads(relax.op.nn.relu(dense(x, 32, 32)), [1, size, 2, 16]))
            flat = builder.emit(relax.op.reshape(inner, [1, size, 4, 8]))
            seen = builder.emit(conv(flat, 3, 3, 8, 24, padding=[1, 1, 1, 1]))
            output = builder.emit_output(builder.emit(relax.op.nn.relu(seen)))
        builder.emit_func_output(output)
    mod = builder.get()
    dims = {"n": {"dim": "n", "divide": 1, "min": 1, "max": 20}}
    mod["main"] = mod["main"].with_attr("kiln.dims", json.dumps(dims)).with_attr("num_input", 1)
    return mod


def stand_in(request: KernelRequest) -> CompiledKernel:
    """A CompiledKernel whose PTX is the request."""
    modules = [f".version 9.0\n.target sm_{arch}\n// SYMBOL {request.text}\n" for arch in request.archs]
    return CompiledKernel(modules, 32 * request.warps, 1024 * request.stages)


def lowered(
    mod: tvm.IRModule, precision: str, compile_kernel: Callable[[KernelRequest], CompiledKernel] = stand_in
) -> Steps:
    """The steps of a graph on sm_90."""
    facts = TargetFacts("x86_64", "avx2", 1, 90, precision, TARGET.cuda)
    passes = Passes([load("triton")], Partition(facts, ChosenBackends(Byoc())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_call, "compile_kernel", compile_kernel)
        return lower(mod, Lowering("m", TARGET, "none", external=passes, precision=precision))


def request_of(source: str) -> dict[str, Any]:
    """The request in the stand-in's PTX."""
    text: dict[str, Any] = json.loads(source.split("// ", 1)[1].splitlines()[0].split(" ", 1)[1])
    return text


class Interpreter:
    """Triton's interpreter in a process of its own. `folder`: for the arrays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, str(HERE / "triton_interpreter.py"), str(compiler._HERE)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=compiler.environment(triton_folder()),
        )  # fmt: skip

    def run(self, request: Mapping[str, Any], args: Sequence[Array | int], grid: Sequence[int]) -> None:
        """Launch a kernel; it changes the arrays in place."""
        arguments: dict[str, Any] = {}
        # JSON sorts the parameters; the order of the arguments is the template's.
        order = [name for name in _parameters(request) if name in request["types"]]
        for name, arg in zip(order, args, strict=False):
            arguments[name] = arg
            if isinstance(arg, np.ndarray):
                path = self.folder / name
                path.write_bytes(arg.tobytes())
                arguments[name] = {"file": str(path), "dtype": str(arg.dtype), "shape": arg.shape}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({**request, "grid": list(grid), "args": arguments}) + "\n")
        self.process.stdin.flush()
        with waiting.limit("a kernel in Triton's interpreter", 600):
            assert self.process.stdout.readline().strip() == "done", request
        for name, arg in zip(order, args, strict=False):
            if isinstance(arg, np.ndarray):
                arg[...] = np.frombuffer((self.folder / name).read_bytes(), arg.dtype).reshape(arg.shape)


def _parameters(request: Mapping[str, Any]) -> list[str]:
    """Names of a kernel's parameters in order, read from its template."""
    text = (compiler._HERE / "templates" / f"{request['template']}.py").read_text(encoding="utf-8")
    head = text.split(f"def {request['kernel']}(", 1)[1].split(")", 1)[0]
    return [word.split(":")[0].strip() for word in head.split(",") if word.strip()]


def run(
    steps: Steps, inputs: list[Array], dims: Mapping[str, int], interpreter: Interpreter, own: Any
) -> Array:
    """The one output, after all steps have run. `own`: launches a kernel that is not Triton's."""
    given = {**steps.params, **dict(zip(steps.inputs, inputs, strict=True))}
    values: dict[str, Array] = {name: np.ascontiguousarray(array) for name, array in given.items()}
    for name, tensor in steps.tensors.items():
        shape = [sizes.evaluate(size, dims) for size in tensor.shape]
        if tensor.alias is not None and tensor.alias in values:
            values[name] = values[tensor.alias].reshape(shape)
        if name not in values:
            values[name] = np.full(shape, 99 if "int" in tensor.dtype else np.nan, tensor.dtype)
    kernels = {kernel.symbol: kernel for kernel in steps.kernels}
    for step in steps.steps:
        args = [values[arg] if isinstance(arg, str) else sizes.evaluate(arg.dim, dims) for arg in step.args]
        assert step.launch is not None
        grid = [sizes.evaluate(extent, dims) for extent in step.launch.grid]
        code = kernels[step.kernel].external
        if code is None:
            own(step.kernel, args, grid, step.launch.block)
        else:
            assert args[-2:] == [0, 0]  # the null pointers that follow the parameters
            interpreter.run(request_of(code.source), args, grid)
    return values[steps.outputs[0]]
