"""TFLite operators against LiteRT; for each fault of TVM's converter a test that tells when it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.tflite.files import packed
from kiln.frontend.tflite.own_nodes import shown_reason
from kiln.golden.reference import open_reference
from tflite_files import Node, Tensor, write, write_graph

from .tflite_runs import GONE, OP, imported, pool, reference, run, stock


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


@pytest.mark.parametrize(("place", "masks"), [(3, (5, 5)), (-1, (5, 5)), (9, (5, 5)), (0, (1, 5))])
def test_a_slice_at_a_place_that_the_run_computes(place: int, masks: tuple[int, int], tmp_path: Path) -> None:
    """One column of a tensor; a place outside is the nearest one. A part that begins there is refused."""
    zero, one = (Tensor(f"c{n}", (3,), "int32", data=np.full(3, n, np.int32)) for n in (0, 1))
    tensors = [Tensor("x", (2, 4, 3)), Tensor("i", (3,), "int32"), Tensor("end", (3,), "int32"), zero, one]
    tensors.append(Tensor("y", (2, 3)))
    options = schema.StridedSliceOptionsT()
    options.beginMask, options.endMask, options.shrinkAxisMask = *masks, 2
    nodes = [
        Node(OP.ADD, schema.AddOptionsT(), [1, 4], [2]),
        Node(OP.STRIDED_SLICE, options, [0, 1, 2, 4], [5]),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0, 1], [5])
    if masks[0] == 1:
        with pytest.raises(KilnError, match="allowed for axes that it drops, but entry 2 keeps a part"):
            imported(path)
        return
    x, places = np.arange(24, dtype=np.float32).reshape(2, 4, 3), np.int32([0, place, 0])
    got = run(imported(path), x, places)
    assert np.array_equal(got, x[:, min(place, 3)])
    if place < 4:  # LiteRT would read memory outside of the tensor
        assert np.array_equal(got, reference(path, x, places))


@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_numbers_of_16_bits_are_read_by_converters(stored: str, tmp_path: Path) -> None:
    """The two values of ONE_HOT: constants that a DEQUANTIZE widens, and an input of the graph."""
    values = [Tensor(f"v{n}", (), stored, data=np.asarray(n, stored)) for n in (2, -1)]
    tensors = [
        Tensor("x", (3,), "int32"), Tensor("depth", (), "int32", data=np.int32(4)), *values, Tensor("on", ()),
        Tensor("off", ()), Tensor("y", (3, 4)),
    ]  # fmt: skip
    options = schema.OneHotOptionsT()
    options.axis = -1
    widen = [Node(OP.DEQUANTIZE, schema.DequantizeOptionsT(), [n], [n + 2]) for n in (2, 3)]
    last = Node(OP.ONE_HOT, options, [0, 1, 4, 5 if stored == "float16" else 3], [6])
    inputs = [0] if stored == "float16" else [0, 4]
    nodes = [*widen, last] if stored == "float16" else [last]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, inputs, [6])
    given = [np.int32([0, 3, 5]), np.float32(2)][: len(inputs)]
    assert np.array_equal(run(imported(path), *given), reference(path, *given))


def test_a_scalar_input_without_a_list_of_sizes(tmp_path: Path) -> None:
    """As TensorFlow's quantiser leaves it out."""
    tensors = [Tensor("x", ()), Tensor("t", (3,)), Tensor("y", (3,))]
    path = write(tmp_path / "m.tflite", tensors, OP.ADD, schema.AddOptionsT(), [0, 1], [2])
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    model.subgraphs[0].tensors[0].shape = None
    path.write_bytes(packed(model))
    given = np.float32(2), np.float32([1, 2, 3])
    assert run(imported(path), *given).tolist() == [3, 4, 5] == reference(path, *given).tolist()


def test_known_values_without_elements(tmp_path: Path) -> None:
    """LiteRT refuses to read them: such as the places of frames, in a signal shorter than one."""
    zero, one = (Tensor(f"c{n}", (), "int32", data=np.int32(n)) for n in (0, 1))
    tensors = [Tensor("x", (4,)), Tensor("s", (1,), "int32"), zero, one, Tensor("n", (), "int32")]
    tensors += [Tensor("d", (), "int32"), Tensor("e", (0,), "int32"), Tensor("t", (1,), "int32")]
    options = schema.ShapeOptionsT()
    options.outType = schema.TensorType.INT32
    nodes = [
        Node(OP.SHAPE, options, [0], [1]),
        Node(OP.SQUEEZE, schema.SqueezeOptionsT(), [1], [4]),
        Node(OP.SUB, schema.SubOptionsT(), [4, 4], [5]),
        Node(OP.RANGE, schema.RangeOptionsT(), [2, 5, 3], [6]),
        Node(OP.CONCATENATION, schema.ConcatenationOptionsT(), [6, 1], [7]),
        Node(OP.RESHAPE, schema.ReshapeOptionsT(), [0, 7], [8]),
    ]
    tensors.append(Tensor("y", (4,)))
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [8])
    assert run(imported(path), np.float32([1, 2, 3, 4])).tolist() == [1, 2, 3, 4]


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


def test_a_result_has_the_shape_that_litert_computes(tmp_path: Path) -> None:
    """Whatever the file gives for it, which LiteRT does not read."""
    tensors = [Tensor("x", (1, 4)), Tensor("y", (2, 4))]
    path = write(tmp_path / "m.tflite", tensors, schema.BuiltinOperator.RELU, None, [0], [1])
    x = np.float32([[1, -2, 3, -4]])
    assert run(imported(path), x).tolist() == [[1, 0, 3, 0]]
