"""Epilogues of a convolution: bias, activations, residuals, gates, quantisation, and several at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.plan.lifetimes import root_of
from kiln.tir import builder
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, Memory, close, const, module, runnable

RNG = np.random.default_rng(2)
SHAPE = (2, 7, 9, 17)
X = RNG.uniform(-1, 1, SHAPE).astype("f4")
DENSE = RNG.uniform(-1, 1, (3, 3, 17, 17)).astype("f4")
DEPTHWISE = RNG.uniform(-1, 1, (3, 3, 1, 17)).astype("f4")
BIAS = RNG.uniform(-1, 1, 17).astype("f4")
RESIDUAL = RNG.uniform(-1, 1, SHAPE).astype("f4")
GATE = RNG.uniform(0, 1, (2, 1, 1, 17)).astype("f4")

op = relax.op


def _relu6(x: Any) -> Any:
    return op.clip(x, 0, 6)


def _emitted(x: Any) -> Any:
    return relax.BlockBuilder.current().emit(x)


# name → (Relax, numpy) from the convolution's result y, its input x, a residual r and a gate g
EPILOGUES: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "nothing": (lambda y, x, r, g: y, lambda y, x, r, g: y),
    "bias": (lambda y, x, r, g: op.add(y, const(BIAS)), lambda y, x, r, g: y + BIAS),
    "bias_relu": (
        lambda y, x, r, g: op.nn.relu(op.add(y, const(BIAS))),
        lambda y, x, r, g: np.maximum(y + BIAS, 0),
    ),
    "bias_clip": (
        lambda y, x, r, g: _relu6(op.add(y, const(BIAS))),
        lambda y, x, r, g: np.clip(y + BIAS, 0, 6),
    ),
    "hard_swish": (
        lambda y, x, r, g: op.multiply(y, op.divide(_relu6(op.add(y, const(3.0))), const(6.0))),
        lambda y, x, r, g: y * np.clip(y + 3, 0, 6) / 6,
    ),
    "silu": (lambda y, x, r, g: op.nn.silu(y), lambda y, x, r, g: y / (1 + np.exp(-y))),
    "prelu": (
        lambda y, x, r, g: op.add(op.nn.relu(y), op.multiply(const(BIAS), op.minimum(y, const(0.0)))),
        lambda y, x, r, g: np.maximum(y, 0) + BIAS * np.minimum(y, 0),
    ),
    "residual": (lambda y, x, r, g: op.add(y, r), lambda y, x, r, g: y + r),
    "residual_before": (
        lambda y, x, r, g: op.nn.relu(op.subtract(r, op.add(y, const(BIAS)))),
        lambda y, x, r, g: np.maximum(r - (y + BIAS), 0),
    ),
    "own_input": (lambda y, x, r, g: op.add(y, x), lambda y, x, r, g: y + x),
    "own_input_bias_relu": (
        lambda y, x, r, g: op.nn.relu(op.add(op.add(y, const(BIAS)), x)),
        lambda y, x, r, g: np.maximum(y + BIAS + x, 0),
    ),
    "own_input_and_residual": (
        lambda y, x, r, g: op.add(op.add(y, x), r),
        lambda y, x, r, g: y + x + r,
    ),
    "gate": (lambda y, x, r, g: op.multiply(y, g), lambda y, x, r, g: y * g),
    "gate_residual": (
        lambda y, x, r, g: op.add(op.multiply(op.add(y, const(BIAS)), g), r),
        lambda y, x, r, g: (y + BIAS) * g + r,
    ),
    "residual_twice": (
        lambda y, x, r, g: op.multiply(op.add(y, r), r),
        lambda y, x, r, g: (y + r) * r,
    ),
    "costly_twice": (
        lambda y, x, r, g: op.add(op.multiply(t := _emitted(op.tanh(y)), op.subtract(r, t)), t),
        lambda y, x, r, g: np.tanh(y) * (r - np.tanh(y)) + np.tanh(y),
    ),
    "mean_follows": (
        lambda y, x, r, g: op.mean(op.nn.relu(y), [1, 2], keepdims=True),
        lambda y, x, r, g: np.maximum(y, 0).mean(axis=(1, 2), keepdims=True),
    ),
    "transposed": (
        lambda y, x, r, g: op.permute_dims(op.nn.relu(y), [0, 3, 1, 2]),
        lambda y, x, r, g: np.maximum(y, 0).transpose(0, 3, 1, 2),
    ),
    "broadcast_up": (
        lambda y, x, r, g: op.add(op.mean(y, [1, 2], keepdims=True), r),
        lambda y, x, r, g: y.mean(axis=(1, 2), keepdims=True) + r,
    ),
}


def _conv(x: Any, kind: str) -> Any:
    weights, groups = (DENSE, 1) if kind == "dense" else (DEPTHWISE, 17)
    return op.nn.conv2d(x, const(weights), padding=1, groups=groups, data_layout="NHWC", kernel_layout="HWIO")


def _conv_numpy(x: Array, kind: str) -> Array:
    weights, groups = (DENSE, 1) if kind == "dense" else (DEPTHWISE, 17)
    return arithmetic.conv2d(x, weights, padding=(1, 1, 1, 1), groups=groups)


HEAVY = pytest.mark.heavy


@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        ("dense", 0, 2),
        ("depthwise", 1, 2),
        *(pytest.param(kind, 0, 1, marks=HEAVY) for kind in ("dense", "depthwise")),
    ],
)
def test_epilogues(kind: str, first: int, step: int, tmp_path: Path) -> None:
    """Every `step`th one."""
    chosen = dict(list(EPILOGUES.items())[first::step])
    mod = module(
        [(SHAPE, "float32"), (SHAPE, "float32"), (GATE.shape, "float32")],
        lambda x, r, g: [make(_conv(x, kind), x, r, g) for make, _ in chosen.values()],
    )
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    assert "opaque" not in compiled.families
    results = compiled.run([X, RESIDUAL, GATE])
    for result, (name, (_, compute)) in zip(results, chosen.items(), strict=True):
        print(name)
        close(result, compute(_conv_numpy(X, kind), X, RESIDUAL, GATE), 2e-6)


KINDS = ("dense", "depthwise")
IN_GATE = ((0, "dense"), (1, "depthwise"))
INSIDE = ("residual", "own_input_bias_relu", "own_input_and_residual", "gate_residual", "residual_twice")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if name == INSIDE[2] or (number, kind) in IN_GATE else [HEAVY])
        for number, name in enumerate(INSIDE)
        for kind in KINDS
    ],
)
def test_epilogues_between_convolutions(name: str, kind: str, tmp_path: Path) -> None:
    """Here the operands are in the arena, where an output may take the place of its residual."""
    make, compute = EPILOGUES[name]

    def body(x: Any, r: Any, g: Any) -> Any:
        first, second = op.nn.relu(x), op.nn.relu(op.add(r, const(0.25)))
        return op.tanh(make(_conv(first, kind), first, second, g))

    mod = module([(SHAPE, "float32"), (SHAPE, "float32"), (GATE.shape, "float32")], body)
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    first, second = np.maximum(X, 0), np.maximum(RESIDUAL + np.float32(0.25), 0)
    want = compute(_conv_numpy(first, kind), first, second, GATE)
    close(compiled.run([X, RESIDUAL, GATE])[0], np.tanh(want), 2e-6)


@pytest.mark.parametrize("end", ["slice", "transpose", "square", "weights"])
def test_an_element_of_a_product_that_needs_others_of_it(end: str, tmp_path: Path) -> None:
    """y / sqrt(y[:, :1]), as in a factorisation by columns, and y + y^T: no epilogue of the product alone.

    And a a / 2 + w and a w / 2 + w, whose second tensor, a constant matrix, is not the weights alone.
    """
    half = np.arange(9, dtype="f4").reshape(3, 3)

    def body(a: Any, b: Any, c: Any) -> Any:
        if end in ("square", "weights"):
            weights = const(half)
            product = _emitted(op.matmul(a, a if end == "square" else weights))
            return op.add(op.multiply(product, const(np.float32(0.5))), weights)
        y = _emitted(op.subtract(c, _emitted(op.matmul(a, b))))
        if end == "slice":
            return op.divide(y, op.sqrt(_emitted(op.strided_slice(y, [1], [0], [1]))))
        return op.tanh(op.permute_dims(y, [0, 2, 1]))

    mod = module([((2, 3, 3), "float32")] * 3, body)
    a, b, c = (RNG.uniform(0, 1, (2, 3, 3)).astype("f4") for _ in range(3))
    y = c + 9 - a @ b
    want = y / np.sqrt(y[:, :1]) if end == "slice" else np.tanh(y.transpose(0, 2, 1))
    if end in ("square", "weights"):
        want = a @ (a if end == "square" else half) / 2 + half
    close(Compiled(mod, runnable("x86_64"), tmp_path).load().run([a, b, c + np.float32(9)])[0], want, 2e-6)


def test_a_chain_is_one_kernel(tmp_path: Path) -> None:
    mod = module(
        [(SHAPE, "float32"), (SHAPE, "float32"), (GATE.shape, "float32")],
        lambda x, r, g: op.nn.relu(
            op.add(op.multiply(op.add(op.nn.conv2d(x, const(DENSE[:1, :1]), data_layout="NHWC",
                                                   kernel_layout="HWIO"), const(BIAS)), g), r)
        ),
    )  # fmt: skip
    compiled = Compiled(mod, runnable("x86_64"), tmp_path)
    assert compiled.families == ["conv2d"]
    assert [op.name for op in compiled.result.kernels[0].ops] == [
        "nn.conv2d", "add", "multiply", "add", "nn.relu",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_an_output_takes_the_place_of_its_residual(kind: str, tmp_path: Path) -> None:
    """A chain of blocks y = relu(conv(y)) + y … needs no third tensor; the conv's own input must stay."""

    def body(x: Any) -> Any:
        value = op.nn.relu(x)
        for _ in range(3):
            value = op.add(_conv(op.nn.relu(_conv(value, kind)), kind), value)
        return op.tanh(value)

    mod = module([(SHAPE, "float32")], body)
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    want = np.maximum(X, 0).astype("f8")
    for _ in range(3):
        want = _conv_numpy(np.maximum(_conv_numpy(want, kind), 0), kind) + want
    close(compiled.run([X])[0], np.tanh(want), 1e-5)


def test_tasks_write_their_own_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs over different garbage, the bytes that agree were written: by one task of one step."""
    monkeypatch.setattr(builder, "SHARED", 0)  # these are small, and would be one task each
    target = runnable("x86_64")
    mod = module(
        [(SHAPE, "float32"), ((1, 9, 11, 40), "float32"), ((300, 33), "float32")],
        lambda x, y, z: [
            op.nn.relu(_conv(x, "dense")),
            op.nn.relu(_conv(x, "depthwise")),
            op.nn.max_pool2d(y, pool_size=3, layout="NHWC"),
            op.tanh(z),
            op.nn.softmax(z),
        ],
    )
    compiled = Compiled(mod, target, tmp_path).load()
    rng = np.random.default_rng(1)
    tensors = {
        name: rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
        for name, tensor in compiled.tensors.items()
        if tensor.alias is None
    }
    tensors |= {name: value.copy() for name, value in compiled.result.params.items()}
    split = 0
    written: dict[str, Any] = {}  # by tensor, for each byte: a padded one has two steps that write it
    for step in compiled.steps:
        output = root_of(compiled.tensors, step.writes[0])
        roots = [root_of(compiled.tensors, name) for name in step.args]
        writers = written.setdefault(output, np.zeros(tensors[output].nbytes, int))
        before = tensors[output].copy()
        for task in range(step.extent or 1):
            results = []
            for garbage in (0x5A, 0xC3):
                tensors[output].view("uint8").reshape(-1)[:] = garbage
                pointers = [_pointer(tensors[name]) for name in roots]
                compiled.call(step, pointers, [task])
                results.append(tensors[output].view("uint8").reshape(-1).copy())
            writers += results[0] == results[1]
        split += step.extent > 1
        assert writers.max() == 1, step.label
        tensors[output][...] = before
        compiled.call(step, [_pointer(tensors[name]) for name in roots], range(step.extent or 1))
    assert split >= 5
    for name, writers in written.items():
        assert writers.min() == 1, name


def test_task_numbers_out_of_range_are_cut(tmp_path: Path) -> None:
    """The runtime never asks for such tasks; if it did, nothing outside would be touched."""
    mod = module([((64, 80), "float32")], lambda x: op.nn.relu(x))
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    (step,) = compiled.steps
    x = RNG.uniform(-1, 1, (64, 80)).astype("f4")
    out = Memory(x.nbytes, 64)
    compiled.call(step.model_copy(update={"extent": 2**31 - 1}), [_pointer(x), out.pointer], None)
    out.check("output")
    assert (out.bytes.view("f4").reshape(x.shape) == np.maximum(x, 0)).all()
    compiled.call(step, [_pointer(x), out.pointer], [-1, -(2**31), 64, 2**31 - 2])
    out.check("output")


def _pointer(value: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(value.ctypes.data)
