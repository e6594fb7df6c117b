"""Equalisation, bias correction, activations in float: the float model stays, the quantised one gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.arrays import Array
from kiln.command_line.quantise.bias import corrections
from kiln.command_line.quantise.choices import followers_in_float
from kiln.command_line.quantise.equalise import equalise
from kiln.command_line.quantise.graphs import OnnxGraph
from kiln.command_line.quantise.groups import ChannelGroup, groups
from kiln.command_line.quantise.improve import QuantiseOptions
from kiln.command_line.quantise.run import Goal, quantise
from kiln.command_line.quantise.search import snr_db
from kiln.command_line.quantise.tensors import float_operands, inner_tensors
from kiln.golden.reference import open_reference
from onnx import TensorProto, helper, numpy_helper

SPREAD = (10.0 ** np.linspace(-2, 0, 16)).astype(np.float32)  # sizes of channels


def _model(
    nodes: Sequence[Any], constants: Mapping[str, Array], x: Sequence[int], y: Sequence[int]
) -> onnx.ModelProto:
    for number, node in enumerate(nodes):
        node.name = f"{node.op_type}_{number}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, x)], [value("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _weights(random: np.random.Generator, *shape: int) -> Array:
    fan_in = int(np.prod(shape[1:]))
    return (random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def cnn(activation: str = "Relu") -> onnx.ModelProto:
    """Two blocks of depthwise and pointwise convolutions around a residual sum; channels differ in size."""
    random = np.random.default_rng(3)
    size = SPREAD.reshape(-1, 1, 1, 1)
    constants = {
        "first": _weights(random, 16, 3, 3, 3) * size,
        "first.bias": (0.1 * random.standard_normal(16) * SPREAD).astype(np.float32),
        "deep": _weights(random, 16, 1, 3, 3),
        "point": _weights(random, 16, 16, 1, 1) / SPREAD.reshape(1, -1, 1, 1),
        "last": _weights(random, 8, 16, 1, 1),
        "matrix": _weights(random, 8, 4),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    limits = ["zero", "six"] if activation == "Clip" else []
    nodes = [
        helper.make_node("Conv", ["x", "first", "first.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node(activation, ["a", *limits], ["b"]),
        helper.make_node("Conv", ["b", "deep"], ["c"], pads=[1, 1, 1, 1], group=16),
        helper.make_node(activation, ["c", *limits], ["d"]),
        helper.make_node("Conv", ["d", "point"], ["e"]),
        helper.make_node("Add", ["e", "b"], ["f"]),
        helper.make_node("Conv", ["f", "last"], ["g"]),
        helper.make_node("GlobalAveragePool", ["g"], ["h"]),
        helper.make_node("Flatten", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "matrix"], ["y"]),
    ]
    used = {name for node in nodes for name in node.input}
    kept = {name: array for name, array in constants.items() if name in used}
    return _model(nodes, kept, [1, 3, 8, 8], [1, 4])


def transformer() -> onnx.ModelProto:
    """Attention over 6 tokens of 16 channels, a mask of -10000, a residual sum and GELU in five operators."""
    random = np.random.default_rng(4)
    constants: dict[str, Array] = {
        "scale": 3 * SPREAD, "shift": SPREAD, "scale2": np.ones(16, np.float32), "shift2": SPREAD,
        "q": _weights(random, 16, 16), "k": _weights(random, 16, 16), "v": _weights(random, 16, 16),
        "q.bias": np.full(16, 0.1, np.float32), "up": _weights(random, 16, 32), "up.bias": SPREAD.repeat(2),
        "down": _weights(random, 32, 16), "mask": np.array([0, 0, 0, 0, -1e4, -1e4], np.float32),
        "root": np.float32(4), "root2": np.float32(1.4142135), "one": np.float32(1), "half": np.float32(0.5),
    }  # fmt: skip
    make = helper.make_node
    nodes = [
        make("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        make("MatMul", ["n", "q"], ["q0"]),
        make("Add", ["q0", "q.bias"], ["q1"]),
        make("MatMul", ["n", "k"], ["k0"]),
        make("Transpose", ["k0"], ["k1"], perm=[0, 2, 1]),
        make("MatMul", ["n", "v"], ["v0"]),
        make("MatMul", ["q1", "k1"], ["s0"]),
        make("Div", ["s0", "root"], ["s1"]),
        make("Add", ["s1", "mask"], ["s2"]),
        make("Softmax", ["s2"], ["p"], axis=-1),
        make("MatMul", ["p", "v0"], ["m"]),
        make("Add", ["m", "n"], ["r"]),
        make("LayerNormalization", ["r", "scale2", "shift2"], ["n2"], axis=-1),
        make("MatMul", ["n2", "up"], ["u0"]),
        make("Add", ["u0", "up.bias"], ["u1"]),
        make("Div", ["u1", "root2"], ["g0"]),
        make("Erf", ["g0"], ["g1"]),
        make("Add", ["g1", "one"], ["g2"]),
        make("Mul", ["u1", "g2"], ["g3"]),
        make("Mul", ["g3", "half"], ["g4"]),
        make("MatMul", ["g4", "down"], ["y"]),
    ]
    return _model(nodes, constants, [1, 6, 16], [1, 6, 16])


def _runs(model: onnx.ModelProto, count: int = 24) -> list[dict[str, Array]]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(5)
    return [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def _outputs(model: onnx.ModelProto, runs: Sequence[Mapping[str, Array]], folder: Path) -> list[Array]:
    path = folder / "run.onnx"
    onnx.save(model, str(path))
    reference = open_reference(path)
    return [reference.run([run["x"]])[0] for run in runs]


@pytest.mark.parametrize("made", [cnn(), transformer()], ids=["relu", "transformer"])
def test_equalised_models_compute_the_same(made: onnx.ModelProto, tmp_path: Path) -> None:
    runs = _runs(made)
    want = _outputs(made, runs, tmp_path)
    changed = onnx.ModelProto()
    changed.CopyFrom(made)
    assert equalise(changed, runs, tmp_path / "statistics.onnx") >= 1
    assert snr_db(_outputs(changed, runs, tmp_path), want) > 80


def _by_consumers(model: onnx.ModelProto) -> dict[tuple[str, ...], ChannelGroup]:
    """The groups of a model by the outputs of the nodes whose weights are multiplied."""
    found_groups = groups(OnnxGraph(model))
    return {tuple(sorted(node.output[0] for node in group.multiply)): group for group in found_groups}


def test_groups_follow_sums_and_stop_at_what_no_factor_passes() -> None:
    found = {
        tuple(sorted(node.output[0] for node in group.multiply)): group for group in groups(OnnxGraph(cnn()))
    }
    residual = found[("c", "g")]  # the sum ties the input of the depthwise convolution to that of the last
    assert sorted(node.output[0] for node in residual.divide) == ["a", "e"]
    assert set(residual.axes) == {"a", "b", "e", "f"}
    assert [node.output[0] for node in found[("e",)].divide] == ["c"]
    assert found[("y",)].axes == {"g": 1, "h": 1, "i": 1}
    for activation in ("Clip", "Sigmoid"):  # the limit of ReLU6 would move with a factor
        assert list(_by_consumers(cnn(activation))) == [("y",)]


def test_no_factor_passes_a_pooled_axis() -> None:
    """The second MatMul reads the axis over which the maxima of neighbours are taken."""
    random = np.random.default_rng(8)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["u"]),
        helper.make_node("MaxPool", ["u"], ["v"], kernel_shape=[1, 3], pads=[0, 1, 0, 1]),
        helper.make_node("MatMul", ["v", "b"], ["y"]),
    ]
    constants = {"a": _weights(random, 6, 16), "b": _weights(random, 16, 4)}
    assert groups(OnnxGraph(_model(nodes, constants, [1, 3, 8, 6], [1, 3, 8, 4]))) == []


def test_a_factor_behind_a_normalisation_is_inserted_where_a_sum_reads_it() -> None:
    found_groups = groups(OnnxGraph(transformer()))
    first = next(group for group in found_groups if group.inserted)
    assert first.inserted == "n" and sorted(node.output[0] for node in first.multiply) == ["k0", "q0", "v0"]
    second = next(group for group in found_groups if [node.output[0] for node in group.multiply] == ["u0"])
    assert not second.inserted and [node.output[0] for node in second.divide] == ["n2"]


def test_tensors_that_stay_in_float() -> None:
    graph = OnnxGraph(transformer())
    assert inner_tensors(graph) == {"q0", "s1", "u0", "g0", "g1", "g2", "g3"}
    assert float_operands(graph) == {"s0", "s1", "s2", "m", "r"}
    assert inner_tensors(OnnxGraph(cnn())) == float_operands(OnnxGraph(cnn())) == set()


def test_a_search_keeps_products_of_activations_in_float(tmp_path: Path) -> None:
    """The noise of the scores is that of two rounded activations: no choice of weights lowers it."""
    random = np.random.default_rng(6)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["u"]),
        helper.make_node("Transpose", ["u"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["u", "t"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["v"]),
        helper.make_node("MatMul", ["v", "b"], ["y"]),
    ]
    constants = {"a": _weights(random, 12, 16), "b": _weights(random, 6, 4)}
    made, net = _model(nodes, constants, [1, 6, 12], [1, 6, 4]), tmp_path / "net.onnx"
    onnx.save(made, str(net))
    np.savez(tmp_path / "data.npz", x=np.stack([run["x"] for run in _runs(made)]))
    whole = quantise(str(net), tmp_path / "data.npz", tmp_path / "whole.onnx")
    assert whole.choices == 4
    goal = Goal(min_snr=whole.figures.snr + 8)
    mixed = quantise(str(net), tmp_path / "data.npz", tmp_path / "mixed.onnx", goal=goal)
    assert {name for name, _ in mixed.layers} == {"MatMul_0", "MatMul_2", "Mul_3", "MatMul_4"}
    assert mixed.figures.snr >= whole.figures.snr + 8 and set(mixed.kept) & {"MatMul_2", "Mul_3"}
    assert all(one.bytes > 0 for one in mixed.frontier)
    graph = OnnxGraph(made)
    assert followers_in_float(graph, {"MatMul_4", "Mul_3"}) == ["Transpose_1"]
    assert followers_in_float(graph, {"MatMul_0"}) == []


def test_corrections_are_what_rounded_weights_add(tmp_path: Path) -> None:
    """Coarse weights of one convolution: the mean of its output moves by the correction."""
    model, runs = cnn(), _runs(cnn())
    for tensor in model.graph.initializer:
        if tensor.name == "last":
            weights = numpy_helper.to_array(tensor)
    levels = np.rint(weights * 4).astype(np.int8)
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    rounded.graph.initializer.extend(
        [
            numpy_helper.from_array(levels, "last_quantized"),
            numpy_helper.from_array(np.float32(0.25), "last_scale"),
            numpy_helper.from_array(np.int8(0), "last_zero"),
        ]
    )
    node = helper.make_node("DequantizeLinear", ["last_quantized", "last_scale", "last_zero"], ["last_out"])
    rounded.graph.node.insert(0, node)
    corrected = corrections(model, rounded, runs, tmp_path / "statistics.onnx")
    assert list(corrected) == ["Conv_6"]

    def mean(weight: Array) -> Array:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for tensor in other.graph.initializer:
            if tensor.name == "last":
                tensor.CopyFrom(numpy_helper.from_array(weight, "last"))
        del other.graph.output[:]
        other.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 8, 8, 8]))
        return np.mean([value.mean((0, 2, 3)) for value in _outputs(other, runs, tmp_path)], axis=0)

    moved = mean(levels.astype(np.float32) * np.float32(0.25)) - mean(weights)
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(corrected["Conv_6"], moved, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "gain"), [(cnn(), 2.0), (transformer(), 6.0)], ids=["convolutions", "transformer"]
)
def test_quantised_models_gain(made: onnx.ModelProto, gain: float, tmp_path: Path) -> None:
    """Against what onnxruntime.quantization does alone; for the transformer that rounds masks of -10000."""
    net = tmp_path / "net.onnx"
    onnx.save(made, str(net))
    np.savez(tmp_path / "data.npz", x=np.stack([run["x"] for run in _runs(made)]))
    plain = QuantiseOptions(equalise="no", correct_bias="no", all_integer=True)
    before = quantise(str(net), tmp_path / "data.npz", tmp_path / "before.onnx", plain)
    after = quantise(str(net), tmp_path / "data.npz", tmp_path / "after.onnx")
    assert after.figures.snr > before.figures.snr + gain
    assert after.steps[0].name == "rounded" and after.steps[0].used and after.split
    forced = QuantiseOptions(equalise="yes", correct_bias="yes")
    both = quantise(str(net), tmp_path / "data.npz", tmp_path / "forced.onnx", forced)
    assert len(both.steps) == 3 and all(step.used for step in both.steps)
    x = [run["x"] for run in _runs(made)]
    want = [open_reference(net).run([one])[0] for one in x]
    got = [open_reference(tmp_path / "after.onnx").run([one])[0] for one in x]
    assert snr_db(got, want) == pytest.approx(after.figures.snr, abs=1e-6)
