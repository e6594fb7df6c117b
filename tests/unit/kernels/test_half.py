"""Storage in 16 bits: which tensors change, that sums and functions stay float32, and the values."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.lower.pipeline import fused
from kiln.opinfo import attach
from kiln.opinfo.kinds import nests_of
from kiln.precision.evaluate import Evaluator
from kiln.tir import loop_nest
from kiln.tir.fused import Nest
from relaxed import const, module
from tvm import relax, s_tir, tirx

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


PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}


def half(value: Array, dtype: str = "float16") -> Array:
    return value.astype(np.dtype(dtype)).astype(np.float32)


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


@pytest.fixture(scope="module", params=list(PRECISIONS))
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def halved(precision: str) -> tuple[tvm.IRModule, dict[str, Array]]:
    return fused(module([((1, 8, 8, 3), "float32")], network), precision)


def dtypes(mod: tvm.IRModule) -> dict[str, list[str]]:
    """By operators the types of a function's tensors."""
    found = {}
    for variable, func in mod.functions_items():
        if ops := attach.of(func):
            found["+".join(op["name"].removeprefix("nn.") for op in ops)] = [
                str(tensor.dtype) for tensor in attach.tensors(mod[variable])
            ]
    return found


def test_which_tensors_are_halved(halved: tuple[tvm.IRModule, dict[str, Array]], precision: str) -> None:
    h, f = PRECISIONS[precision], "float32"
    assert dtypes(halved[0]) == {
        "conv2d+add+relu": [f, h, f, h],  # an input of the model, weights, bias, result
        "conv2d+add": [h, h, h],  # its input is added, too
        "max_pool2d": [h, h],
        "mean": [h, h],  # only a product reads it, which would round it
        "matmul": [h, h, h],
        "softmax": [h, f],
    }
    assert sorted(str(value.dtype) for value in halved[1].values()) == sorted([h, h, h, f])


def test_sums_and_functions_are_computed_in_float32(halved: tuple[tvm.IRModule, dict[str, Array]]) -> None:
    nests: list[Nest] = [
        nest for func in halved[0].functions.values() if attach.of(func) for nest in nests_of(func) or []
    ]
    sums = [nest for nest in nests if nest.reduced]
    assert len(sums) >= 7
    assert {str(nest.buffer.dtype) for nest in sums} == {"float32"}


def test_values(halved: tuple[tvm.IRModule, dict[str, Array]], precision: str) -> None:
    x = R.standard_normal((1, 8, 8, 3)).astype(np.float32)
    (got,) = Evaluator(*halved).run([x], {})
    assert got.dtype == np.float32
    exact = reference(x, lambda value: value)
    rounded = reference(x, lambda value: half(value, PRECISIONS[precision]))
    coarse = 8 if precision == "bf16" else 1  # it has three bits less
    assert np.abs(got - rounded).max() < 2e-4 * coarse, "not the same roundings"
    assert 2e-5 * coarse < np.abs(got - exact).max() < 5e-3 * coarse
    (plain,) = Evaluator(*fused(module([((1, 8, 8, 3), "float32")], network))).run([x], {})
    np.testing.assert_allclose(plain, exact, rtol=1e-5, atol=1e-6)


def test_values_beyond_the_range_are_counted(
    halved: tuple[tvm.IRModule, dict[str, Array]], precision: str
) -> None:
    """A function counts where infinity appears first, not one that is given it."""
    x = R.standard_normal((1, 8, 8, 3)).astype(np.float32)
    evaluator = Evaluator(*halved)
    evaluator.run([x], {})
    assert not +evaluator.not_finite
    evaluator.run([x * 2e4], {})  # in range; their sums are not
    found = sorted(+evaluator.not_finite)
    assert [name for name in found if "conv2d" in name] == found
    assert bool(found) == (precision == "fp16")


@pytest.mark.parametrize("dtype", PRECISIONS.values())
def test_rounding_on_this_machine(dtype: str) -> None:
    """To nearest, ties to even; the greatest numbers, the smallest, infinity and NaN."""
    places = np.arange(64, dtype=np.float32) / 2048
    values = [1 + places, 1 + places / 8, -1 - places / 8, places * 1e-38, places * 1e-6]
    special = np.array([3.4e38, 3.39e38, 65519, 65520, np.inf, -np.inf, np.nan, -0.0] * 8, np.float32)
    x = np.concatenate([*values, special])
    source, target = (tirx.decl_buffer(x.shape, kind, kind) for kind in ("float32", dtype))
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", loop_nest.copy(source, target)))
    schedule = s_tir.Schedule(tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main"))
    (loop,) = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    got = tvm.runtime.empty(x.shape, dtype)
    tvm.compile(schedule.mod, target="llvm")["main"](tvm.runtime.tensor(x), got)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.numpy().astype(np.float32), half(x, dtype))


def test_bfloat16_has_the_range_of_float32() -> None:
    mask = np.full((4, 16), -1e9, np.float32)
    _, params = fused(module([((4, 16), "float32")], lambda x: relax.op.add(
        relax.op.matmul(x, const(WEIGHTS["second"][0, 0])), const(mask))), "bf16")  # fmt: skip
    assert {str(value.dtype) for value in params.values()} == {"bfloat16"}


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


def test_an_image_that_only_a_convolution_reads_is_rounded_where_it_is_made() -> None:
    """The transposed image has 16 bits, with zeros around it, too; with another reader it keeps 32."""

    def image(x: Any, others: bool) -> Any:
        moved = relax.op.permute_dims(x, [0, 2, 3, 1])
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        result = relax.op.nn.conv2d(moved, const(weights), padding=[1] * 4, **layouts)
        return [result, relax.op.max(moved)] if others else result

    weights = R.standard_normal((3, 3, 4, 16)).astype(np.float32)  # three channels would get a fourth
    x = R.standard_normal((1, 4, 8, 8)).astype(np.float32)
    found = []
    for others, dtype in ((False, "float16"), (True, "float32")):
        mod, params = fused(module([(x.shape, "float32")], lambda x, o=others: image(x, o)), "fp16")
        assert dtypes(mod)["permute_dims"] == ["float32", dtype]
        found.append(Evaluator(mod, params).run([x], {})[0])
    np.testing.assert_array_equal(*found)


def test_an_error_function() -> None:
    weights = const(WEIGHTS["second"][0, 0])
    graph = module([((4, 16), "float32")], lambda x: relax.op.nn.gelu(relax.op.matmul(x, weights)))
    x = R.standard_normal((4, 16)).astype(np.float32)
    (got,) = Evaluator(*fused(graph, "fp16")).run([x], {})
    product = half(x) @ half(WEIGHTS["second"][0, 0])
    want = product * 0.5 * (1 + np.vectorize(math.erf)(product / math.sqrt(2)))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_dynamic_sizes() -> None:
    """A product with a dynamic number of rows, an eighth of a dimension, and its epilogue are in float16."""
    rows = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([rows, 16], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(relax.op.matmul(x, const(WEIGHTS["second"][0, 0]))))
            out = builder.emit_output(relax.op.matmul(product, const(WEIGHTS["dense"])))
        builder.emit_func_output(out)
    graph = builder.get()
    dims = {"n": {"dim": "width", "divide": 8, "min": 1, "max": 5}}
    graph["main"] = graph["main"].with_attr("kiln.dims", json.dumps(dims))
    mod, params = fused(graph, "fp16")
    assert dtypes(mod) == {
        "matmul+relu": ["float32", "float16", "float16"],
        "matmul": ["float16"] * 2 + ["float32"],
    }
    for count in (1, 5):
        value = R.standard_normal((count, 16)).astype(np.float32)
        (got,) = Evaluator(mod, params).run([value], {"width": 8 * count})
        want = half(np.maximum(half(value) @ half(WEIGHTS["second"][0, 0]), 0)) @ half(WEIGHTS["dense"])
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
