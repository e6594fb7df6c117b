"""TFLite operators against LiteRT; for each fault of TVM's converter a test that tells when it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tflite
import tvm
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.frontend.tflite.own_nodes import shown_reason
from kiln.golden.reference import open_reference
from relaxed import virtual_machine
from tflite_files import Node, Tensor, write, write_graph
from tvm.relax.frontend.tflite import from_tflite

Array = npt.NDArray[Any]
OPTIONS = ImportOptions("model")
GONE = "TVM no longer has this fault: Kiln's own conversion of it can go"


def run(module: tvm.IRModule, *inputs: Array) -> Array:
    machine = virtual_machine(module)
    result: Array = machine["main"](*[tvm.runtime.tensor(value) for value in inputs]).numpy()
    return result


def imported(path: Path) -> tvm.IRModule:
    return import_model(path, OPTIONS)[0]


def stock(path: Path) -> tvm.IRModule:
    """The module that TVM's converter makes, without anything of Kiln's."""
    module = from_tflite(tflite.Model.GetRootAsModel(path.read_bytes(), 0))
    module["main"] = module["main"].without_attr("params")
    return module


def reference(path: Path, *inputs: Array, kind: str = "builtin_ref") -> Array:
    return open_reference(path, kind).run(inputs)[0]


def levels(got: Array, want: Array) -> int:
    return int(np.abs(got.astype(int) - want.astype(int)).max())


def random_int8(*shape: int) -> Array:
    return np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)


def pool(path: Path, padding: int, size: int, activation: int = 0, zero_point: int = -7) -> Path:
    options = schema.Pool2DOptionsT()
    options.padding, options.strideH, options.strideW = padding, 2, 2
    options.filterHeight = options.filterWidth = size
    options.fusedActivationFunction = activation
    edge = -(-8 // 2) if padding == schema.Padding.SAME else (8 - size) // 2 + 1
    tensors = [
        Tensor("x", (1, 8, 8, 16), "int8", 0.1, zero_point),
        Tensor("y", (1, edge, edge, 16), "int8", 0.1, zero_point),
    ]
    return write(path, tensors, schema.BuiltinOperator.AVERAGE_POOL_2D, options, [0], [1])


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


def prelu(path: Path) -> Path:
    slopes = np.linspace(-0.5, 0.5, 24, dtype=np.float32).reshape(1, 1, 24)
    tensors = [
        Tensor("x", (1, 8, 8, 24)),
        Tensor("slopes", (1, 1, 24), data=slopes),
        Tensor("y", (1, 8, 8, 24)),
    ]
    return write(path, tensors, schema.BuiltinOperator.PRELU, None, [0, 1], [2])


def test_prelu_keeps_one_slope_a_channel(tmp_path: Path) -> None:
    path = prelu(tmp_path / "prelu.tflite")
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 24)).astype(np.float32)
    module = imported(path)
    assert "broadcast_to" not in module.script()
    np.testing.assert_allclose(run(module, x), reference(path, x), rtol=1e-6)


def test_tvm_still_broadcasts_prelu_slopes(tmp_path: Path) -> None:
    assert "broadcast_to" in stock(prelu(tmp_path / "prelu.tflite")).script(), GONE


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


def softmax(path: Path) -> Path:
    options = schema.SoftmaxOptionsT()
    options.beta = 0.5
    return write(
        path, [Tensor("x", (2, 10)), Tensor("y", (2, 10))], schema.BuiltinOperator.SOFTMAX, options, [0], [1]
    )


@pytest.mark.parametrize("name", ["SQUEEZE", "RESHAPE", "MUL"])
def test_the_real_part_of_a_transform(name: str, tmp_path: Path) -> None:
    """Complex numbers without an axis of size 1, and cast to real ones; a product of parts is refused."""
    tensors = [
        Tensor("x", (2, 1, 8)), Tensor("length", (2,), "int32", data=np.array([1, 8], np.int32)),
        Tensor("f", (2, 1, 5), "complex64"), Tensor("s", (2, 5), "complex64"), Tensor("y", (2, 5)),
        Tensor("sizes", (2,), "int32", data=np.array([2, 5], np.int32)),
    ]  # fmt: skip
    squeeze = schema.SqueezeOptionsT()
    squeeze.squeezeDims = [1]
    middle = {
        "SQUEEZE": Node(OP.SQUEEZE, squeeze, [2], [3]),
        "RESHAPE": Node(OP.RESHAPE, schema.ReshapeOptionsT(), [2, 5], [3]),
        "MUL": Node(OP.MUL, schema.MulOptionsT(), [2, 2], [3]),
    }
    nodes = [
        Node(OP.RFFT2D, schema.Rfft2dOptionsT(), [0, 1], [2]),
        middle[name],
        Node(OP.CAST, schema.CastOptionsT(), [3], [4]),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [4])
    if name == "MUL":
        with pytest.raises(KilnError, match=r"MUL \(output s\): its input 'f' has complex numbers"):
            imported(path)
        return
    x = np.random.default_rng(2).normal(size=(2, 1, 8)).astype(np.float32)
    got = run(imported(path), x)
    np.testing.assert_allclose(got, np.fft.rfft(x[:, 0]).real, atol=1e-5)
    np.testing.assert_allclose(got, reference(path, x), atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_casts_saturate(dtype: str, tmp_path: Path) -> None:
    x = np.float32([0, 1.5, -1.5, 127.9, 128, 256, -129, 65536, -32769, 2.2e9, -2.2e9, 5e9, 2e19, -2e19])
    x = np.concatenate([x, np.float32([np.inf, -np.inf, np.nan])])
    options = schema.CastOptionsT()
    path = write(
        tmp_path / "m.tflite", [Tensor("x", x.shape), Tensor("y", x.shape, dtype)], OP.CAST, options, [0], [1]
    )
    wanted = reference(path, x)
    outputs = run(imported(path), x)
    assert outputs.dtype == wanted.dtype
    np.testing.assert_array_equal(outputs[:-1], wanted[:-1])  # NaN is what a processor makes of it


def test_softmax_with_a_temperature(tmp_path: Path) -> None:
    path = softmax(tmp_path / "softmax.tflite")
    x = np.random.default_rng(5).normal(size=(2, 10)).astype(np.float32)
    np.testing.assert_allclose(run(imported(path), x), reference(path, x), rtol=1e-5)


def test_tvm_still_ignores_the_temperature_of_softmax(tmp_path: Path) -> None:
    path = softmax(tmp_path / "softmax.tflite")
    x = np.arange(20, dtype=np.float32).reshape(2, 10)
    assert not np.allclose(run(stock(path), x), reference(path, x), rtol=1e-3), GONE


def test_an_activation_that_clips_nothing_leaves_no_clip(tmp_path: Path) -> None:
    relu = schema.ActivationFunctionType.RELU
    module = imported(pool(tmp_path / "p.tflite", schema.Padding.VALID, 2, relu, zero_point=-128))
    assert "clip" not in module.script()
    module = imported(pool(tmp_path / "p.tflite", schema.Padding.VALID, 2, relu, zero_point=-7))
    assert "clip" in module.script()


def _gather(axis: int, batch: int) -> Any:
    options = schema.GatherOptionsT()
    options.axis, options.batchDims = axis, batch
    return options


OP = schema.BuiltinOperator
SHAPE = Tensor("shape", (2,), "int32", data=np.array([4, 3], np.int32))
# By case: the operator, its options, its inputs, the shape of its output, and indices that are in range.
INDEXED: dict[str, tuple[int, Any, list[Tensor], tuple[int, ...], list[Any]]] = {
    "gather": (OP.GATHER, _gather(-2, 0), [Tensor("x", (4, 3)), Tensor("i", (2,), "int64")], (2, 3), [3, 1]),
    "gather_batches": (
        OP.GATHER, _gather(1, 1), [Tensor("x", (2, 4, 3)), Tensor("i", (2, 2), "int32")], (2, 2, 3),
        [[3, 1], [0, 0]],
    ),
    "gather_nd": (
        OP.GATHER_ND, schema.GatherNdOptionsT(), [Tensor("x", (4, 3)), Tensor("i", (2, 2), "int32")], (2,),
        [[3, 1], [0, 2]],
    ),
    "gather_nd_rows": (
        OP.GATHER_ND, schema.GatherNdOptionsT(), [Tensor("x", (4, 3)), Tensor("i", (2, 1), "int64")], (2, 3),
        [[3], [1]],
    ),
    "scatter_nd": (
        OP.SCATTER_ND, schema.ScatterNdOptionsT(),
        [Tensor("i", (3, 1), "int32"), Tensor("u", (3, 3)), SHAPE], (4, 3), [[3], [1], [3]],
    ),
    "embedding": (
        OP.EMBEDDING_LOOKUP, None, [Tensor("i", (2,), "int32"), Tensor("x", (4, 3))], (2, 3), [3, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_operators_with_indices(tmp_path: Path, name: str) -> None:
    code, options, inputs, shape, indices = INDEXED[name]
    numbers = list(range(len(inputs)))
    path = write(tmp_path / "m.tflite", [*inputs, Tensor("y", shape)], code, options, numbers, [len(inputs)])
    given = [
        np.array(indices, tensor.dtype)
        if tensor.name == "i"
        else np.random.default_rng(1).normal(size=tensor.shape).astype(np.float32)
        for tensor in inputs
        if tensor.data is None
    ]
    got, want = run(imported(path), *given), reference(path, *given)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("axis", "batch", "why"), [(0, 1, "0 to 0"), (1, 2, "0 to 1"), (2, -3, "0 to 1")])
def test_batch_axes_of_a_gather_that_do_not_come_first(
    tmp_path: Path, axis: int, batch: int, why: str
) -> None:
    tensors = [Tensor("x", (2, 4, 3)), Tensor("i", (2,), "int32"), Tensor("y", (2, 4, 3))]
    path = write(tmp_path / "m.tflite", tensors, OP.GATHER, _gather(axis, batch), [0, 1], [2])
    with pytest.raises(KilnError, match=rf"GATHER .*axis {axis}, allowed: {why} batch axes"):
        imported(path)


def test_tvm_still_turns_indices_round(tmp_path: Path) -> None:
    code, options, inputs, shape, indices = INDEXED["gather_nd"]
    path = write(tmp_path / "m.tflite", [*inputs, Tensor("y", shape)], code, options, [0, 1], [2])
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    places = np.array(indices, np.int32)
    assert not np.array_equal(run(stock(path), x, places.clip(0, 2)), reference(path, x, places)), GONE


def test_a_constant_index_outside_is_refused(tmp_path: Path) -> None:
    indices = Tensor("i", (2,), "int32", data=np.array([0, 4], np.int32))
    tensors = [Tensor("x", (4, 3)), indices, Tensor("y", (2, 3))]
    path = write(tmp_path / "m.tflite", tensors, OP.GATHER, _gather(0, 0), [0, 1], [2])
    with pytest.raises(KilnError, match=r"GATHER \(output y\): index 4, allowed 0\.\.3"):
        imported(path)


REFUSED = {
    "RANDOM_UNIFORM": "its result is drawn at random: draw it outside, and pass it as an input",
    "MULTINOMIAL": "its result is drawn at random",
    "HASHTABLE_LOOKUP": "it looks values up by keys of a table: look them up outside, and pass indices",
}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=REFUSED)
def test_what_no_device_can_compute_is_refused_by_name(tmp_path: Path, name: str, reason: str) -> None:
    tensors = [Tensor("x", [2], "int32"), Tensor("y", [2, 3])]
    code = getattr(schema.BuiltinOperator, name)
    path = write(tmp_path / "net.tflite", tensors, code, None, [0], [1])
    with pytest.raises(KilnError, match=f"{name} .output y.: {reason}"):
        imported(path)


def test_weights_of_a_dynamic_range_quantised_model_stay_in_8_bits(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).integers(-127, 128, (5, 8)).astype("int8")
    tensors = [Tensor("x", [3, 8]), Tensor("w", [5, 8], "int8", 0.02, data=weights), Tensor("y", [3, 5])]
    options = schema.FullyConnectedOptionsT()
    code = schema.BuiltinOperator.FULLY_CONNECTED
    path = write(tmp_path / "net.tflite", tensors, code, options, [0, 1], [2])
    x = np.random.default_rng(1).standard_normal((3, 8)).astype("float32")
    module = imported(path)
    np.testing.assert_allclose(run(module, x), x @ (0.02 * weights.T), rtol=1e-5, atol=1e-5)
    assert "R.dequantize" in module.script()
    hybrid = open_reference(path)
    assert hybrid.precision == "bf16"  # LiteRT rounds the activations to 8 bits
    np.testing.assert_allclose(hybrid.run([x])[0], run(module, x), rtol=0.05, atol=0.05)


def test_the_words_of_a_library_are_explained() -> None:
    own = shown_reason(ValueError("its axis is 9, allowed: -2..1"))
    assert own == "its axis is 9, allowed: -2..1"
    foreign = shown_reason(RuntimeError("Check failed: n_div2 * T.int64(2) == 3"))
    assert foreign.startswith(
        "its operands do not fit together, or have no conversion (Check failed: n == 3); an operator of your"
    )
