"""Folding of ONNX constants: the graphs that onnxsim refuses, and constants made to exhaust the machine."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.onnx import fold, predict
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.empties import without_empties
from relaxed import virtual_machine

Array = npt.NDArray[Any]
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
ROW = "g (float[1,4] x) => (float[1,4] y)"


def write(path: Path, text: str, **weights: Array) -> Path:
    model = onnx.parser.parse_model(HEADER + text)
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path.write_bytes(model.SerializeToString())
    return path


def compare(path: Path, *inputs: Array) -> str:
    """The text of the imported module, whose results must be ONNX Runtime's."""
    module, _ = import_model(path, ImportOptions("m"))
    machine = virtual_machine(without_empties(module))
    got = machine["main"](*[tvm.runtime.tensor(value) for value in inputs])
    [want] = open_reference(path).run(inputs)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    text: str = module.script()
    return text


def refused(path: Path) -> str:
    with pytest.raises(KilnError) as caught:
        import_model(path, ImportOptions("m"))
    return str(caught.value).removeprefix(f"{path}: ")


X = np.array([[-1, 0.5, 2, 3]], np.float32)


def test_a_constant_that_is_an_output_and_the_axes_of_a_slice(tmp_path: Path) -> None:
    """Also as a graph in which every tensor is an output has it; its shape is not ONNX's of no axes."""
    text = """g (float[1,4] x) => (float[1,2] y, int64[1] axes)
        <int64[1] axes = {-1}, int64[1] begin = {1}, int64[1] end = {3}> { y = Slice(x, begin, end, axes) }"""
    model = onnx.parser.parse_model(HEADER + text)
    folded = fold.canonicalise(model, tmp_path / "m.onnx", {"x": [1, 4]})
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in folded.graph.output]
    assert shapes == [[1, 2], [1]]


def test_a_graph_of_constants_has_no_nodes(tmp_path: Path) -> None:
    row = "g (float[1,4] x) => (float[3] y) { }"
    compare(write(tmp_path / "m.onnx", row, y=np.arange(3, dtype=np.float32)), X)
    assert "its graph has no nodes" in refused(write(tmp_path / "n.onnx", row))


def test_concats_without_elements_keep_their_shape(tmp_path: Path) -> None:
    """onnxsim omits operands without elements, also where their size along the axis counts.

    PyTorch exports `mask[:, 0:0] = 1` as a ScatterND at such indices.
    """
    scatter = "i = Concat<axis=-1>(a, a)  y = ScatterND(x, i, u) }"
    none = np.zeros((1, 0, 1), np.int64)
    indices = {"a": none, "u": np.zeros((1, 0), np.float32)}
    compare(write(tmp_path / "m.onnx", f"{ROW} {{ {scatter}", **indices), X)
    sizes = f"{ROW} {{ b = Slice(x, s, s, o)  c = Concat<axis=0>(b, a)  z = Shape(c)  w = Cast<to=1>(z)"
    sizes += "  q = ReduceSum<keepdims=0>(w)  y = Mul(x, q) }"
    zero, one = np.array([0]), np.array([1])
    compare(write(tmp_path / "n.onnx", sizes, a=np.zeros((3, 0), np.float32), s=zero, o=one), X)


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """ONNX Runtime sorts the nodes itself; ONNX's checker and onnxsim refuse these."""
    compare(write(tmp_path / "a.onnx", ROW + "{ y = Exp(a) a = Relu(x) }"), X)
    branches = """then_branch = t () => (float[1,4] p) { q = Relu(z) p = Neg(q) },
        else_branch = e () => (float[1,4] r) { r = Exp(z) }"""
    text = f"{{ y = If (c) <{branches}> z = Abs(x) c = Constant<value = bool {{1}}>() }}"
    compare(write(tmp_path / "b.onnx", ROW + text), X)
    assert "its input 'b' is computed from its own result: the graph has a cycle" in refused(
        write(tmp_path / "c.onnx", ROW + "{ a = Add(x, b) b = Relu(a) y = Exp(b) }")
    )


@pytest.mark.parametrize("count", [4, 2000])
def test_sizes_of_constants_that_inference_does_not_know(count: int, tmp_path: Path) -> None:
    """Short constants are computed, so that others may have their sizes; long ones stay unknown."""
    graph = f"""{{ p = NonZero(c) s = Shape(p) f = Cast<to=1>(s) t = ReduceSum<keepdims=0>(f)
        {"z = ConstantOfShape(s) e = Expand(t, s) u = Add(e, z)" if count == 4 else "u = Identity(t)"}
        v = ReduceMax<keepdims=0>(u) y = Add(x, v) }}"""
    values = np.arange(count, dtype="float32") % 3
    compare(write(tmp_path / "m.onnx", ROW + graph, c=values), X)


def test_repeats_that_are_constants(tmp_path: Path) -> None:
    """As torch.repeat_interleave is exported: the axis of the running sum is a tensor of one axis."""
    text = """g (float[1,4] x) => (float[1,7] y) {
      ends = CumSum(counts, first)
      total = Gather(ends, last)
      length = Squeeze(total, first)
      places = Range(zero, length, one)
      y = ReduceSum<keepdims = 0>(hits, first)
      column = Unsqueeze(ends, second)
      begun = GreaterOrEqual(places, column)
      numbers = Cast<to = 7>(begun)
      index = ReduceSum<keepdims = 0>(numbers, first)
      rows = Gather<axis = 1>(x, index)
      hits = Unsqueeze(rows, first)
    }"""
    weights = {"first": [0], "last": [-1], "second": [1], "zero": 0, "one": 1, "counts": [1, 2, 1, 3]}
    path = write(tmp_path / "m.onnx", text, **{name: np.array(value) for name, value in weights.items()})
    compare(path, np.arange(4, dtype="f4")[None])


def test_functions_of_another_operator_set(tmp_path: Path) -> None:
    """ONNX's converter does not know the types of results of nested functions, and is not needed."""
    text = """<ir_version: 10, opset_import: ["" : 22, "own" : 1]>
        g (float[1,4] x) => (float[1,4] y) { y = own.outer(x) }
        <opset_import: ["" : 21, "own" : 1], domain: "own"> outer (a) => (b) { m = own.inner(a) b = Neg(m) }
        <opset_import: ["" : 21], domain: "own"> inner (a) => (b) { b = Mul(a, a) }"""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    compare(path, X)


def test_attributes_that_calls_leave_to_a_function(tmp_path: Path) -> None:
    """ONNX's inliner gives the operators of the body their own defaults, here an alpha of 0.01."""
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[1,4] x) => (float[1,4] y) {
            c = Constant<value = bool {1}>() s = own.outer(x) t = own.inner<slope = 0.75>(x) a = Add(s, t)
            y = If (c) <then_branch = p () => (float[1,4] q) { q = own.inner(a) },
                        else_branch = e () => (float[1,4] r) { r = Abs(a) }> }
        <opset_import: ["" : 21, "own" : 1], domain: "own"> outer <slope: float = -0.5> (a) => (b) {
            m = own.inner(a) n = own.inner<slope: float = @slope>(m) k = LeakyRelu<alpha: float = @slope>(a)
            b = Add(n, k) }
        <opset_import: ["" : 21], domain: "own"> inner <slope: float = 0.25> (a) => (b) {
            b = LeakyRelu<alpha: float = @slope>(a) }"""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    compare(path, X)


FOLDED = """{
    s = Shape(x) minus = Constant<value_ints=[-1]>() one = Constant<value_ints=[1]>()
    last = Slice(s, minus, big) big = Constant<value_ints=[9]>() n = Concat<axis=0>(last, one)
    w2 = Transpose(w) w3 = Mul(w2, two) two = Constant<value_float=2.0>()
    r = Reshape(x, n) m = MatMul(w3, r) f = Reshape(m, back) back = Constant<value_ints=[1,4]>()
    h = Relu(f) hs = Shape(h) z = ConstantOfShape(hs) y = Add(h, z) }"""


@pytest.mark.parametrize("fails", [False, True])
def test_without_onnxsim_the_same_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    def simplify(*_: object, **__: object) -> None:
        print("WARNING: failed to run an operator")
        os.write(1, b"and from C++")
        os.write(2, b"and there")
        raise RuntimeError("Nodes in a graph must be topologically sorted")

    if fails:
        # By name: tests/conftest.py freezes what files import, and onnxsim reports its own part as leaked.
        monkeypatch.setattr("onnxsim.simplify", simplify)
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    text = compare(write(tmp_path / "m.onnx", ROW + FOLDED, w=weight), X)
    assert "permute_dims" not in text and "R.multiply" not in text and "shape_of" not in text
    assert capfd.readouterr() == ("", "")


def doubled(times: int) -> str:
    chain = " ".join(f"c{n + 1} = Concat<axis=0>(c{n}, c{n})" for n in range(times))
    return f"c0 = Constant<value_floats=[1.0]>() {chain} c = Identity(c{times})"


HUGE = [
    (doubled(34), "Concat (node with output c24): a constant of 67108864 bytes, allowed: at most 33554432"),
    (
        "s = Constant<value_ints=[68719476736]>() c = ConstantOfShape(s)",
        "ConstantOfShape (node with output c): its result 'c' of [68719476736] has 68719476736 elements",
    ),
    (
        "s = Constant<value_ints=[268435456]>() c = ConstantOfShape(s)",
        "ConstantOfShape (node with output c): a constant of 1073741824 bytes",
    ),
    (
        "a = Constant<value_float=0.0>() b = Constant<value_float=1099511627776.0>() "
        "e = Constant<value_float=1.0>() c = Range(a, b, e)",
        "Range (node with output c): its result 'c' of [1099511627776] has 1099511627776 elements",
    ),
    (
        "s = Constant<value_ints=[2800,2800]>() q = ConstantOfShape(s) "
        + " ".join(f"m{n + 1} = MatMul({f'm{n}' if n else 'q'}, q)" for n in range(16))
        + " c = ReduceSum(m16)",
        "the constants that the graph computes take more than 274877906944 operations",
    ),
    (
        " ".join(
            f"s{n} = Constant<value_ints=[{8_000_000 + n}]>() c{n} = ConstantOfShape(s{n})" for n in range(20)
        )
        + " c = Identity(c1)",
        "and 536870912 in all of them",
    ),
]


@pytest.mark.parametrize(("text", "told"), HUGE, ids=["double", "2**36", "2**28", "range", "work", "many"])
def test_constants_beyond_the_limits_are_never_computed(tmp_path: Path, text: str, told: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write(tmp_path / "m.onnx", f"{ROW} {{ {text} m = ReduceSum(c) y = Add(x, m) }}")
    assert told in refused(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_vectors_made_of_dynamic_sizes_stay_short(tmp_path: Path) -> None:
    """ONNX's inference keeps each element of them, in some 30 bytes."""
    path = write(
        tmp_path / "m.onnx",
        "g (float[n,4] x) => (int64[k] y) { c0 = Shape(x) " + doubled(30)[36:] + " y = Identity(c) }",
    )
    model = onnx.load(path)
    fold._set_input_shapes(model.graph, {"x": ["n", 4]})
    with pytest.raises(
        KilnError, match=r"Concat .node with output c16.: computes 131072 elements from shapes"
    ):
        predict.Prediction(path, model).walk(model.graph)


def test_branches_may_use_one_name_for_different_tensors(tmp_path: Path) -> None:
    """A constant in one branch does not replace a tensor of the same name in the other branch."""
    one = "i = Constant<value = int64[1] {77}>() p = Identity(x)"
    other = "i = Identity(k) p = Gather<axis=1>(x, i)"
    branches = f"""then_branch = t () => (float[1,4] p) {{ {one} }},
        else_branch = e () => (float[1,4] p) {{ {other} }}"""
    head = "g (float[1,4] x, int64[4] k) => (float[1,4] y)"
    text = f"{head} {{ c = Constant<value = bool {{0}}>() y = If (c) <{branches}> }}"
    path = write(tmp_path / "m.onnx", text)
    predict.Prediction(path, onnx.load(path)).walk(onnx.load(path).graph)
    compare(path, X, np.array([3, 2, 1, 0]))


def test_a_fault_in_a_branch_names_the_input_that_chooses_the_branch(tmp_path: Path) -> None:
    """The file of a network for two sampling rates, of which one suits the given sizes."""
    body = """s = Equal(rate, r)  y = If (s) <then_branch = t () => (float[1,4] p) { p = Neg(x) },
        else_branch = e () => (float[1,4] q) { c = Concat<axis=1>(x, w)  q = MatMul(c, v) }> }"""
    weights = {"r": np.array(16000), "w": np.zeros((1, 4), np.float32), "v": np.zeros((5, 4), np.float32)}
    told = refused(
        write(tmp_path / "m.onnx", f"g (float[1,4] x, int64 rate) => (float[1,4] y) {{ {body}", **weights)
    )
    assert told.startswith("MatMul (node with output q) cannot be computed")
    way = (
        "chooses by rate: with a fixed value only one of its branches is built: 'cut: {constants: {rate: …}}'"
    )
    assert told.endswith(way) and told.count("only one of its branches") == 1


def test_a_file_with_large_weights_may_fold_as_much(tmp_path: Path) -> None:
    weight = np.ones((3000, 4000), np.float32)
    text = "g (float[1,4000] x) => (float[1,3000] y) { t = Transpose(w) y = MatMul(x, t) }"
    model = onnx.load(write(tmp_path / "m.onnx", text, w=weight))
    assert weight.nbytes > predict.LEAST_BYTES
    predict.Prediction(tmp_path, model).walk(model.graph)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT8, onnx.TensorProto.INT4], ids=["int8", "int4"])
def test_small_weights_may_be_converted_to_floats(tmp_path: Path, kind: int) -> None:
    """Weights of 16 MiB or 8 MiB that are 64 MiB as floats: the projection of a language model."""
    text = """g (float[1,4096] x) => (float[1,4096] y)
        { f = Cast<to = 1>(w) g = Mul(f, s) y = MatMul(x, g) }"""
    model = onnx.load(write(tmp_path / "m.onnx", text, s=np.ones((1, 4096), np.float32)))
    model.opset_import[0].version = 21  # the first one with int4
    weight = model.graph.initializer.add(name="w", data_type=kind, dims=(4096, 4096))
    weight.raw_data = bytes(4096 * 4096 // (2 if kind == onnx.TensorProto.INT4 else 1))
    predict.Prediction(tmp_path, model).walk(model.graph)
