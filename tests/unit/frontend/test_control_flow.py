"""If, Loop, Scan and sequences of several lengths: imported graphs against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.errors import KilnError
from onnx import numpy_helper
from symbolic import imported, runner, write

BRANCHES = """
g (float[2,3] x, bool c) => (float[2,3] y, int64[1] k) {
  s = Add(x, x)
  y, k = If(c) <
    then_branch = t () => (float[2,3] a, int64[1] n)
      <int64[1] one = {1}> { a = Mul(s, x)  n = Identity(one) },
    else_branch = e () => (float[2,3] a, int64[1] n)
      <int64[1] two = {2}> { b = If(c) <then_branch = tt () => (float[2,3] q) { q = Neg(x) },
                                        else_branch = ee () => (float[2,3] q) { q = Abs(s) }>
                             a = Sub(b, x)  n = Identity(two) }
  >
}
"""
COUNTED = """
g (float[2] x) => (float[2] last, float[4,2] all) <int64 trips = {4}, bool going = {1}> {
  last, all = Loop(trips, going, x) <
  body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] r) {
    d = Identity(c)  f = Cast<to=1>(i)  w = Add(v, f)  r = Mul(w, x)
  }>
}
"""
# The condition of the next iteration is computed from the iteration's number alone: 3 iterations.
ENDED = """
g (float[2] x) => (float[2] last, float[3,2] all) <int64 trips = {9}, int64 two = {2}> {
  last, all = Loop(trips, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] row) {
    d = Less(i, two)  w = Add(v, x)  row = Identity(w)
  }>
}
"""
# How many iterations run depends on the values.
WHILE = """
g (float[2] x, bool going) => (float[2] last, float n)
<int64 trips = {20}, float zero = {0}, float one = {1}, float limit = {10}> {
  last, n = Loop(trips, going, x, zero) <body = b (int64 i, bool c, float[2] v, float k)
    => (bool d, float[2] w, float m) {
    w = Add(v, v)  m = Add(k, one)  t = ReduceSum<keepdims=0>(w)  d = Less(t, limit)
  }>
}
"""
SCANNED = """
g (float[2] h, float[3,2] x, float[2,3] z) => (float[2] last, float[2,3] rows, float[3,2] sums) {
  last, rows, sums = Scan<num_scan_inputs=2, scan_input_axes=[0,1], scan_input_directions=[0,1],
                          scan_output_axes=[1,0], scan_output_directions=[0,1],
    body = b (float[2] s, float[2] a, float[2] c) => (float[2] t, float[2] row, float[2] total)
    { t = Add(s, a)  row = Mul(t, c)  total = Sub(t, c) }>(h, x, z)
}
"""
# The branches declare one axis of results that have two, as PyTorch's exporter by tracing does.
DECLARED = """
g (float[n,8] x) => (float[m,8] y, float[m,4] z) {
  r = Relu(x)  s = Shape(r)  axes = Size(s)  zero = Constant<value = int64 {0}>()  c = Equal(axes, zero)
  i = If(c) <then_branch = t () => (float[?] a) { a = Squeeze(r) },
             else_branch = e () => (float[?] b) { b = Identity(r) }>
  v = Abs(i)  y = Neg(v)
  u = Shape(v)  from = Constant<value = int64[1] {-2}>()  to = Constant<value = int64[1] {-1}>()
  rows = Slice(u, from, to)  four = Constant<value = int64[1] {4}>()  sizes = Concat<axis=0>(rows, four)
  z = ConstantOfShape(sizes)
}
"""


def compare(path: Path, inputs: Mapping[str, Any], dims: Any = None, **sizes: int) -> None:
    """Compare the imported graph with ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(inputs))
    got = runner(imported(path, dims or {})[0])(list(inputs.values()), sizes)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_on_a_value_of_the_run(condition: bool, tmp_path: Path) -> None:
    x = np.float32([[1, -2, 3], [-4, 5, 0]])
    compare(write(tmp_path / "m.onnx", BRANCHES), {"x": x, "c": np.array(condition)})


@pytest.mark.parametrize("sizes", [{}, {"n": 3}])
def test_shapes_that_branches_declare_are_not_believed(sizes: dict[str, int], tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", DECLARED if sizes else DECLARED.replace("float[n,", "float[3,"))
    x = np.arange(-8, 16, dtype="float32").reshape(3, 8)
    compare(path, {"x": x}, {"n": (1, 9)} if sizes else None, **sizes)


@pytest.mark.parametrize("text", [COUNTED, ENDED])
def test_a_known_number_of_iterations(text: str, tmp_path: Path) -> None:
    compare(write(tmp_path / "m.onnx", text), {"x": np.float32([0.5, -2])})


@pytest.mark.parametrize(
    ("start", "going"), [(0.1, True), (1.0, True), (100.0, True), (0.1, False), (-1, True)]
)
@pytest.mark.slow
def test_iterations_that_the_values_end(start: float, going: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", WHILE)
    compare(path, {"x": np.float32([start, 0.2]), "going": np.array(going)})


def test_scan_along_any_axis_in_any_direction(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    inputs = {"h": rng.random(2, "f4"), "x": rng.random((3, 2), "f4"), "z": rng.random((2, 3), "f4")}
    compare(write(tmp_path / "m.onnx", SCANNED), inputs)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.slow
def test_sequences_of_several_lengths_and_a_dynamic_batch(kind: str, gates: int, tmp_path: Path) -> None:
    outputs = "float[5,2,n,3] y, float[2,n,3] h" + (", float[2,n,3] c" if kind == "LSTM" else "")
    names = "y, h, c" if kind == "LSTM" else "y, h"
    text = (
        f"g (float[5,n,2] x, int32[n] lens) => ({outputs}) "
        f'{{ {names} = {kind}<hidden_size=3, direction="bidirectional">(x, w, r, b, lens) }}'
    )
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.uniform(-1, 1, (2, 3 * gates, 2)).astype("f4"),
        "r": rng.uniform(-1, 1, (2, 3 * gates, 3)).astype("f4"),
        "b": rng.uniform(-1, 1, (2, 6 * gates)).astype("f4"),
    }
    path = write(tmp_path / "m.onnx", text, 14, **weights)
    for lens in ([5, 2, 1], [3], [4, 5]):
        x = rng.uniform(-2, 2, (5, len(lens), 2)).astype("f4")
        compare(path, {"x": x, "lens": np.int32(lens)}, {"n": (1, 4)}, n=len(lens))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            BRANCHES.replace("{2}>", "{2}, int64[2] flat = {1, 1}>").replace(
                "n = Identity(two)", "n = Reshape(two, flat)"
            ),
            r"output 'k' is int64\[1\] and int64\[1, 1\], depending on a value of the run",
        ),
        (
            COUNTED.replace("g (float[2] x)", "g (float[2] x, int64 trips)").replace(
                "int64 trips = {4}, ", ""
            ),
            "no limit follows from the graph: .* 'bounds: {all: N}'",
        ),
    ],
)
def test_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=says):
        imported(write(tmp_path / "m.onnx", text), {})


def test_a_weight_in_a_body_keeps_its_value(tmp_path: Path) -> None:
    """Bodies and branches may use the same names: each has its own."""
    path = write(
        tmp_path / "m.onnx",
        BRANCHES.replace("<int64[1] two = {2}>", "<int64[1] one = {7}>").replace("(two)", "(one)"),
    )
    model = onnx.load(path)
    held = [
        numpy_helper.to_array(weight).item()
        for attribute in model.graph.node[1].attribute
        for weight in attribute.g.initializer
    ]
    assert sorted(held) == [1, 7]
    for condition in (True, False):
        compare(path, {"x": np.ones((2, 3), "f4"), "c": np.array(condition)})


@pytest.mark.parametrize("known", ["int64 trips = {0}, bool going = {1}", "bool going = {0}"])
def test_a_loop_that_never_runs_has_no_rows(known: str, tmp_path: Path) -> None:
    given = "" if "trips" in known else ", int64 trips"
    text = COUNTED.replace("int64 trips = {4}, bool going = {1}", known)
    text = text.replace("g (float[2] x)", f"g (float[2] x{given})").replace("float[4,2] all", "float[2] y")
    text = text.replace("}>\n}", "}>\n  sums = ReduceSum<keepdims=0>(all, axis)  y = Add(sums, last)\n}")
    path = write(tmp_path / "m.onnx", text, axis=np.array([0]))
    compare(path, {"x": np.float32([0.5, -2]), **({"trips": np.array(3)} if given else {})})


def test_a_body_ends_a_loop_without_a_first_condition(tmp_path: Path) -> None:
    """As in ONNX Runtime; ONNX says that the condition is ignored, and onnxsim does so."""
    text = WHILE.replace("Loop(trips, going, x, zero)", 'Loop(trips, "", x, zero)')
    text = text.replace(", bool going", "")
    compare(write(tmp_path / "m.onnx", text), {"x": np.float32([0.1, 0.2])})


UNREAD_ROWS = """
g (float[2] h, float[3,2] x) => (float[2,3] rows, float[2] last) {
  state, sums, rows = Scan<num_scan_inputs=1, scan_output_axes=[0,1], scan_output_directions=[0,1],
    body = b (float[2] s, float[2] a) => (float[2] t, float[2] sum, float[2] row)
    { t = Add(s, a)  sum = Mul(t, a)  row = Neg(t) }>(h, x)
  unread = Neg(sums)  last = Neg(state)
}
"""


def test_results_that_nothing_reads_are_not_computed(tmp_path: Path) -> None:
    """The rows of a Scan, and a result of an If, which may then have different sizes in its branches."""
    x = np.random.default_rng(4).random((3, 2), "f4")
    compare(write(tmp_path / "scan.onnx", UNREAD_ROWS), {"h": x[0], "x": x})
    text = BRANCHES.replace("{2}>", "{2}, int64[2] flat = {1, 1}>")
    text = text.replace("n = Identity(two)", "n = Reshape(two, flat)").replace(", int64[1] k)", ")", 1)
    path = write(tmp_path / "if.onnx", text)
    for condition in (True, False):
        compare(path, {"x": np.ones((2, 3), "f4"), "c": np.array(condition)})
