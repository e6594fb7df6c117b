"""kiln reduce: the smallest part of a model that fails, for errors of the build and for wrong tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line.compare import reduce
from kiln.command_line.compare.figures import difference
from kiln.command_line.compare.part_keys import keys_of_part, write_keys
from kiln.command_line.compare.probe import Probe
from kiln.command_line.compare.run import Compared, Row
from kiln.command_line.running import Destination, destination_of
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.golden.compare import ErrorLimits
from networks import operators_of
from onnx import TensorProto, helper

from .test_compare import network

HOST = destination_of("host", None)


def wrong_split(place: Destination) -> Compared:
    """A comparison in which the first output of Split is beyond its limit."""
    row = Row(Probe("split", "Split", "left"), "v", difference(np.ones(2), np.zeros(2), ErrorLimits()))
    return Compared("net", place.named, "host CPU", [row], [])


def test_an_error_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever contains the node Relu cannot be built: that node alone remains."""

    def build(path: str, target: str) -> None:
        if "Relu" in operators_of(Path(path)):
            raise KilnError(f"{path}: Relu cannot be built")

    def compare(name: str, *others: Any) -> Compared:
        build(name, "host")
        raise AssertionError

    monkeypatch.setattr(reduce, "build_copy", build)
    monkeypatch.setattr(reduce, "compare_model", compare)
    out = tmp_path / "reduced.onnx"
    found = reduce.reduce_model(str(network(tmp_path / "net.onnx")), HOST, None, out)
    assert (found.nodes, found.of_nodes, found.failure) == (1, 5, f"{out}: Relu cannot be built")
    assert operators_of(out) == ["Relu"]
    assert [value.name for value in onnx.load(str(out)).graph.input] == ["scaled"]


@pytest.mark.parametrize("at", [0, 2])
def test_a_full_disk_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Neither in the build of the whole, nor in that of a part: what is smaller would find room."""
    builds: list[str] = []

    def build(path: str, target: str) -> None:
        builds.append(path)
        if len(builds) > at:
            raise KilnError("build/.stages/host/net/plan.json: cannot write 8 bytes: No space left on device")
        raise KilnError(f"{path}: Relu cannot be built")

    monkeypatch.setattr(reduce, "build_copy", build)
    monkeypatch.setattr(reduce, "compare_model", lambda name, *others: build(name, "host"))
    with pytest.raises(KilnError, match=r"plan.json: cannot write 8 bytes: No space left"):
        reduce.reduce_model(str(network(tmp_path / "net.onnx")), HOST, None, tmp_path / "reduced.onnx")
    assert len(builds) == at + 1 and not (tmp_path / "reduced.onnx").exists()


@pytest.mark.parametrize("as_output", [False, True])
def test_a_wrong_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_output: bool) -> None:
    """The tensor `left` is wrong where Split and Relu are one kernel: both nodes remain, with the values of
    `scaled`. as_output: only where it is an output of the model as it is, and not all tensors are outputs."""
    given: dict[str, Any] = {}

    def compare(name: str, place: Destination, inputs: Path | None) -> Compared:
        wrong = {"Split", "Relu"} <= set(operators_of(Path(name)))
        if inputs is not None:
            given.update(np.load(inputs))
        want = np.array([1.0, 2.0])
        figures = difference(want + (0.5 if wrong else 0.0), want, ErrorLimits())
        row = Row(Probe("split", "Split", "left"), "v", figures)
        rows, outputs = ([], [row]) if as_output else ([row], [])
        return Compared("net", place.named, "host CPU", rows, outputs)

    values = {name: np.full((2, 4), 3.0, np.float32) for name in ("x", "scaled", "positive", "left", "right")}
    monkeypatch.setattr(reduce, "compare_model", compare)
    monkeypatch.setattr(reduce, "_reference_values", lambda *given: values)
    out = tmp_path / "reduced.onnx"
    found = reduce.reduce_model(str(network(tmp_path / "net.onnx")), HOST, None, out)
    assert (found.nodes, found.inputs) == (2, out.with_suffix(".npz"))
    assert found.failure.startswith("tensor left: 2 of 2 elements differ")
    assert operators_of(out) == ["Relu", "Split"]
    assert given["scaled"].tolist() == values["scaled"].tolist()


@pytest.mark.parametrize(
    "message", ["", "kernel 'k' needs 9 registers", "net: quantised: strict: 1 of 2 steps"]
)
def test_quantised_strict_stays_only_where_it_is_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """A part may have no quantised tensor, which the key refuses; message: of the build, empty: it ends."""
    network(tmp_path / "net.onnx")
    source = {"kind": "file", "path": "net.onnx"}
    (tmp_path / "net.yaml").write_text(json.dumps({"source": source, "quantised": "strict"}))
    strict: list[str | None] = []

    def build(path: str, target: str) -> None:
        if path != str(tmp_path / "net.yaml"):
            strict.append(load_model(path).quantised)
        if message:
            raise KilnError(message)

    def compare(name: str, place: Destination, inputs: Path | None) -> Compared:
        build(name, place.named)
        if "quantised" in Path(name).read_text(errors="ignore") and len(strict) > 0:
            raise KilnError("part: quantised: strict: the model has no quantised tensor")
        return wrong_split(place)

    values = {name: np.zeros((2, 4), np.float32) for name in ("x", "scaled", "positive")}
    monkeypatch.setattr(reduce, "build_copy", build)
    monkeypatch.setattr(reduce, "compare_model", compare)
    monkeypatch.setattr(reduce, "_reference_values", lambda *given: values)
    found = reduce.reduce_model(str(tmp_path / "net.yaml"), HOST, None, tmp_path / "reduced.onnx")
    assert strict and set(strict) == {"strict" if "strict" in message else None}
    assert found.model.suffix == (".yaml" if "strict" in message else ".onnx")


def test_a_part_that_cannot_be_built_is_not_the_wrong_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split alone is refused for a reason of its own, as a part without weights is by the key `weights`."""

    def compare(name: str, place: Destination, inputs: Path | None) -> Compared:
        if operators_of(Path(name)) == ["Split"]:
            raise KilnError("part: weights: the model has no weights of at least 4 KiB")
        return wrong_split(place)

    values = {name: np.zeros((2, 4), np.float32) for name in ("x", "scaled", "positive")}
    monkeypatch.setattr(reduce, "compare_model", compare)
    monkeypatch.setattr(reduce, "_reference_values", lambda *given: values)
    net = network(tmp_path / "net.onnx")
    assert reduce.reduce_model(str(net), HOST, None, tmp_path / "reduced.onnx").nodes == 2


def test_another_error_is_not_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that cannot be built for a reason of their own, such as an input without a size, do not count."""

    def build(path: str, target: str) -> None:
        kinds = operators_of(Path(path))
        if {"Mul", "Relu", "Split"} <= set(kinds):
            raise KilnError(f"{path}: kernel 'k{len(kinds)}' needs {len(kinds)} registers, allowed: 2")
        raise KilnError(f"{path}: input 'x' axis 0 is dynamic and has no range")

    def compare(name: str, *others: Any) -> Compared:
        build(name, "host")
        raise AssertionError

    monkeypatch.setattr(reduce, "build_copy", build)
    monkeypatch.setattr(reduce, "compare_model", compare)
    found = reduce.reduce_model(str(network(tmp_path / "net.onnx")), HOST, None, tmp_path / "reduced.onnx")
    assert found.nodes == 3 and found.failure.endswith("kernel 'k3' needs 3 registers, allowed: 2")
    assert operators_of(tmp_path / "reduced.onnx") == ["Mul", "Relu", "Split"]


def test_the_least_number_of_nodes_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain of 12 nodes, five that fail together remain, though 8 is the first power of two that fails;
    the options of the build reach every trial."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    kinds = ["Relu"] * 3 + ["Sin", "Cos", "Tan", "Exp", "Log"] + ["Relu"] * 4
    nodes = [helper.make_node(kind, [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i, kind in enumerate(kinds)]
    output = helper.make_tensor_value_info("t12", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "net", [value], [output])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "net.onnx")
    )
    tried = []

    def build(path: str, target: str, **options: str) -> None:
        assert options == {"byoc": "mine"}
        tried.append(len(operators_of(Path(path))))
        if {"Sin", "Log"} <= set(operators_of(Path(path))):
            raise KilnError("the backend mine crashed")

    def compare(name: str, *others: Any, **options: str) -> Compared:
        build(name, "host", **options)
        raise AssertionError

    monkeypatch.setattr(reduce, "build_copy", build)
    monkeypatch.setattr(reduce, "compare_model", compare)
    out = tmp_path / "reduced.onnx"
    assert reduce.reduce_model(str(tmp_path / "net.onnx"), HOST, None, out, byoc="mine").nodes == 5
    assert operators_of(out) == ["Sin", "Cos", "Tan", "Exp", "Log"] and max(tried[5:]) <= 8


def test_nothing_to_reduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "compare_model", lambda *given: Compared("net", "host", "host CPU", [], []))
    with pytest.raises(KilnError, match="model 'net': all its tensors are within their limits on host"):
        reduce.reduce_model(str(network(tmp_path / "net.onnx")), HOST, None, tmp_path / "out.onnx")
    with pytest.raises(KilnError, match=r"model 'resnet': reduce accepts \.onnx and \.pt2 files"):
        reduce.reduce_model("resnet", HOST, None, tmp_path / "out.onnx")


def test_what_cannot_be_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the user that are wrong are named before anything is built; no part is left."""
    monkeypatch.setattr(reduce, "compare_model", lambda *given: pytest.fail("it was built"))
    net, damaged = network(tmp_path / "net.onnx"), tmp_path / "damaged.onnx"
    damaged.write_bytes(b"damaged")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    for model, inputs, out, message in (
        (net, tmp_path / "bad.npz", "out.onnx", r"bad\.npz: not a \.npz file of arrays"),
        (damaged, None, "out.onnx", r"damaged\.onnx: not an ONNX model: the file is plain text"),
        (net, None, "net.onnx/out.onnx", r"--out .*: .*net\.onnx is not a folder"),
        (net, None, ".", r"--out .*: a folder, but the path of a file is expected"),
        (net, None, "out.npz", r"--out .*out\.npz: its name must end in \.onnx"),
    ):
        with pytest.raises(KilnError, match=message):
            reduce.reduce_model(str(model), HOST, inputs, tmp_path / out)
    assert not (tmp_path / "out.onnx").exists()


def test_nested_graphs_bring_what_they_read(tmp_path: Path) -> None:
    """The part of an If has the tensors, the weights and the producers that its branches read."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[rows,2] x, bool flag) => (float[rows,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}>
    {
        a = Relu(x)
        c = Tanh(x)
        b = If(flag) <
            then_branch = yes () => (float[rows,2] then_y) { then_y = MatMul(a, w) },
            else_branch = no () => (float[rows,2] else_y) { else_y = Identity(a) }
        >
        y = Add(b, c)
    }
    """
    model = onnx.parser.parse_model(text)
    parts = reduce.Parts(model)
    assert parts.before(2, 9) == [0, 2]
    for numbers, entering in (([2], ["flag", "a"]), ([0, 2], ["x", "flag"])):
        part, read = parts.cut(numbers) or (onnx.ModelProto(), [])
        onnx.checker.check_model(part, full_check=True)
        assert (read, [tensor.name for tensor in part.graph.initializer]) == (entering, ["w"])
        assert [value.name for value in part.graph.output] == ["b"]


def test_keys_of_the_model_that_apply_to_a_part(tmp_path: Path) -> None:
    config = {
        "source": {"kind": "file", "path": "net.onnx"},
        "weights": "int8",
        "dims": {
            "rows": {"min": 2, "max": 8, "buckets": [4], "fallback": "error"},
            "other": {"min": 1, "max": 3},
        },
        "bounds": {"found[0]": 4, "lost": 7},
        "tolerance": {"absolute": 0.5, "levels": 2, "outputs": {"y": {"absolute": 1}}},
        "state": {"h": "h_out"},
    }
    (tmp_path / "net.yaml").write_text(json.dumps(config))
    graph = onnx.parser.parse_graph("g (float[Rows,2] a) => (int64[2,n] found) { found = NonZero(a) }")
    model, part = load_model(str(tmp_path / "net.yaml")), helper.make_model(graph)
    keys = keys_of_part(model, part)
    assert keys.pop("weights")["type"] == "int8"
    assert keys == {
        "dims": {"rows": {"min": 2, "max": 8}}, "bounds": {"found[0]": 4}, "tolerance": {"levels": 2}
    }  # fmt: skip
    assert write_keys(keys, tmp_path / "part.onnx") == tmp_path / "part.yaml"
    assert load_model(str(tmp_path / "part.yaml")).dims["rows"].max == 8
    assert write_keys({}, tmp_path / "part.onnx") == tmp_path / "part.onnx"
    floats, both = "float[2] a) => (float[2] b", "float[2] a) => (float[2] b, int8[2] c"
    for ports, limits in ((floats, {"absolute": 0.5}), (both, {"absolute": 0.5, "levels": 2})):
        part = helper.make_model(onnx.parser.parse_graph(f"g ({ports}) {{ b = Relu(a) }}"))
        assert keys_of_part(model, part)["tolerance"] == limits
