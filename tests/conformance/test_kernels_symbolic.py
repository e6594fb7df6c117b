"""Whole modules with dynamic sizes, lowered once, at many sizes, against TVM's own kernels."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.config import sizes
from kiln.emit.objects import compile_all
from kiln.golden.reference import open_reference
from kiln.lower.pipeline import Lowering, lower
from kiln.plan.lifetimes import root_of
from kiln.tir.kernel_name import digest
from relaxed import virtual_machine
from symbolic import write
from tvm import relax, tirx
from tvm.relax import op

from .lowered import Array, close, const, loaded, runnable_alone
from .programs import Program

RNG = np.random.default_rng(5)
BOX = {"n": (1, 40), "m": (1, 9)}
TIMES = {"2m": ("m", 2), "4n": ("n", 4)}


def weights(*shape: int) -> Any:
    return const(np.random.default_rng(shape).uniform(-1, 1, shape).astype("f4"))


def build(shapes: Sequence[Sequence[Any]], body: Callable[..., Any], reference: bool = False) -> tvm.IRModule:
    """A module whose shapes may name n, m, 4n and 2m; its dimensions are said in main's attribute.

    `reference`: 4n and 2m are symbols of their own, since TVM's virtual machine learns n from no product.
    """
    symbols: dict[Any, Any] = {name: tirx.Var(name, "int64") for name in BOX}
    for name, (of, times) in TIMES.items():
        symbols[name] = tirx.Var(name, "int64") if reference else symbols[of] * times
    builder = relax.BlockBuilder()
    arguments = [
        relax.Var(f"x{at}", relax.TensorType([symbols.get(s, s) for s in shape], "float32"))
        for at, shape in enumerate(shapes)
    ]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = body(*arguments, **{k: v for k, v in symbols.items() if k in body.__code__.co_varnames})
            output = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(output)
    mod = builder.get()
    named = {TIMES.get(size, (size,))[0] for shape in shapes for size in shape}
    used = named & set(BOX)
    dims = {n: {"dim": n, "divide": 1, "min": BOX[n][0], "max": BOX[n][1]} for n in sorted(used)}
    attributes = {"num_input": len(shapes), "kiln.dims": json.dumps(dims)}
    mod["main"] = mod["main"].with_attrs(attributes)
    return mod


class Lowered:
    """The steps of a module, compiled and loaded."""

    def __init__(self, mod: tvm.IRModule, target: str, folder: Path, winograd: str = "off") -> None:
        self.steps = lower(mod, Lowering("m", runnable_alone(target), "pthread", winograd=winograd))
        self.tensors = {t.name: t for t in self.steps.record().tensors}
        self.kernels = {kernel.symbol: kernel for kernel in self.steps.kernels}
        path = folder / "kernels.o"
        compile_all(self.steps.functions, runnable_alone(target), path, "m", self.steps.kernels)
        self.library = loaded(path)

    def run(self, inputs: Sequence[Array], dims: Mapping[str, int]) -> Array:
        """The output; every tensor has memory for the greatest sizes, as in the plan."""
        memory = {name: np.full(t.bytes + 64, 0x5A, "u1") for name, t in self.tensors.items() if not t.alias}
        for name, value in self.steps.params.items():
            memory[name][: value.nbytes] = np.frombuffer(value.tobytes(), "u1")
        for name, value in zip(self.steps.inputs, inputs, strict=True):
            memory[name][: value.nbytes] = np.frombuffer(value.tobytes(), "u1")
        for step in self.steps.steps:
            arguments: list[Any] = [
                ctypes.c_void_p(memory[root_of(self.tensors, arg)].ctypes.data)
                if isinstance(arg, str)
                else ctypes.c_int32(sizes.evaluate(arg.dim, dims))
                for arg in step.args
            ]
            if self.kernels[step.kernel].parallel:
                tasks = sizes.evaluate(step.extent, dims)
                for first in range(0, tasks, 3):
                    span = ctypes.c_int32(first), ctypes.c_int32(min(first + 3, tasks))
                    getattr(self.library, step.kernel)(*arguments, *span)
            else:
                getattr(self.library, step.kernel)(*arguments)
        (name,) = self.steps.outputs
        shape = [sizes.evaluate(size, dims) for size in self.tensors[name].shape]
        raw = memory[root_of(self.tensors, name)]
        assert (raw[self.tensors[root_of(self.tensors, name)].bytes :] == 0x5A).all()
        return raw[: 4 * int(np.prod(shape))].view("f4").reshape(shape).copy()


def _attention(q: Any, k: Any) -> Any:
    return op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1])), axis=-1)


def _halves(x: Any) -> Any:
    half = op.nn.max_pool2d(x, pool_size=[2, 2], padding=1, strides=[2, 2], layout="NHWC")
    return op.concat([half, op.exp(half)], axis=1)


def _depthwise(x: Any, kernel: int, channels: int, **attrs: Any) -> Any:
    attrs.setdefault("padding", kernel // 2)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return op.nn.conv2d(x, weights(kernel, kernel, 1, channels), groups=channels, **layouts, **attrs)


def _conv(x: Any, *shape: int, padding: int = 0, **attrs: Any) -> Any:
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return op.nn.conv2d(x, weights(*shape), padding=padding, **layouts, **attrs)


def _bottleneck(x: Any) -> Any:
    """Producers that write into tensors with a border; one of them is read without it, too."""
    wide = op.nn.relu(_conv(x, 1, 1, 6, 20))
    deep = op.nn.relu(_depthwise(wide, 5, 20, strides=[1, 2]))
    narrow = op.add(_conv(deep, 1, 1, 20, 7), weights(7))
    return op.add(_conv(narrow, 3, 3, 7, 7, padding=1), narrow)


def _residual(x: Any) -> Any:
    """Convolutions, of which the first writes into a tensor with a border and the second adds to it."""
    first = op.nn.relu(op.add(_conv(x, 3, 3, 3, 13, padding=1, strides=[2, 2]), weights(13)))
    return op.add(_conv(first, 3, 3, 13, 13, padding=1), first)


CASES: dict[str, tuple[Sequence[Sequence[Any]], Callable[..., Any]]] = {
    "elementwise": ([("n", 7), (7,)], lambda x, y: op.tanh(op.add(op.nn.relu(x), y))),
    "last axis": ([(3, "n")], lambda x: op.sigmoid(x)),
    "two sizes": ([("m", "n")], lambda x: op.multiply(x, x)),
    "sum": ([(5, "n")], lambda x: op.sum(x, axis=[1])),
    "mean of rows": ([("n", 33)], lambda x: op.mean(x, axis=[0])),
    "dense": ([("m", "n", 19)], lambda x: op.nn.relu(op.add(op.matmul(x, weights(19, 37)), weights(37)))),
    "products": ([("m", "n", 8), ("m", "n", 8)], _attention),
    "layer norm": (
        [("n", 24)],
        lambda x: op.nn.layer_norm(x, weights(24), weights(24), axes=[-1], epsilon=1e-5),
    ),
    "merged axes": (
        [("m", "n", 6)],
        lambda x, m, n: op.nn.relu(op.reshape(op.exp(x), relax.ShapeExpr([m * n, tirx.IntImm("int64", 6)]))),
    ),
    "concat": ([("n", 5), ("n", 5)], lambda x, y: op.concat([op.nn.relu(x), y], axis=0)),
    "transpose": ([(4, "n", 3)], lambda x: op.nn.relu(op.permute_dims(x, [2, 1, 0]))),
    "channels last": ([("m", 20, "n", "m")], lambda x: op.nn.relu(op.permute_dims(x, [0, 2, 3, 1]))),
    "channels first": (
        [("m", "n", "m", 20), (20, 1, 1), ("m", 20, "n", "m")],
        lambda x, bias, y: op.add(op.add(op.permute_dims(x, [0, 3, 1, 2]), bias), y),
    ),
    "two dynamic axes": (
        [("4n", "2m"), ("2m", "4n")],
        lambda x, y: op.multiply(op.permute_dims(x, [1, 0]), y),
    ),
    "short rows": (
        [("m", 20, "n", "m"), (20, 1, 1)],
        lambda x, scale: op.nn.relu(op.multiply(x, scale)),
    ),
    "rows in one": ([("n", "m", 3, "m")], lambda x: op.exp(op.add(x, x))),
    "woven planes": ([("m", 3, "n", 21)], lambda x: op.nn.relu(op.permute_dims(x, [0, 2, 3, 1]))),
    "woven open planes": (
        [(3, "m", "n"), (3,)],
        lambda x, scale: op.multiply(op.permute_dims(x, [1, 2, 0]), scale),
    ),
    "woven phases": (
        [("m", "n", 2, 2)],
        lambda x: op.sigmoid(op.permute_dims(x, [0, 2, 1, 3])),
    ),
    "convolution": (
        [("m", "n", 9, 5)],
        lambda x: op.nn.relu(
            op.nn.conv2d(
                x, weights(3, 3, 5, 17), padding=1, strides=[2, 1], data_layout="NHWC", kernel_layout="HWIO"
            )
        ),
    ),
    "convolutions of long lines": ([("m", 7, "4n", 3)], _residual),
    "groups in long lines": (
        [("m", "m", "4n", 6)],
        lambda x: op.nn.relu(_conv(x, 1, 2, 3, 18, padding=1, groups=2)),
    ),
    "convolution of rows": (
        [(1, "n", 9, 5)],
        lambda x: op.nn.relu(_conv(x, 3, 3, 5, 17, padding=1, strides=[2, 1])),
    ),
    "winograd of rows": (
        [(1, "n", 6, 5)],
        lambda x: op.nn.relu(op.add(_conv(x, 3, 3, 5, 19, padding=1), weights(19))),
    ),
    "patches of few pixels": (
        [("m", 4, 4, 48)],
        lambda x: op.add(_conv(x, 2, 2, 48, 16, strides=[2, 2]), weights(16)),
    ),
    "depthwise": (
        [(1, "n", 9, 12)],
        lambda x: op.nn.conv2d(
            x, weights(3, 3, 1, 12), padding=1, groups=12, data_layout="NHWC", kernel_layout="HWIO"
        ),
    ),
    "depthwise in both axes": ([("m", "m", "n", 33)], lambda x: op.nn.relu(_depthwise(x, 3, 33))),
    "depthwise 5x5 by twos": ([(1, "n", "m", 16)], lambda x: _depthwise(x, 5, 16, strides=[2, 2])),
    "depthwise dilated": ([(1, "m", "n", 8)], lambda x: _depthwise(x, 3, 8, padding=[1, 2], dilation=[1, 2])),
    "haloed": ([(1, "n", "m", 6)], _bottleneck),
    "products of sizes": (
        [(1, "4n", "2m", 6)],
        lambda x: op.nn.relu(_conv(_depthwise(_conv(x, 1, 1, 6, 9), 3, 9, strides=[2, 1]), 1, 1, 9, 5)),
    ),
    "winograd": (
        [("m", "n", "m", 5)],
        lambda x: op.nn.relu(op.add(_conv(x, 3, 3, 5, 19, padding=1), weights(19))),
    ),
    "pooling": (
        [(1, "n", "m", 5)],
        lambda x: op.nn.max_pool2d(x, pool_size=[3, 3], padding=1, strides=[1, 1], layout="NHWC"),
    ),
    "padding of images with channels first": (
        [(2, 3, 4, "n")],
        lambda x: op.max(op.nn.pad(op.nn.relu(x), [0, 0, 1, 0, 2, 2, 0, 0], pad_value=1.5), axis=[1]),
    ),
    "a half taken twice": ([(1, "n", 4, 5)], _halves),
}
POINTS = [(1, 1), (1, 9), (40, 9), (13, 2), (16, 3), (17, 8), (32, 5), (7, 7)]


# Whose kernels differ from those of other cases in their sizes alone.
HEAVY = (
    "two sizes", "woven open planes", "depthwise", "depthwise 5x5 by twos", "depthwise dilated",
    "convolution", "winograd",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.heavy] * (n in HEAVY)) for n in CASES])
def test_one_build_for_all_sizes(name: str, tmp_path: Path) -> None:
    shapes, body = CASES[name]
    mod = build(shapes, body)
    reference = virtual_machine(build(shapes, body, reference=True))["main"]
    lowered = Lowered(mod, "x86_64", tmp_path, "f4" if "winograd" in name else "off")
    for n, m in POINTS:
        dims = {"n": n, "m": m}
        known = {**dims, "4n": 4 * n, "2m": 2 * m}
        inputs = [RNG.uniform(-2, 2, [known.get(s, s) for s in shape]).astype("f4") for shape in shapes]
        want = reference(*[tvm.runtime.tensor(value) for value in inputs]).numpy()
        got = lowered.run(inputs, dims)
        assert got.shape == want.shape, dims
        close(got, want, 2e-5)


OPAQUE = """
g (float[n,m] x, int64[k] rows, float[k,m] new, int64[k,1] places, int64[k,m] lines)
=> (float[n,m] a, float[n,m] b, float[n,m] c, float[n,m] d, float[n,m] e, float[n,m] s, int64[n,m] t,
    float[n,?] h, int64[n,?] i)
{
  a = CumSum(x, zero)
  b = CumSum<reverse = 1>(x, one)
  c = ScatterND<reduction: string = "add">(x, places, new)
  d = ScatterElements<axis = 0, reduction: string = "max">(x, lines, new)
  twice = Add(x, x)
  f = ScatterElements<axis = 0, reduction: string = "add">(twice, lines, new)
  e = Relu(f)
  shape = Shape(x)
  all = Slice(shape, ones, twos)
  s, t = TopK<axis = 1, largest = 0>(x, all)
  rest = Sub(all, ones)
  half = Max(rest, ones)
  h, i = TopK<axis = 1>(x, half)
}
"""


def test_scans_and_scatters_of_dynamic_sizes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        OPAQUE,
        18,
        zero=np.array(0),
        one=np.array(1),
        ones=np.array([1]),
        twos=np.array([2]),
    )
    program = Program(path, {"n": (1, 20), "m": (1, 9), "k": (1, 33)})
    reference = open_reference(path)
    for n, m, k in ((1, 1, 1), (20, 9, 33), (7, 3, 20)):
        rows = RNG.integers(0, n, k)
        inputs = [
            RNG.normal(size=(n, m)).astype("f4"),
            rows,
            RNG.normal(size=(k, m)).astype("f4"),
            rows[:, None].copy(),
            RNG.integers(0, n, (k, m)),
        ]
        want = reference.run(inputs)
        for a, b in zip(program.run(inputs, {"n": n, "m": m, "k": k}), want, strict=True):
            close(a, b)


def test_memory_of_a_variance_over_a_dynamic_batch(tmp_path: Path) -> None:
    text = "g (float[n,16,24,32] x) => (float[n,16,24,32] y) { y = InstanceNormalization(x, s, o) }"
    s, o = (RNG.normal(size=16).astype("f4") for _ in range(2))
    path = write(tmp_path / "m.onnx", text, 17, s=s, o=o)
    program, reference = Program(path, {"n": (1, 3)}), open_reference(path)
    for n in (1, 3):
        x = RNG.normal(size=(n, 16, 24, 32)).astype("f4")
        close(program.run([x], {"n": n})[0], reference.run([x])[0], 1e-4)


def test_long_sums_of_any_length_are_added_in_parts(tmp_path: Path) -> None:
    text = """g (float[m,n,20] x) => (float[20] y, float[m] z) {
      s = Mul(x, x) y = ReduceMean<keepdims = 0>(s, a) z = ReduceMean<keepdims = 0>(s, b) }"""
    path = write(tmp_path / "m.onnx", text, 18, a=np.array([0, 1]), b=np.array([1, 2]))
    program = Program(path, {"m": (1, 4), "n": (1, 50_000)})
    for m, n in ((1, 1), (2, 511), (3, 1024), (4, 50_000)):
        x = RNG.uniform(-3, 3, (m, n, 20)).astype("f4")
        for got, axes in zip(program.run([x], {"m": m, "n": n}), ((0, 1), (1, 2)), strict=True):
            close(got, (x.astype("f8") ** 2).mean(axis=axes), 1e-6)


def test_names_do_not_make_a_kernel_another_one() -> None:
    def kernel(name: str, factor: float) -> Any:
        data = tvm.te.placeholder((8,), name=name)
        return tvm.te.create_prim_func(
            [data, tvm.te.compute((8,), lambda i: data[i] * factor, name=f"{name}y")]
        )

    assert digest(kernel("a", 2.0)) == digest(kernel("other", 2.0))
    assert digest(kernel("a", 2.0)) != digest(kernel("a", 2.5))


def test_bools_of_dynamic_shape(tmp_path: Path) -> None:
    text = """g (int64[n] x) => (bool[n] y, bool[n] z) {
      y = Cast<to = 9>(x)
      f = Cast<to = 1>(x)
      c = Cast<to = 9>(f)
      z = Not(c)
    }"""
    program = Program(write(tmp_path / "m.onnx", text), {"n": (1, 40)})
    for n in (1, 5, 40):
        x = np.arange(n, dtype="int64") % 3 - 1
        y, z = program.run([x], {"n": n})
        assert (y == (x != 0)).all() and (z == (x == 0)).all()
