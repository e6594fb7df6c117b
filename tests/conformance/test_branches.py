"""If on a value of the run: both branches are in the plan, and one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.errors import KilnError
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import fused
from kiln.plan.lifetimes import lifetimes, root_of
from symbolic import imported, write

from .programs import Program

# An expensive branch, a cheap one, and a product before the If that only the first branch needs.
HEAVY = """
g (float[8,8] x, bool c) => (float[8,8] y, float[8,8] z) {
  used = MatMul(x, x)
  both = Exp(x)
  y, z = If(c) <then_branch = a () => (float[8,8] p, float[8,8] q)
                 { r = MatMul(used, both)  p = Softmax(r)  q = Add(p, x) },
               else_branch = b () => (float[8,8] s, float[8,8] t) { s = Neg(both)  t = CumSum(x, axis) }>
}
"""
# Branches in branches; the inner condition is computed in the outer branch, and a value is shared by all.
NESTED = """
g (float[2,3] x, bool c, float limit) => (float[2,3] y, float[3] w) {
  e = Softmax(x)
  y, w = If(c) <then_branch = a () => (float[2,3] p, float[3] u) {
      s = ReduceSum<keepdims=0>(x)  d = Less(s, limit)
      p = If(d) <then_branch = aa () => (float[2,3] q) { l = Log(e)  q = CumSum(l, axis) },
                 else_branch = ab () => (float[2,3] r) { r = Softmax(e) }>
      u = ReduceMax<keepdims=0, axes=[0]>(p) },
    else_branch = b () => (float[2,3] t, float[3] v) {
      t = Hardmax(e)  v = ReduceMean<keepdims=0, axes=[0]>(x) }>
}
"""
# In a loop: the branch depends on the iteration; both read the carried value and replace it.
LOOPED = """
g (float[4] x, int64 trips, float[4,4] m) => (float[4] y)
<bool yes = {1}, int64 two = {2}, int64 zero = {0}> {
  k = MatMul(m, m)
  y = Loop(trips, yes, x) <body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
      d = Identity(c)  h = Mod(i, two)  even = Equal(h, zero)
      w = If(even) <then_branch = a () => (float[4] p) { q = MatMul(v, k)  p = Softmax<axis=0>(q) },
                    else_branch = b () => (float[4] r) { r = CumSum(v, axis) }> }>
}
"""
# A loop in one branch, and none in the other, which returns its operand.
INSIDE = """
g (float[3] x, int64 trips, bool c) => (float[3] y) <bool yes = {1}> {
  y = If(c) <then_branch = a () => (float[3] p) {
      p = Loop(trips, yes, x) <body = l (int64 i, bool g, float[3] v) => (bool d, float[3] w)
        { d = Identity(g)  e = CumSum(v, axis)  w = Softmax<axis=0>(e) }> },
    else_branch = b () => (float[3] q) { q = Identity(x) }>
}
"""
# Results of different sizes: the rows of a product, fewer of them, or none.
SIZES = """
g (float[n,4] x, bool c, bool e) => (float[k,m] y, float[r,4] z, float[4] s) <int64[1] first = {0}> {
  y = If(c) <then_branch = a () => (float[k,m] p) { q = Softmax(x)  p = Concat<axis=1>(q, x) },
             else_branch = b () => (float[k,m] r) { t = Slice(x, start, end)  r = Softmax(t) }>
  z = If(e) <then_branch = aa () => (float[r,4] u) { u = CumSum(x, axis) },
             else_branch = ab () => (float[r,4] v) { v = Identity(nothing) }>
  s = ReduceSum<keepdims=0>(z, first)
}
"""
# The same in a loop: each iteration counts its own size.
SIZES_LOOPED = """
g (float[3,4] x, int64 trips, float[4] z) => (float[4] y)
<bool yes = {1}, int64 two = {2}, int64 zero = {0}, int64[1] first = {0}> {
  y = Loop(trips, yes, z) <body = l (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
      d = Identity(c)  h = Mod(i, two)  even = Equal(h, zero)
      r = If(even) <then_branch = a () => (float[k,4] p) { q = Softmax(x)  p = Concat<axis=0>(q, x) },
                    else_branch = b () => (float[k,4] s) { s = CumSum(x, axis) }>
      u = ReduceSum<keepdims=0>(r, first)  w = Add(u, v) }>
}
"""
# Few elementwise operators: a selection, and no branch.
CHEAP = """
g (float[16] x, bool c) => (float[16] y) {
  y = If(c) <then_branch = a () => (float[16] p) { q = Exp(x)  p = Neg(q) },
             else_branch = b () => (float[16] r) { r = Abs(x) }>
}
"""
# Branches of convolutions, whose layout is that of what comes before and after them.
CONVOLUTIONS = """
g (float[1,3,9,9] x, bool c) => (float[1,4,7,7] y, float[4] m) {
  h = Conv(x, w0)
  r, m = If(c) <then_branch = a () => (float[1,4,7,7] p, float[4] u) {
      q = Conv<pads=[1,1,1,1]>(h, w1)  p = Relu(q)  u = ReduceMax<axes=[0,2,3], keepdims=0>(p) },
    else_branch = b () => (float[1,4,7,7] s, float[4] v) {
      t = Conv(h, w2)  s = Relu(t)  v = ReduceMin<axes=[0,2,3], keepdims=0>(t) }>
  y = Conv(r, w2)
}
"""
CONSTANTS: dict[str, Any] = {
    "w0": np.random.default_rng(2).normal(size=(4, 3, 3, 3)).astype("f4"),
    "w1": np.random.default_rng(3).normal(size=(4, 4, 3, 3)).astype("f4"),
    "w2": np.random.default_rng(4).normal(size=(4, 4, 1, 1)).astype("f4"),
    "axis": np.int64(0), "nothing": np.zeros((0, 4), "f4"), "start": np.array([0]), "end": np.array([2]),
}  # fmt: skip


def program(text: str, folder: Path, dims: Any = None) -> tuple[Program, Any]:
    weights = {name: value for name, value in CONSTANTS.items() if name in text}
    path = write(folder / "m.onnx", text, **weights)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return Program(path, dims), session


def compare(both: tuple[Program, Any], inputs: dict[str, Any], **sizes: int) -> list[str]:
    """Run both and compare; the labels of the steps that ran."""
    calls: list[str] = []
    ran = both[0].run(list(inputs.values()), sizes, calls)
    for ours, theirs in zip(ran, both[1].run(None, inputs), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return calls


def flag(value: bool) -> Any:
    return np.array(value)


def some(*shape: int) -> Any:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype("f4")


def test_one_branch_runs(tmp_path: Path) -> None:
    programs = program(HEAVY, tmp_path)
    first = compare(programs, {"x": some(8, 8), "c": flag(True)})
    second = compare(programs, {"x": some(8, 8), "c": flag(False)})
    assert sum("matmul" in label for label in first) == 2 and not any("cumsum" in one for one in first)
    assert not any("matmul" in label for label in second) and any("cumsum" in one for one in second)
    # What both branches read is computed before them, once.
    assert [sum(label == "exp" for label in ran) for ran in (first, second)] == [1, 1]


def test_branches_share_memory(tmp_path: Path) -> None:
    steps = program(HEAVY, tmp_path)[0].steps
    record = steps.record()
    tensors = {tensor.name: tensor for tensor in record.tensors}
    placed = {root_of(tensors, name) for name in (*steps.inputs, *steps.outputs, *steps.params)}
    marks = {step.branch.part: at for at, step in enumerate(steps.steps) if step.branch is not None}
    alive = lifetimes(tensors, steps.steps, placed)
    first = [one for one in alive if marks["first"] < one.first and one.last <= marks["second"]]
    assert first and all(one.last < marks["second"] for one in first)
    # Results are made in place: no branch ends with a copy.
    assert not any("copy" in step.label for step in steps.steps)


def test_nested(tmp_path: Path) -> None:
    programs = program(NESTED, tmp_path)
    counts = set()
    for c, limit in ((True, 9.0), (True, -9.0), (False, 9.0)):
        calls = compare(programs, {"x": some(2, 3), "c": flag(c), "limit": np.array(limit, "f4")})
        counts.add(tuple(calls))
    assert len(counts) == 3


def test_in_a_loop(tmp_path: Path) -> None:
    programs = program(LOOPED, tmp_path)
    for trips in (0, 1, 2, 5):
        inputs = {"x": some(4), "trips": np.array(trips), "m": some(4, 4)}
        calls = compare(programs, inputs)
        assert sum("cumsum" in label for label in calls) == trips // 2
        assert sum("matmul" in label for label in calls) == 1 + (trips + 1) // 2


def test_convolutions_in_branches_keep_their_layout(tmp_path: Path) -> None:
    programs = program(CONVOLUTIONS, tmp_path)
    labels = [step.label for step in programs[0].steps.steps]
    at = [labels.index(one) for one in ("first branch of choice 0", "end of choice 0")]
    assert not any("permute_dims" in label for label in labels[at[0] : at[1]])
    for c in (True, False):
        x = some(1, 3, 9, 9)
        outputs = programs[0].run([x, flag(c)])
        for ours, theirs in zip(outputs, programs[1].run(None, {"x": x, "c": flag(c)}), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_loop_in_a_branch(tmp_path: Path) -> None:
    programs = program(INSIDE, tmp_path)
    for trips, c in ((3, True), (0, True), (3, False)):
        calls = compare(programs, {"x": some(3), "trips": np.array(trips), "c": flag(c)})
        assert sum("cumsum" in label for label in calls) == (trips if c else 0)


@pytest.mark.parametrize("n", ["n", "3"])
def test_results_of_different_sizes(n: str, tmp_path: Path) -> None:
    programs = program(SIZES.replace("[n,", f"[{n},"), tmp_path, {"n": (2, 5)} if n == "n" else None)
    for size in (2, 5) if n == "n" else (3,):
        for c, e in ((True, False), (False, True)):
            inputs = {"x": some(size, 4), "c": flag(c), "e": flag(e)}
            calls = compare(programs, inputs, **({"n": size} if n == "n" else {}))
            assert any("cumsum" in label for label in calls) == e


def test_results_of_different_sizes_in_a_loop(tmp_path: Path) -> None:
    programs = program(SIZES_LOOPED, tmp_path)
    for trips in (0, 1, 2, 5):
        calls = compare(programs, {"x": some(3, 4), "trips": np.array(trips), "z": some(4)})
        assert sum("cumsum" in label for label in calls) == trips // 2


def test_few_elementwise_operators_are_selected_from(tmp_path: Path) -> None:
    programs = program(CHEAP, tmp_path)
    assert [step.branch for step in programs[0].steps.steps] == [None]
    for c in (True, False):
        compare(programs, {"x": some(16), "c": flag(c)})


def test_other_types_are_refused(tmp_path: Path) -> None:
    text = """
    g (float[4] x, bool c) => (float[k] y) {
      y = If(c) <then_branch = a () => (float[4] p) { p = Identity(x) },
                 else_branch = b () => (float[1,4] r) { r = Unsqueeze(x, axis) }>
    }
    """
    path = write(tmp_path / "m.onnx", text, axis=np.array([0]))
    message = r"output 'y' is float32\[4\] and float32\[1, 4\], depending on a value of the run"
    with pytest.raises(KilnError, match=message):
        imported(path, {})


def test_the_files_are_what_onnx_allows(tmp_path: Path) -> None:
    for number, text in enumerate((HEAVY, NESTED, LOOPED, INSIDE, CONVOLUTIONS, SIZES, SIZES_LOOPED, CHEAP)):
        weights = {name: value for name, value in CONSTANTS.items() if name in text}
        onnx.checker.check_model(str(write(tmp_path / f"{number}.onnx", text, **weights)))


def test_gpus_select(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", HEAVY, axis=np.int64(0))
    text = str(fused(simplify(imported(path, {})[0]))[0])
    assert "where" in text and "kiln.operator.choose" not in text
