"""Loops of the plan: Loop and Scan with a dynamic, large or computed number of iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from symbolic import imported, write

from .programs import Program

# The number of iterations is an input, the end is computed too; the carried values change places.
COUNTED = """
g (float[3] x, int64 trips, float limit) => (float[3] a, float[3] b, int64 n)
<float one = {1}, int64 zero = {0}> {
  y = Neg(x)
  a, b, n = Loop(trips, , x, y, zero) <body = l (int64 i, bool c, float[3] v, float[3] w, int64 k)
    => (bool d, float[3] p, float[3] q, int64 m) {
      f = Cast<to=1>(i)  g = Add(f, one)  q = Mul(v, g)  p = Add(w, one)  unit = Cast<to=7>(one)
      m = Add(k, unit)  s = ReduceMax<keepdims=0>(q)  d = Less(s, limit) }>
}
"""
# No greatest number; a value from before the loop and one from inside are used after it.
WHILE = """
g (float[2,3] x, bool going) => (float[2,3] last, float[2,3] y) <float two = {2}, float limit = {100}> {
  z = Mul(x, two)
  last = Loop(, going, z) <body = l (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] w) {
      w = Add(v, z)  s = ReduceSum<keepdims=0>(w)  d = Less(s, limit) }>
  y = Sub(last, z)
}
"""
# As many iterations as the input has rows, and outputs with a row of each.
ROWS = """
g (float[n,4] x, float[4] h) => (float[4] last, float[n,4] sums, float[m] greatest)
<bool yes = {1}, int64 axis = {0}> {
  shape = Shape(x)  trips = Gather(shape, axis)
  last, sums, greatest = Loop(trips, yes, h) <body = l (int64 i, bool c, float[4] v)
    => (bool d, float[4] w, float[4] row, float r) {
      d = Identity(c)  part = Gather(x, i)  w = Add(v, part)  row = Mul(w, v)
      r = ReduceMax<keepdims=0>(row) }>
}
"""
FILTER = """
g (float[2] h, float[n,2] x, float[3,n] z) => (float[2] last, float[2,n] rows, float[n,3] others)
<float part = {0.75}> {
  last, rows, others = Scan<num_scan_inputs=2, scan_input_axes=[0,1], scan_input_directions=[1,0],
                            scan_output_axes=[1,0], scan_output_directions=[0,1],
    body = b (float[2] s, float[2] a, float[3] c) => (float[2] t, float[2] row, float[3] other)
    { u = Mul(s, part)  t = Add(u, a)
      row = Identity(t)  m = ReduceMin<keepdims=0>(t)  other = Add(c, m) }>(h, x, z)
}
"""
# A loop inside of a loop, whose count is the outer one's number; both are carried by the inner one.
NESTED = """
g (float[2] x, int64 trips) => (float[2] y, float total) <bool yes = {1}, float zero = {0}, float one = {1}> {
  y, total = Loop(trips, yes, x, zero) <body = o (int64 i, bool c, float[2] v, float t)
    => (bool d, float[2] w, float u) {
      d = Identity(c)
      w, e = Loop(i, yes, v, zero) <body = l (int64 j, bool cc, float[2] a, float k)
        => (bool dd, float[2] b, float m)
        { dd = Identity(cc)  b = Add(a, x)  m = Add(k, one) }>
      u = Add(t, e) }>
}
"""
# A value that grows by two rows in each iteration, after those that it starts with.
GROWN = """
g (float[n,3] x, float[3] s, float[2,3] first) => (float[m,3] all, float[3] last, float[k,3] rows)
<bool yes = {1}, int64[1] axis = {0}, int64 zero = {0}> {
  shape = Shape(x)  trips = Gather(shape, zero)
  all, last, rows = Loop(trips, yes, first, s) <body = l (int64 i, bool c, float[o,3] v, float[3] w)
    => (bool d, float[p,3] grown, float[3] next, float[3] row) {
      d = Identity(c)  at = Unsqueeze(i, axis)  r = Gather(x, at)  u = Add(r, w)  two = Concat<axis=0>(r, u)
      grown = Concat<axis=0>(v, two)  q = Squeeze(r, axis)  next = Add(w, q)  row = Neg(next) }>
}
"""
# The same iterations several hundred times: too many to unroll.
MANY = """
g (float[2,2] x) => (float[2,2] y) <int64 trips = {700}, bool yes = {1}, float half = {0.5}> {
  y = Loop(trips, yes, x) <body = l (int64 i, bool c, float[2,2] v) => (bool d, float[2,2] w)
    { d = Identity(c)  p = MatMul(v, x)  q = Mul(p, half)  w = Add(q, x) }>
}
"""


# Loops that count in their condition: to a size, in floats, as tf2onnx writes it, and by two to a constant.
COUNTING = """
g (float[n,4] x, float[4] h) => (float[4] last, float[m,4] sums)
<int64 axis = {0}, int32 start = {0}, float none = {0}, int32 unit = {1}> {
  shape = Shape(x)  size = Gather(shape, axis)  whole = Cast<to=6>(size)  end = Cast<to=1>(size)
  going = Less(none, end)
  time, limit, last, sums = Loop(, going, start, whole, h) <body = l
    (int64 i, bool c, int32 t, int32 stop, float[4] v)
    => (bool d, int32 next, int32 stopped, float[4] w, float[4] row) {
      next = Add(t, unit)  stopped = Identity(stop)  part = Gather(x, t)  w = Add(v, part)  row = Mul(w, v)
      a = Cast<to=1>(next)  b = Cast<to=1>(stop)  d = Less(a, b) }>
}
"""
COUNTING_BY_TWO = """
g (float[9,4] x) => (float[m,4] rows) <int64 start = {0}, int64 two = {2}, int64 most = {6}, bool yes = {1}> {
  last, rows = Loop(, yes, start) <body = l (int64 i, bool c, int64 t)
    => (bool d, int64 next, float[4] row) {
      next = Add(two, t)  row = Gather(x, t)  d = GreaterOrEqual(most, next) }>
}
"""


# One such loop inside another, both rewritten.
COUNTING_TWICE = """
g (float[9,4] x) => (float[m,k,4] blocks)
<int64 start = {0}, int64 one = {1}, int64 rows = {3}, bool yes = {1}> {
  last, blocks = Loop(, yes, start) <body = l (int64 i, bool c, int64 t)
    => (bool d, int64 next, float[k,4] block) {
      next = Add(t, one)
      inner, block = Loop(, yes, start) <body = n (int64 j, bool e, int64 s)
        => (bool f, int64 after, float[4] row) {
          after = Add(s, one)  at = Add(s, t)  row = Gather(x, at)  f = Less(after, rows) }>
      d = Less(next, rows) }>
}
"""


def compare(program: Program, path: Path, inputs: dict[str, Any], **sizes: int) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    want = session.run(None, inputs)
    got = program.run(list(inputs.values()), sizes)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return list(got)


def _i64(value: int) -> Any:
    return np.array(value, np.int64)


def test_a_computed_number_of_iterations(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", COUNTED)
    program = Program(path)
    assert sum(step.loop is not None for step in program.steps.steps) == 2
    x = np.float32([0.5, -1, 0.25])
    for trips, limit in ((0, 9.0), (1, 9.0), (6, 1e6), (50, 20.0), (-3, 9.0)):
        compare(program, path, {"x": x, "trips": _i64(trips), "limit": np.array(limit, "f4")})


def test_a_value_that_grows(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", GROWN)
    program = Program(path, {"n": (0, 5)})
    random = np.random.default_rng(0)
    for n in (0, 1, 5):
        shapes = {"x": (n, 3), "s": (3,), "first": (2, 3)}
        inputs = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
        compare(program, path, inputs, n=n)


def test_a_condition_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", WHILE)
    program = Program(path)
    for start, going in ((0.5, True), (0.01, True), (80.0, True), (0.5, False)):
        compare(program, path, {"x": np.full((2, 3), start, "f4"), "going": np.array(going)})


def test_rows_of_an_open_number_of_iterations(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ROWS)
    program = Program(path, {"n": (0, 7)})
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 7):
        inputs = {"x": rng.uniform(-1, 1, (n, 4)).astype("f4"), "h": rng.uniform(-1, 1, 4).astype("f4")}
        compare(program, path, inputs, n=n)


def test_conditions_that_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    path = write(tmp_path / "m.onnx", COUNTING)
    program = Program(path, {"n": (0, 7)})
    for n in (0, 1, 2, 7):
        inputs = {"x": rng.uniform(-1, 1, (n, 4)).astype("f4"), "h": rng.uniform(-1, 1, 4).astype("f4")}
        compare(program, path, inputs, n=n)
    path = write(tmp_path / "two.onnx", COUNTING_BY_TWO)
    assert compare(Program(path), path, {"x": rng.uniform(-1, 1, (9, 4)).astype("f4")})[0].shape == (4, 4)
    path = write(tmp_path / "twice.onnx", COUNTING_TWICE)
    assert compare(Program(path), path, {"x": rng.uniform(-1, 1, (9, 4)).astype("f4")})[0].shape == (3, 3, 4)


@pytest.mark.parametrize(("direction", "dtype"), [("bidirectional", "uint8"), ("reverse", "int8")])
def test_lstms_of_quantised_weights(direction: str, dtype: str, tmp_path: Path) -> None:
    """As onnxruntime.quantization's quantize_dynamic writes them; with zero points of every column, too."""
    rng, sides = np.random.default_rng(3), 2 if direction == "bidirectional" else 1
    path, constants = tmp_path / "m.onnx", {}
    for name, rows in (("w", 3), ("r", 5)):
        per = [sides, 20] if dtype == "int8" else [sides]
        constants[name] = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, [sides, rows, 20]).astype(
            dtype
        )
        constants[f"{name}_scale"] = rng.uniform(0.002, 0.01, per).astype("f4")
        constants[f"{name}_zero"] = np.full(per, 0 if dtype == "int8" else 120, dtype)
    constants["b"] = rng.uniform(-1, 1, [sides, 40]).astype("f4")
    given = {"uint8": ["", "h", "c"], "int8": [""] * 3}[dtype]
    names = ["x", "w", "r", "b", *given, "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = onnx.helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "", "last"],
        domain="com.microsoft",
        hidden_size=5,
        direction=direction,
    )
    ports = {"x": ["n", 1, 3], "h": [sides, 1, 5], "c": [sides, 1, 5]}
    inputs = [name for name in ports if name == "x" or name in given]
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ports[name]) for name in inputs],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("y", "last")],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    program = Program(path, {"n": (1, 9)})
    for n in (1, 4, 9):
        shapes = {name: [n if size == "n" else size for size in ports[name]] for name in inputs}
        values = {name: rng.uniform(-1, 1, shape).astype("f4") for name, shape in shapes.items()}
        compare(program, path, values, n=n)


@pytest.mark.parametrize("length", ["n", "300"])
def test_scan(length: str, tmp_path: Path) -> None:
    """A recursive filter: one state, two sequences, backwards and along other axes."""
    text = FILTER.replace("[n,", f"[{length},").replace(",n]", f",{length}]")
    path = write(tmp_path / "m.onnx", text)
    program = Program(path, {"n": (1, 9)} if length == "n" else {})
    rng = np.random.default_rng(1)
    for n in (1, 2, 9) if length == "n" else (300,):
        shapes = {"h": (2,), "x": (n, 2), "z": (3, n)}
        inputs = {name: rng.uniform(-1, 1, shape).astype("f4") for name, shape in shapes.items()}
        compare(program, path, inputs, n=n)


def test_a_loop_in_a_loop(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", NESTED)
    program = Program(path)
    for trips in (0, 1, 2, 5):
        compare(program, path, {"x": np.float32([0.5, -2]), "trips": _i64(trips)})


def test_many_iterations_are_a_few_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", MANY)
    program = Program(path)
    assert len(program.steps.steps) < 12
    compare(program, path, {"x": np.float32([[0.5, -0.25], [0.125, 0.75]])})


def test_what_grows_is_refused(tmp_path: Path) -> None:
    text = """
    g (float[2] x, int64 trips) => (float[k] y) <bool yes = {1}> {
      y = Loop(trips, yes, x) <body = l (int64 i, bool c, float[j] v) => (bool d, float[j] w)
        { d = Identity(c)  w = Concat<axis=0>(x, v) }>
    }
    """
    message = (
        r"carried value 0 \('w' of its body\) is float32\[2\] before an iteration and float32\[4\] after it"
    )
    with pytest.raises(KilnError, match=message):
        imported(write(tmp_path / "m.onnx", text), {})


def test_the_files_are_what_onnx_allows(tmp_path: Path) -> None:
    for number, text in enumerate((COUNTED, WHILE, ROWS, FILTER, NESTED, MANY)):
        onnx.checker.check_model(str(write(tmp_path / f"{number}.onnx", text)))


def test_inputs_without_axes_reach_the_reference(tmp_path: Path) -> None:
    """As NumPy's own scalars, which ONNX Runtime refuses."""
    path = write(tmp_path / "m.onnx", COUNTED)
    outputs = open_reference(path).run([np.float32([1, 2, 3]), np.int64(2), np.float32(9)])
    assert [value.shape for value in outputs] == [(3,), (3,), ()]
