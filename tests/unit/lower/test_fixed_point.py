"""Quantised graphs without floats: the same levels as with floats, up to ties, and no float operator left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import relaxed
import tvm
from kiln.config import load_target
from kiln.kernels.operators.legalize import RULES
from kiln.lower.fixed_point import fixed_point
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)
CHANNELS = 6
FACTORS = (RNG.random((1, CHANNELS)) * 0.01 + 1e-4).astype("float32")
BIAS = RNG.normal(0, 20, (1, CHANNELS)).astype("float32")
INTEGERS = np.arange(CHANNELS, dtype="int32")[None] * 99
WIDE = ((40, CHANNELS), "int32")
SUMS_OF_WORDS = ((40, CHANNELS), "int64")
NARROW = ((64, CHANNELS), "int8")
IMAGE = ((2, 5, 7, CHANNELS), "int8")
BYTES = ((64, CHANNELS), "uint8")


def quantised(value: Any, scale: float, zero: int, dtype: str = "int8") -> Any:
    return op.quantize(value, const(scale), const(zero, "int32"), 0, dtype)


def real(data: Any, scale: float, zero: int) -> Any:
    return op.dequantize(data, const(scale), const(zero, "int32"), 0, "float32")


def accumulated(x: Any) -> Any:
    return op.add(op.multiply(op.astype(x, "float32"), const(FACTORS)), const(BIAS))


def squared(value: Any) -> Any:
    return op.multiply(value, value)


CASES: dict[str, tuple[list[tuple[tuple[int, ...], str]], Callable[..., Any]]] = {
    "channels": ([WIDE], lambda x: quantised(accumulated(x), 0.7, 3)),
    "relu6": ([WIDE], lambda x: quantised(op.minimum(op.nn.relu(accumulated(x)), const(6.0)), 0.03, -100)),
    "residual": (
        [NARROW, NARROW], lambda x, y: quantised(op.add(real(x, 0.1, 4), real(y, 0.03, -9)), 0.11, -2),
    ),
    "reshaped residual": (
        [IMAGE, ((1, 70, CHANNELS), "int8")],
        lambda x, y: quantised(
            op.add(op.reshape(real(x, 0.1, 4), [1, 70, CHANNELS]), real(y, 0.03, -9)), 0.11, -2
        ),
    ),
    "difference": (
        [NARROW, BYTES], lambda x, y: quantised(op.subtract(real(x, 0.1, 4), real(y, 0.2, 9)), 0.3, 0),
    ),
    "rescaled": ([BYTES], lambda x: quantised(real(x, 0.02, 128), 0.013, -7)),
    "sigmoid": ([NARROW], lambda x: quantised(op.sigmoid(real(x, 0.1, 5)), 1 / 256, -128)),
    "hard swish": (
        [NARROW],
        lambda x: quantised(
            op.multiply(
                real(x, 0.06, -3),
                op.minimum(op.maximum(op.add(real(x, 0.06, -3), const(3.0)), const(0.0)), const(6.0)),
            ),
            0.2, -100, "uint8",
        ),
    ),
    "bias": (
        [NARROW],
        lambda x: quantised(accumulated(op.add(op.astype(x, "int32"), const(INTEGERS, "int32"))), 0.7, 3),
    ),
    "mean": ([IMAGE], lambda x: quantised(op.mean(real(x, 0.1, 9), [1, 2], True), 0.031, 20)),
    "softmax": ([NARROW], lambda x: quantised(op.nn.softmax(real(x, 0.05, 11), 1), 1 / 256, -128)),
    "softmax of the first axis": (
        [BYTES],
        lambda x: quantised(op.nn.softmax(op.multiply(real(x, 0.2, 0), const(0.5)), 0), 1 / 256, 0, "uint8"),
    ),
    "row added": (
        [NARROW, ((1, CHANNELS), "int8")],
        lambda x, y: quantised(op.add(real(x, 0.1, 4), real(y, 0.03, -9)), 0.11, -2),
    ),
    "constant row added": (
        [NARROW, NARROW],
        lambda x, y: quantised(op.add(op.add(real(x, 0.1, 4), real(y, 0.3, 0)), const(BIAS)), 0.2, -2),
    ),
    "product": (
        [NARROW, BYTES], lambda x, y: quantised(op.multiply(real(x, 0.1, 4), real(y, 0.02, 200)), 0.3, 1),
    ),
    "channels weighted": (  # a squeeze-and-excite block
        [IMAGE, ((2, 1, 1, CHANNELS), "int8")],
        lambda x, y: quantised(op.nn.relu(op.multiply(real(x, 0.1, -4), real(y, 1 / 256, -128))), 0.05, -128),
    ),
    "squared difference": (
        [NARROW, ((1, CHANNELS), "int8")],
        lambda x, y: quantised(squared(op.subtract(real(x, 0.1, 4), real(y, 0.03, -9))), 0.9, -128),
    ),
    "product of limited sums": (
        [NARROW, BYTES],
        lambda x, y: quantised(
            op.multiply(op.nn.relu(op.add(real(x, 0.1, 4), real(y, 0.03, 9))), real(y, 0.02, 200)), 0.4, 1
        ),
    ),
    "sum and product": (
        [NARROW, NARROW],
        lambda x, y: quantised(
            op.add(op.multiply(real(x, 0.1, 4), real(y, 0.02, 0)), real(x, 0.1, 4)), 0.3, 1
        ),
    ),
    "normalised": (  # a batch normalisation, whose deviations are a divisor
        [NARROW],
        lambda x: quantised(op.add(op.divide(real(x, 0.1, 4), const(FACTORS * 100)), const(BIAS)), 0.9, -2),
    ),
    "words": ([SUMS_OF_WORDS], lambda x: quantised(accumulated(x), 40.0, -900, "int16")),
}  # fmt: skip


def inputs_of(shapes: list[tuple[tuple[int, ...], str]]) -> list[relaxed.Array]:
    """Every level of int8 and uint8; sums up to the largest that an accumulator holds."""
    rng, results = np.random.default_rng(6), []  # of its own: no test's inputs depend on other tests
    for shape, dtype in shapes:
        if dtype in ("int32", "int64"):
            bits = 17 if dtype == "int32" else 26
            values = rng.integers(-(2**bits), 2**bits, shape) >> rng.integers(0, bits, shape)
            values[0], values[1] = (2**31 - 1, -(2**31)) if dtype == "int32" else (2**55, -(2**55))
        else:
            low = 0 if dtype == "uint8" else -128
            values = rng.permuted(np.resize(np.arange(low, low + 256), shape))
        results.append(values.astype(dtype))
    return results


def float_operators(mod: tvm.IRModule) -> list[str]:
    return [str(call.op.name) for call in relaxed.calls(mod) if "float" in str(call.ty.dtype)]


@pytest.mark.parametrize("name", CASES)
def test_levels(name: str) -> None:
    shapes, body = CASES[name]
    before = module(shapes, body)
    after = fixed_point(before)
    assert float_operators(before) and float_operators(after) == []
    inputs = inputs_of(shapes)
    (want,), (got,) = run_by_tvm(before, inputs), run_by_tvm(after, inputs)
    off = np.abs(got.astype("int32") - want.astype("int32"))
    assert got.dtype == want.dtype and len(np.unique(want)) > 3
    # Ties go up instead of to even, and a float32 near a tie is itself rounded: one level, in few elements.
    assert off.max() <= 1 and (off > 0).mean() <= 0.02, (off.max(), (off > 0).mean())


@pytest.mark.parametrize(("name", "width"), [("residual", 32), ("product", 32), ("channels", 64)])
def test_sums_of_bytes_fit_32_bits(name: str, width: int) -> None:
    """On cores with 32-bit products, 64 bits take three to ten times as many instructions."""
    shapes, body = CASES[name]
    dtypes = {str(call.ty.dtype) for call in relaxed.calls(fixed_point(module(shapes, body)))}
    assert ("int64" in dtypes) == (width == 64), dtypes


@pytest.mark.parametrize(
    "body",
    [
        lambda x: quantised(op.multiply(real(x, 0.1, 1), real(x, 0.1, 2)), 0.1, 0),  # a table
        lambda x: quantised(op.mean(op.nn.relu(real(x, 0.1, 1)), [1], True), 0.1, 0),
        lambda x: quantised(op.nn.softmax(real(x, 0.1, 1), 1), 1 / 300.5, 0),
        lambda x: quantised(op.add(op.nn.relu(real(x, 0.1, 1)), const(BIAS)), 0.1, 0),
        lambda x: op.nn.relu(real(x, 0.1, 1)),
    ],
)
def test_other_expressions_keep_their_value(body: Callable[[Any], Any]) -> None:
    before = module([NARROW], body)
    inputs = inputs_of([NARROW])
    (want,), (got,) = run_by_tvm(before, inputs), run_by_tvm(fixed_point(before), inputs)
    assert np.abs(got.astype("float64") - want.astype("float64")).max() <= 1 and got.shape == want.shape


def test_factors_too_far_apart_stay_in_floats() -> None:
    far = const(np.array([[1e-7, 1, 1, 1, 1, 1]]))
    mod = module([WIDE], lambda x: quantised(op.multiply(op.astype(x, "float32"), far), 0.5, 0))
    assert float_operators(fixed_point(mod))


def averaged(x: Any, dtype: str, padding: list[int]) -> Any:
    """TensorFlow Lite's AVERAGE_POOL_2D of quantised tensors, as the frontend writes it."""
    mean = op.nn.avg_pool2d(
        op.astype(x, "float32"), (2, 3), (2, 1), padding, layout="NHWC", count_include_pad=False
    )
    return op.astype(op.add(mean, op.multiply(op.sign(mean), const(0.5))), dtype)


@pytest.mark.parametrize("padding", [[0, 0, 0, 0], [0, 1, 1, 1]])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_averages_are_those_of_floats(dtype: str, padding: list[int]) -> None:
    shape = (IMAGE[0], dtype)
    before = module([shape], lambda x: averaged(x, dtype, padding))
    after = fixed_point(before)
    assert float_operators(before) and float_operators(after) == []
    after = relax.transform.LegalizeOps({"relax.nn.avg_pool2d": RULES["relax.nn.avg_pool2d"]})(after)
    inputs = inputs_of([shape])
    (want,), (got,) = run_by_tvm(before, inputs), run_by_tvm(after, inputs)
    assert got.dtype == want.dtype and (got == want).all() and len(np.unique(want)) > 9


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_functions_of_bytes_store_no_wider_tensor(kind: str) -> None:
    """Also those of few instructions, such as ReLU6 after another quantisation, and of NHWC images."""

    def body(x: Any) -> list[Any]:
        return [quantised(op.minimum(op.nn.relu(real(x, 0.05, 9)), const(6.0)), 6 / 255, -128)]

    steps = lower(module([(IMAGE[0], kind)], body), Lowering("m", load_target("cortex_m3"), "none"))
    assert steps.steps[-1].label == "table"
    assert {tensor.dtype for tensor in steps.tensors.values() if tensor.kind != "param"} == {kind, "int8"}
