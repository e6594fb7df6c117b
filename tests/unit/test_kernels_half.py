"""fp16 storage: which tensors change, that sums and functions stay float32, and the values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.kernels import opinfo
from kiln.kernels.cuda_steps import fused
from kiln.kernels.fused import Nest
from kiln.kernels.opkinds import nests_of
from kiln.precision.evaluate import Evaluator
from relaxed import const, module
from tvm import relax

Array = npt.NDArray[Any]
R = np.random.default_rng(5)
WEIGHTS = {name: R.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in {
    "first": (3, 3, 3, 16), "second": (1, 1, 16, 16), "bias": (1, 1, 1, 16), "dense": (16, 10),
}.items()}  # fmt: skip


def network(x: Any) -> Any:
    def conv(data: Any, name: str) -> Any:
        weights = const(WEIGHTS[name])
        pad = [WEIGHTS[name].shape[0] // 2] * 4
        return relax.op.nn.conv2d(data, weights, padding=pad, data_layout="NHWC", kernel_layout="HWIO")

    first = relax.op.nn.relu(relax.op.add(conv(x, "first"), const(WEIGHTS["bias"])))
    second = relax.op.add(conv(first, "second"), first)
    pooled = relax.op.nn.max_pool2d(second, [2, 2], [2, 2], layout="NHWC")
    mean = relax.op.mean(pooled, [1, 2])
    return relax.op.nn.softmax(relax.op.matmul(mean, const(WEIGHTS["dense"])))


def half(value: Array) -> Array:
    return value.astype(np.float16).astype(np.float32)


def reference(x: Array, rounded: Any) -> Array:
    """`network` by NumPy; `rounded`: what storing does to a tensor."""
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2)
    )
    weights = {name: w if name == "bias" else rounded(w) for name, w in WEIGHTS.items()}
    first = np.einsum("nhwcij,ijco->nhwo", rounded(windows), weights["first"]) + weights["bias"]
    first = rounded(np.maximum(first, 0))
    second = rounded(first @ weights["second"][0, 0] + first)
    pooled = second.reshape(1, 4, 2, 4, 2, 16).max((2, 4))
    logits = rounded(pooled.mean((1, 2))) @ weights["dense"]
    power = np.exp(rounded(logits) - rounded(logits).max(-1, keepdims=True))
    result: Array = power / power.sum(-1, keepdims=True)
    return result


@pytest.fixture(scope="module")
def halved() -> tuple[tvm.IRModule, dict[str, Array]]:
    return fused(module([((1, 8, 8, 3), "float32")], network), "fp16")


def dtypes(mod: tvm.IRModule) -> dict[str, list[str]]:
    """By operators the types of a function's tensors."""
    found = {}
    for variable, func in mod.functions_items():
        if ops := opinfo.of(func):
            found["+".join(op["name"].removeprefix("nn.") for op in ops)] = [
                str(tensor.dtype) for tensor in opinfo.tensors(mod[variable])
            ]
    return found


def test_which_tensors_are_halved(halved: tuple[tvm.IRModule, dict[str, Array]]) -> None:
    h, f = "float16", "float32"
    assert dtypes(halved[0]) == {
        "conv2d+add+relu": [f, h, f, h],  # an input of the model, weights, bias, result
        "conv2d+add": [h, h, h],  # its input is added, too
        "max_pool2d": [h, h],
        "mean": [h, f],
        "matmul": [f, h, h],
        "softmax": [h, f],
    }
    assert sorted(str(value.dtype) for value in halved[1].values()) == [h, h, h, f]


def test_sums_and_functions_are_computed_in_float32(halved: tuple[tvm.IRModule, dict[str, Array]]) -> None:
    nests: list[Nest] = [
        nest for func in halved[0].functions.values() if opinfo.of(func) for nest in nests_of(func) or []
    ]
    sums = [nest for nest in nests if nest.reduced]
    assert len(sums) >= 7
    assert {str(nest.buffer.dtype) for nest in sums} == {"float32"}


def test_values(halved: tuple[tvm.IRModule, dict[str, Array]]) -> None:
    x = R.standard_normal((1, 8, 8, 3)).astype(np.float32)
    (got,) = Evaluator(*halved).run([x], {})
    assert got.dtype == np.float32
    exact, rounded = reference(x, lambda value: value), reference(x, half)
    assert np.abs(got - rounded).max() < 2e-4, "not the same roundings"
    assert 0 < np.abs(got - exact).max() < 5e-3
    (plain,) = Evaluator(*fused(module([((1, 8, 8, 3), "float32")], network))).run([x], {})
    np.testing.assert_allclose(plain, exact, rtol=1e-5, atol=1e-6)


def test_what_float16_cannot_hold_stays_float32() -> None:
    mask = np.full((4, 16), -1e9, np.float32)
    mod, params = fused(module([((4, 16), "float32")], lambda x: relax.op.add(
        relax.op.matmul(x, const(WEIGHTS["second"][0, 0])), const(mask))), "fp16")  # fmt: skip
    assert {str(value.dtype) for value in params.values()} == {"float16", "float32"}
    assert next(value for value in params.values() if value.dtype == np.float32).min() == np.float32(-1e9)
    (got,) = Evaluator(mod, params).run([np.ones((4, 16), np.float32)], {})
    np.testing.assert_allclose(got, -1e9, rtol=1e-6)


def test_the_result_of_a_power_stays_float32() -> None:
    """300 squared is more than float16 holds."""
    mod, params = fused(module([((4, 16), "float32")], lambda x: relax.op.nn.softmax(relax.op.sum(
        relax.op.square(relax.op.matmul(x, const(WEIGHTS["second"][0, 0]))), [1], keepdims=True), 0)),
        "fp16")  # fmt: skip
    (got,) = Evaluator(mod, params).run([np.full((4, 16), 300.0, np.float32)], {})
    np.testing.assert_allclose(got, 0.25, rtol=1e-6)


def test_an_operator_that_is_no_loop_nest_keeps_its_tensors() -> None:
    mod, _ = fused(module([((4, 16), "float32")], lambda x: relax.op.cumsum(
        relax.op.matmul(x, const(WEIGHTS["second"][0, 0])), 1)), "fp16")  # fmt: skip
    assert dtypes(mod)["matmul"] == ["float32", "float16", "float32"]
    assert dtypes(mod)["cumsum"] == ["float32", "float32"]


def test_an_error_function() -> None:
    weights = const(WEIGHTS["second"][0, 0])
    graph = module([((4, 16), "float32")], lambda x: relax.op.nn.gelu(relax.op.matmul(x, weights)))
    x = R.standard_normal((4, 16)).astype(np.float32)
    (got,) = Evaluator(*fused(graph, "fp16")).run([x], {})
    product = half(x) @ half(WEIGHTS["second"][0, 0])
    want = product * 0.5 * (1 + np.vectorize(math.erf)(product / math.sqrt(2)))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_open_sizes() -> None:
    """A product of as many rows as a run has, and what follows it."""
    rows = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([rows, 16], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(relax.op.matmul(x, const(WEIGHTS["second"][0, 0]))))
            out = builder.emit_output(relax.op.matmul(product, const(WEIGHTS["dense"])))
        builder.emit_func_output(out)
    mod, params = fused(builder.get(), "fp16")
    assert dtypes(mod) == {
        "matmul+relu": ["float32", "float16", "float16"],
        "matmul": ["float16"] * 2 + ["float32"],
    }
    for count in (1, 5):
        value = R.standard_normal((count, 16)).astype(np.float32)
        (got,) = Evaluator(mod, params).run([value], {"n": count})
        want = half(np.maximum(half(value) @ half(WEIGHTS["second"][0, 0]), 0)) @ half(WEIGHTS["dense"])
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
