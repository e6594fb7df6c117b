"""The tolerance of a quantised model: the change of the reference's own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.arrays import Array
from kiln.golden.compare import ErrorLimits, entry_limits, looseness, weakness
from kiln.golden.reference import open_reference
from kiln.golden.reference_base import Reference
from kiln.golden.rounding import rounding
from kiln.golden.sensitivity import Sensitivity, shared_changes
from kiln.golden.sensitivity_tflite import TfliteSensitivity
from kiln.golden.sequence import StatefulReference
from onnx import TensorProto, helper, numpy_helper
from tflite_files import Node, Tensor, write_graph

SCALE = 0.05
_ABOUT: dict[str, Any] = {"name": "a stand-in", "version": "1", "settings": {}}


def model(path: Path, *, quantised: bool = True, tokens: bool = False) -> Path:
    """y = sum over the last axis of quantise(x), or of quantise(embedding[x]) for tokens."""
    rounded = [
        helper.make_node("QuantizeLinear", ["values", "scale", "zero"], ["levels"]),
        helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["reals"]),
    ]
    first = helper.make_node("Gather", ["table", "x"], ["values"]) if tokens else None
    nodes = [first] if first else []
    if quantised:
        nodes += rounded
        if not tokens:
            rounded[0].input[0] = "x"
    last = "reals" if quantised else "x"
    nodes.append(helper.make_node("ReduceSum", [last, "axis"], ["y"], keepdims=0))
    table = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    constants = {
        "scale": np.float32(SCALE), "zero": np.int8(0), "axis": np.array([-1]), "table": table,
    }  # fmt: skip
    kind, shape = (TensorProto.INT64, [2]) if tokens else (TensorProto.FLOAT, [2, 3])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", kind, shape)],
        [value("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def measured(path: Path, x: np.ndarray[Any, Any]) -> list[float]:
    reference = open_reference(path)
    return Sensitivity(reference).measure(["x"], [x], reference.run([x]))


def test_inputs_move_by_one_level(tmp_path: Path) -> None:
    """Three elements move by one level each: the sum changes by one or three levels."""
    path = model(tmp_path / "net.onnx")
    assert Sensitivity(open_reference(path)).applies
    x = np.array([[0.1, 0.2, 0.3], [-0.5, 0.5, 1.0]], np.float32)
    sensitivity = measured(path, x)
    assert sensitivity == measured(path, x)
    assert min(abs(sensitivity[0] - levels * SCALE) for levels in (1, 3)) < 1e-5


def test_vectors_share_their_sensitivity() -> None:
    """One vector changes by chance less than others; small outputs, and none of zeros, get no large limit."""
    changes = np.array([[0.1, 2], [0.3, 5], [0.01, 0], [0.0, 3]])
    magnitudes = np.array([[10.0, 1], [10, 1], [0.1, 1], [0, 1]])
    shared = shared_changes(changes, magnitudes)
    np.testing.assert_allclose(shared, [[0.3, 5], [0.3, 5], [0.01, 5], [0, 5]])


def test_embeddings_move_where_inputs_are_tokens(tmp_path: Path) -> None:
    sensitivity = measured(model(tmp_path / "net.onnx", tokens=True), np.array([1, 3]))
    assert 0 < sensitivity[0] <= 6 * SCALE


def test_constants_move_where_scales_are_computed(tmp_path: Path) -> None:
    """Embeddings of integers, as quantize_dynamic writes them: 1 and -1 are halfway between two levels."""
    path = tmp_path / "net.onnx"
    value, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("Gather", ["table", "x"], ["rows"]),
        node("DequantizeLinear", ["rows", "scale"], ["values"]),
        node("Mul", ["values", "gain"], ["scaled"]),
        node("DynamicQuantizeLinear", ["scaled"], ["levels", "step", "zero"]),
        node("DequantizeLinear", ["levels", "step", "zero"], ["y"]),
    ]
    constants = {
        "table": np.int8([[1, -1, 1, -1], [-1, 1, 1, -1]]),
        "scale": np.float32(0.5),
        "gain": np.full(4, 2, "f4"),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.INT64, [2])],
        [value("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    assert 1 / 255 < measured(path, np.array([0, 1]))[0] < 4 / 255


def test_values_between_two_levels_round_both_ways(tmp_path: Path) -> None:
    """64 means of two neighbouring levels round to the even one, or all of them to the other."""
    path = tmp_path / "net.onnx"
    value, node = helper.make_tensor_value_info, helper.make_node
    nodes = [
        node("AveragePool", ["x"], ["mean"], kernel_shape=[2], strides=[2]),
        node("QuantizeLinear", ["mean", "scale", "zero"], ["levels"]),
        node("DequantizeLinear", ["levels", "scale", "zero"], ["reals"]),
        node("ReduceSum", ["reals"], ["y"], keepdims=0),
    ]
    constants = {"scale": np.float32(0.5), "zero": np.int8(0)}
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, [1, 1, 128])],
        [value("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    assert measured(path, np.tile(np.float32([0, 0.5]), 64)[None, None]) == [64 * 0.5]


def test_programs_of_pytorch_move_inputs_by_a_level() -> None:
    """They have no graph of ONNX; what rounds to halves changes by one half for some of many inputs."""

    class Program(Reference):
        about = _ABOUT
        has_levels = True

        def _run(self, inputs: Sequence[Array]) -> list[Array]:
            return [np.asarray(np.round(inputs[0] * 2) / 2)]

    x = np.linspace(-1, 1, 500, dtype=np.float32)
    assert Sensitivity(Program()).applies
    assert Sensitivity(Program()).measure(["x"], [x], Program().run([x])) == [0.5]


def test_programs_of_pytorch_move_parameters_where_inputs_are_tokens() -> None:
    """Four variants, of both signs, each with other parameters; with floats two that change scales alone."""

    class Program(Reference):
        about, path, has_levels = _ABOUT, Path("net.pt2"), True

        def __init__(self, factor: float = 1.0, asked: list[tuple[float, bool]] | None = None) -> None:
            self.factor, self.asked = factor, [] if asked is None else asked

        def _run(self, inputs: Sequence[Array]) -> list[Array]:
            return [np.asarray(inputs[0] * self.factor)]

        def moved(self, factor: float, generator: np.random.Generator | None) -> Reference:
            self.asked.append((factor, generator is not None))
            return Program(factor)

    tokens, kept = Program(), Program()
    assert Sensitivity(tokens).measure(["x"], [np.array([0, 512])], [np.array([0, 512])]) == [1.0]
    assert tokens.asked == [(1 + sign / 512, True) for sign in (1, -1, 1, -1)]
    state = StatefulReference(kept, [])
    Sensitivity(state).measure(["x"], [np.ones(2, np.float32)], [np.ones(2, np.float32)])
    assert kept.asked == [(1 + sign * 2**-18, False) for sign in (1, -1)]


def test_products_of_integers_are_of_levels(tmp_path: Path) -> None:
    """Whatever has made the levels, such as a Round and a Cast."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (int32[2, 2] y) <int8[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { r = Round(x) levels = Cast<to = 3>(r) y = MatMulInteger(levels, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    assert Sensitivity(open_reference(tmp_path / "net.onnx")).applies


def test_float_models_have_none(tmp_path: Path) -> None:
    assert not Sensitivity(open_reference(model(tmp_path / "net.onnx", quantised=False))).applies
    assert not Sensitivity(Reference()).applies  # of another format


def test_scales_in_another_file(tmp_path: Path) -> None:
    """The step of an input is read where its scale is external data."""
    path, x = model(tmp_path / "net.onnx"), np.array([[0.1, 0.2, 0.3], [-0.5, 0.5, 1.0]], np.float32)
    within = measured(path, x)
    loaded = onnx.load(str(path))
    onnx.external_data_helper.set_external_data(loaded.graph.initializer[0], "scales.bin")
    onnx.save(loaded, str(path))
    assert (tmp_path / "scales.bin").stat().st_size == 4
    reference = open_reference(path)
    assert Sensitivity(reference).measure(["x"], [x], reference.run([x])) == within


def chain(path: Path, dtype: str = "int8", *, floats: bool = False) -> Path:
    """y = 2 tanh(x): in levels, or of floats that a QUANTIZE rounds first. A level of tanh is three of y."""
    scale = 1 / 128 if dtype == "int8" else None
    options = schema.AddOptionsT()
    shape = (1, 64)
    tensors = [
        Tensor("x", shape, "float32" if floats else dtype, None if floats else scale),
        Tensor("q", shape, dtype, scale),
        Tensor("t", shape, dtype, scale),
        Tensor("y", shape, dtype, None if scale is None else 2 * scale / 3),
    ]
    operators = schema.BuiltinOperator
    nodes = [
        Node(operators.TANH, None, [1 if floats else 0], [2]),
        Node(operators.ADD, options, [2, 2], [3]),
    ]
    if floats:
        nodes.insert(0, Node(operators.QUANTIZE, None, [0], [1]))
    return write_graph(path, tensors, nodes, [0], [3])


@pytest.mark.parametrize("floats", [False, True])
def test_tflite_inputs_move_by_one_level(tmp_path: Path, floats: bool) -> None:
    path = chain(tmp_path / "net.tflite", floats=floats)
    reference = open_reference(path)
    x = np.linspace(-0.9, 0.9, 64, dtype=np.float32)[None]
    given = x if floats else np.round(x * 128).astype(np.int8)
    sensitivity = TfliteSensitivity(reference, lambda kernels: open_reference(path, kernels))
    assert sensitivity.applies
    assert 3 <= sensitivity.measure(["x"], [given], reference.run([given]))[0] <= 4


def test_tflite_kernels_that_differ_are_a_sensitivity(tmp_path: Path) -> None:
    """The second kernel set is five levels away, farther than inputs that move by one: three or four."""
    path = chain(tmp_path / "net.tflite")
    reference = open_reference(path)
    x = np.arange(-32, 32, dtype=np.int8)[None]
    want = reference.run([x])

    class Moved(Reference):
        def run(self, inputs: Any) -> list[Any]:
            return [want[0] + 5]

    other = TfliteSensitivity(reference, lambda kernels: Moved() if kernels == "builtin_ref" else reference)
    assert other.measure(["x"], [x], want) == [5.0]


def test_tflite_floats_have_none(tmp_path: Path) -> None:
    path = chain(tmp_path / "net.tflite", "float32")
    assert not TfliteSensitivity(open_reference(path), lambda kernels: open_reference(path, kernels)).applies


def test_limits_that_a_model_sets_are_kept() -> None:
    assert entry_limits({}, "y", sensitivity=0.3) == ErrorLimits(absolute=0.3, levels=1)
    assert (
        entry_limits({"absolute": 1e-5, "relative": 1e-4, "levels": 1}, "y", sensitivity=0.3).absolute == 0.3
    )
    assert entry_limits({"absolute": 1e-3}, "y", sensitivity=0.3).absolute == 1e-3
    assert entry_limits({"outputs": {"y": {"relative": 1e-2}}}, "y", sensitivity=0.3).absolute == 1e-5
    assert entry_limits({}, "y", sensitivity=2.5).levels == 3
    assert entry_limits({"levels": 2}, "y", sensitivity=9.0).levels == 2
    assert entry_limits({}, "y") == ErrorLimits()


@pytest.mark.parametrize(
    ("want", "quantised", "fault"),
    [
        (np.zeros(4, np.float32), False, "constant (0.0)"),
        (np.array([-128, 127, 127, 5], np.int8), True, "saturated in 75 % of its elements"),
        (np.array([-128, 127, 3, 5], np.int8), True, ""),
        (np.array([-128, 127, 127, 5], np.int8), False, ""),
        (np.zeros(1, np.float32), False, ""),
        (np.arange(3.0), False, ""),
    ],
)
def test_weak_outputs(want: np.ndarray[Any, Any], quantised: bool, fault: str) -> None:
    assert weakness(want, quantised) == fault


@pytest.mark.parametrize(
    ("want", "limit", "told"),
    [
        (
            np.array([0.0, 0.67, 0.09, 0.24], np.float32),
            0.613,
            "an error of 0.613 with a spread of 0.67, since",
        ),
        (np.array([-128, 127, 3], np.int8), 128, "an error of 128 with a spread of 255, since"),
        (np.array([-128, 127, 3], np.int8), 4, ""),
        (np.array([0.0, np.inf], np.float32), 1.0, ""),
    ],
)
def test_limits_as_wide_as_the_outputs(want: np.ndarray[Any, Any], limit: float, told: str) -> None:
    found = looseness(want, limit)
    assert told in found and bool(found) == bool(told)


def test_rounding_explains_errors_of_ill_conditioned_outputs_alone(tmp_path: Path) -> None:
    """y is what cancellation leaves of x, z is 2 x, and a place has no rounding."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[64] x) => (float[64] y, float[64] z, int64[1] place) {
      b = Sub(x, near) y = Mul(b, k) z = Add(x, x) place = ArgMax(x) }"""
    model = onnx.parser.parse_model(text)
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    for name, value in (("k", np.float32(1e6)), ("near", x - np.float32(1e-6))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, tmp_path / "net.onnx")
    reference = open_reference(tmp_path / "net.onnx")
    expected = reference.run([x])
    lost, kept, place = rounding(reference, [x], expected)
    assert kept == place == 0.0
    assert lost == pytest.approx(0.01 * float(np.abs(expected[0]).max()))
    assert rounding(reference, [x], expected) == [lost, kept, place]


class Scripted(Reference):
    """Gives one number after the other as the only element of its output."""

    about = _ABOUT

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def _run(self, inputs: Any) -> list[Any]:
        return [np.full(1, self.numbers.pop(0), "float32")]


@pytest.mark.parametrize(
    ("changes", "left", "explained"),
    [([1e-9, 0, 9], 1, 0), ([2e-4, 1e-4, 1e-4, 0, 6e-4, 0, 0, 1e-4, 9], 1, 8 * 6e-4)],
)
def test_a_model_that_enlarges_roundings_runs_more_often(
    changes: list[float], left: int, explained: float
) -> None:
    reference = Scripted([1 + change for change in changes])
    found = rounding(reference, [np.zeros(3, "float32")], [np.ones(1, "float32")])
    assert found == [pytest.approx(explained, rel=1e-3)] and len(reference.numbers) == left
