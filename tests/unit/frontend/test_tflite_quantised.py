"""Quantised TFLite operators against LiteRT; tests that tell when faults of TVM are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from tflite_files import Tensor, write

from .tflite_runs import GONE, OP, imported, levels, pool, random_int8, reference, run, stock


@pytest.mark.parametrize("padding", [schema.Padding.SAME, schema.Padding.VALID])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "activation", [schema.ActivationFunctionType.NONE, schema.ActivationFunctionType.RELU6]
)
@pytest.mark.slow
def test_integer_average_pool_is_exact(tmp_path: Path, padding: int, size: int, activation: int) -> None:
    path = pool(tmp_path / "pool.tflite", padding, size, activation)
    x = random_int8(1, 8, 8, 16)
    want = reference(path, x)
    np.testing.assert_array_equal(run(imported(path), x), want)
    np.testing.assert_array_equal(reference(path, x, kind="builtin"), want)


def test_integer_average_pool_rounds_ties_away_from_zero(tmp_path: Path) -> None:
    path = pool(tmp_path / "pool.tflite", schema.Padding.VALID, 2)
    x = np.zeros((1, 8, 8, 16), np.int8)
    x[0, 0:2, 0:2, 0] = [[3, 2], [3, 2]]  # 2.5
    x[0, 0:2, 0:2, 1] = [[-3, -2], [-3, -2]]  # -2.5
    result = run(imported(path), x)
    assert result[0, 0, 0, :3].tolist() == [3, -3, 0]
    np.testing.assert_array_equal(result, reference(path, x))


def test_tvm_still_truncates_integer_averages(tmp_path: Path) -> None:
    path = pool(tmp_path / "pool.tflite", schema.Padding.VALID, 4)
    x = random_int8(1, 8, 8, 16)
    assert levels(run(stock(path), x), reference(path, x)) > 0, GONE


def pad(path: Path, scale_out: float = 0.1) -> Path:
    amounts = np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)
    tensors = [
        Tensor("x", (1, 4, 4, 3), "int8", 0.1, 5),
        Tensor("amounts", (4, 2), "int32", data=amounts),
        Tensor("y", (1, 7, 5, 3), "int8", scale_out, 5),
    ]
    return write(path, tensors, schema.BuiltinOperator.PAD, schema.PadOptionsT(), [0, 1], [2])


def test_quantised_pad_fills_with_the_zero_point(tmp_path: Path) -> None:
    path = pad(tmp_path / "pad.tflite")
    x = random_int8(1, 4, 4, 3)
    result = run(imported(path), x)
    assert result[0, 0, 0].tolist() == [5, 5, 5]
    np.testing.assert_array_equal(result, reference(path, x))


def test_tvm_still_refuses_quantised_pad(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not supported"):
        stock(pad(tmp_path / "pad.tflite"))
        pytest.fail(GONE)


def fully_connected(path: Path, keep: bool, dtype: str = "float32") -> Path:
    options = schema.FullyConnectedOptionsT()
    options.keepNumDims = keep
    generator = np.random.default_rng(1)
    integer = dtype == "int8"
    weights = random_int8(5, 6) if integer else generator.normal(size=(5, 6)).astype(np.float32)
    bias = generator.integers(-500, 500, 5).astype(np.int32) if integer else np.ones(5, np.float32)
    shape = (1, 2, 3, 5) if keep else (6, 5)
    tensors = [
        Tensor("x", (1, 2, 3, 6), dtype, 0.05 if integer else None, 3 if integer else 0),
        Tensor("w", (5, 6), dtype, 0.02 if integer else None, data=weights),
        Tensor("b", (5,), "int32" if integer else "float32", 0.001 if integer else None, data=bias),
        Tensor("y", shape, dtype, 0.11 if integer else None, -4 if integer else 0),
    ]
    return write(path, tensors, schema.BuiltinOperator.FULLY_CONNECTED, options, [0, 1, 2], [3])


@pytest.mark.parametrize("keep", [False, True])
def test_fully_connected_has_the_file_s_shape(tmp_path: Path, keep: bool) -> None:
    path = fully_connected(tmp_path / "fc.tflite", keep)
    x = np.random.default_rng(2).normal(size=(1, 2, 3, 6)).astype(np.float32)
    np.testing.assert_allclose(run(imported(path), x), reference(path, x), rtol=1e-5, atol=1e-5)


def test_quantised_fully_connected(tmp_path: Path) -> None:
    path = fully_connected(tmp_path / "fc.tflite", False, "int8")
    x = random_int8(1, 2, 3, 6)
    want = reference(path, x, kind="builtin")
    assert len(np.unique(want)) > 10
    assert levels(run(imported(path), x), want) <= 1


def test_tvm_still_keeps_the_axes_of_fully_connected(tmp_path: Path) -> None:
    module = stock(fully_connected(tmp_path / "fc.tflite", False))
    assert [int(size) for size in module["main"].ret_ty.shape] != [6, 5], GONE


@pytest.mark.parametrize("activation", ["NONE", "RELU", "RELU6"])
def test_quantised_addition_of_different_scales(tmp_path: Path, activation: str) -> None:
    options = schema.AddOptionsT()
    options.fusedActivationFunction = getattr(schema.ActivationFunctionType, activation)
    tensors = [
        Tensor("a", (1, 4, 4, 8), "int8", 0.05, 3),
        Tensor("b", (1, 4, 4, 8), "int8", 0.021, -9),
        Tensor("y", (1, 4, 4, 8), "int8", 0.06, -100),
    ]
    path = write(tmp_path / "add.tflite", tensors, schema.BuiltinOperator.ADD, options, [0, 1], [2])
    a = random_int8(1, 4, 4, 8)
    b = a[:, ::-1].copy()
    want = reference(path, a, b, kind="builtin")
    assert len(np.unique(want)) > 20
    assert levels(run(imported(path), a, b), want) <= 1


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("activation", ["NONE", "RELU6", "RELU_N1_TO_1"])
@pytest.mark.slow
def test_quantised_convolution_with_a_scale_per_channel(
    tmp_path: Path, depthwise: bool, activation: str
) -> None:
    options: Any = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
    options.strideH = options.strideW = 2
    options.dilationHFactor = options.dilationWFactor = 1
    options.padding = schema.Padding.SAME
    options.fusedActivationFunction = getattr(schema.ActivationFunctionType, activation)
    if depthwise:
        options.depthMultiplier = 1
    scales = np.linspace(0.004, 0.02, 8)
    shape = (1, 3, 3, 8) if depthwise else (8, 3, 3, 8)
    bias = np.random.default_rng(4).integers(-900, 900, 8).astype(np.int32)
    tensors = [
        Tensor("x", (1, 7, 7, 8), "int8", 0.04, -11),
        Tensor("w", shape, "int8", scales, axis=3 if depthwise else 0, data=random_int8(*shape)),
        Tensor("b", (8,), "int32", 0.04 * scales, data=bias),
        Tensor("y", (1, 4, 4, 8), "int8", 0.09, -20),
    ]
    code = schema.BuiltinOperator.DEPTHWISE_CONV_2D if depthwise else schema.BuiltinOperator.CONV_2D
    path = write(tmp_path / "conv.tflite", tensors, code, options, [0, 1, 2], [3])
    x = random_int8(1, 7, 7, 8)
    want = reference(path, x, kind="builtin")
    assert len(np.unique(want)) > 5
    assert levels(run(imported(path), x), want) <= 1


def test_one_channel_whose_scale_names_its_axis(tmp_path: Path) -> None:
    options = schema.DepthwiseConv2DOptionsT()
    options.strideH = options.strideW = options.dilationHFactor = options.dilationWFactor = 1
    options.padding, options.depthMultiplier = schema.Padding.SAME, 1
    tensors = [
        Tensor("x", (1, 7, 7, 1), "int8", 0.04, -11),
        Tensor("w", (1, 3, 3, 1), "int8", np.array([0.01]), axis=3, data=random_int8(1, 3, 3, 1)),
        Tensor("b", (1,), "int32", np.array([0.0004]), data=np.int32([70])),
        Tensor("y", (1, 7, 7, 1), "int8", 0.09, -20),
    ]
    code = schema.BuiltinOperator.DEPTHWISE_CONV_2D
    path = write(tmp_path / "conv.tflite", tensors, code, options, [0, 1, 2], [3])
    x = random_int8(1, 7, 7, 1)
    assert levels(run(imported(path), x), reference(path, x, kind="builtin")) <= 1


@pytest.mark.parametrize(
    ("code", "options", "scale_out", "zero_out"),
    [
        (schema.BuiltinOperator.SOFTMAX, schema.SoftmaxOptionsT(), 1 / 256, -128),
        (schema.BuiltinOperator.LOGISTIC, None, 1 / 256, -128),
        (schema.BuiltinOperator.TANH, None, 1 / 128, 0),
    ],
)
def test_quantised_functions(
    tmp_path: Path, code: int, options: Any, scale_out: float, zero_out: int
) -> None:
    if isinstance(options, schema.SoftmaxOptionsT):
        options.beta = 1.0
    tensors = [Tensor("x", (4, 10), "int8", 0.05, 4), Tensor("y", (4, 10), "int8", scale_out, zero_out)]
    path = write(tmp_path / "f.tflite", tensors, code, options, [0], [1])
    x = random_int8(4, 10)
    assert levels(run(imported(path), x), reference(path, x)) <= 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_casts_saturate(dtype: str, tmp_path: Path) -> None:
    x = np.float32([0, 1.5, -1.5, 127.9, 128, 256, -129, 65536, -32769, 2.2e9, -2.2e9, 5e9, 2e19, -2e19])
    x = np.concatenate([x, np.float32([np.inf, -np.inf, np.nan])])
    options = schema.CastOptionsT()
    path = write(
        tmp_path / "m.tflite", [Tensor("x", x.shape), Tensor("y", x.shape, dtype)], OP.CAST, options, [0], [1]
    )
    expected = reference(path, x)
    outputs = run(imported(path), x)
    assert outputs.dtype == expected.dtype
    np.testing.assert_array_equal(outputs[:-1], expected[:-1])  # NaN is what a processor makes of it


MISREAD: dict[str, tuple[str, list[Tensor], str]] = {
    "slopes_of_16_bits": (
        "PRELU",
        [
            Tensor("x", (2, 4), "int16", 0.001),
            Tensor("s", (4,), "int16", 0.001, data=np.ones(4, np.int16)),
            Tensor("y", (2, 4), "int16", 0.002),
        ],
        r"its slopes .input 1. are int16, allowed with activations of int16: int8",
    ),
    "slopes_of_the_other_sign": (
        "PRELU",
        [
            Tensor("x", (2, 4), "uint8", 0.1, 128),
            Tensor("s", (4,), "int8", 0.01, data=np.ones(4, np.int8)),
            Tensor("y", (2, 4), "uint8", 0.1, 128),
        ],
        "are int8, allowed with activations of uint8: uint8",
    ),
    "parts_of_several_scales": (
        "CONCATENATION",
        [
            Tensor("x", (2, 4), "int16", 0.001),
            Tensor("z", (2, 4), "int16", 0.002),
            Tensor("y", (4, 4), "int16", 0.002),
        ],
        "inputs and output have different quantisation",
    ),
    "bytes_without_a_scale": (
        "MUL",
        [Tensor("x", (2, 4), "int8"), Tensor("z", (2, 4), "int8"), Tensor("y", (2, 4), "int8")],
        "its input 'x' has no scale",
    ),
    "products_without_a_scale": (
        "BATCH_MATMUL",
        [Tensor("x", (2, 4), "int16"), Tensor("z", (4, 3), "int16"), Tensor("y", (2, 3), "int16")],
        "its input 'x' has no scale",
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_tensors_that_litert_reads_as_something_else(tmp_path: Path, name: str) -> None:
    """LiteRT runs these files, and takes their integers for other values than the file says."""
    operator, tensors, reason = MISREAD[name]
    kind = getattr(schema.BuiltinOperator, operator)
    path = write(tmp_path / "m.tflite", tensors, kind, None, [0, 1], [2])
    with pytest.raises(KilnError, match=rf"{operator} .output y.: .*{reason}"):
        imported(path)


@pytest.mark.parametrize(
    ("first", "second", "result"), [(0.1, 0.1, 0.7), (0.013, 0.9, 1.3), (2.0, 0.25, 33.0)]
)
def test_squared_differences_of_int8_are_exact(
    tmp_path: Path, first: float, second: float, result: float
) -> None:
    """As in the layer norms of quantised transformers; the second operand has one number for each row."""
    tensors = [
        Tensor("x", (8, 16, 16), "int8", first, -3),
        Tensor("mean", (8, 16, 1), "int8", second, 17),
        Tensor("y", (8, 16, 16), "int8", result, -128),
    ]
    kind = schema.BuiltinOperator.SQUARED_DIFFERENCE
    path = write(tmp_path / "m.tflite", tensors, kind, schema.SquaredDifferenceOptionsT(), [0, 1], [2])
    x, mean = random_int8(8, 16, 16), random_int8(8, 16, 1)
    want = reference(path, x, mean)
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(run(imported(path), x, mean), want)
