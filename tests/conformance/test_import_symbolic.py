"""Graphs with dynamic sizes, imported once for all of them, against ONNX Runtime at several sizes.

Every graph computes something from its input's shape in a way that exporters do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.sizes import evaluate
from kiln.frontend.importer import operators
from kiln.golden.reference import open_reference
from symbolic import Array, Dims, imported, runner, write


@dataclass(frozen=True)
class Graph:
    """An ONNX graph in text, its initialisers, its dimensions, and the sizes to try."""

    text: str
    dims: Dims
    sizes: list[dict[str, int]]
    weights: dict[str, Any] = field(default_factory=dict)
    opset: int = 17


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def scalar(number: int) -> Array:
    return np.array(number, np.int64)


SEQ: Dims = {"seq": (1, 64)}
SEQS = [{"seq": size} for size in (1, 5, 64)]
BOTH: Dims = {"batch": (1, 4), "seq": (2, 32)}
BOTHS = [{"batch": 1, "seq": 2}, {"batch": 3, "seq": 9}, {"batch": 4, "seq": 32}]
PICTURE: Dims = {"h": (8, 64, 8), "w": (8, 64, 8)}
PICTURES = [{"h": 8, "w": 8}, {"h": 24, "w": 40}]

GRAPHS = {
    "heads": Graph(
        """g (float[batch,seq,8] x) => (float[?,?,?,?] y, float[?,?,?] z) {
          s = Shape(x)
          b = Gather(s, zero)
          l = Gather(s, one)
          b1 = Unsqueeze(b, first)
          l1 = Unsqueeze(l, first)
          split = Concat<axis = 0>(b1, l1, two, rest)
          r = Reshape(x, split)
          y = Transpose<perm = [0, 2, 1, 3]>(r)
          back = Transpose<perm = [0, 2, 1, 3]>(y)
          z = Reshape(back, kept)
        }""",
        BOTH,
        BOTHS,
        {
            "zero": scalar(0),
            "one": scalar(1),
            "first": whole(0),
            "two": whole(2),
            "rest": whole(-1),
            "kept": whole(0, 0, -1),
        },
    ),
    "expand": Graph(
        """g (float[batch,seq] x) => (float[?,?,?] y, float[?,?] same) {
          s = Shape(x)
          wide = Concat<axis = 0>(three, s)
          minus = ConstantOfShape<value = int64[1] {-1}>(count)
          open = Equal(wide, minus)
          ones = ConstantOfShape<value = int64[1] {1}>(count)
          shape = Where(open, ones, wide)
          y = Expand(x, shape)
          same = Expand(x, unit)
        }""",
        BOTH,
        BOTHS,
        {"three": whole(3), "count": whole(3), "unit": whole(1, 1)},
    ),
    "filled": Graph(
        """g (float[batch,seq] x) => (float[?,?] y, int64[?] l) {
          s = Shape(x)
          ones = ConstantOfShape<value = float[1] {1}>(s)
          y = Add(x, ones)
          l = Identity(s)
        }""",
        BOTH,
        BOTHS,
    ),
    "positions": Graph(
        """g (int64[batch,seq] ids) => (float[?,?,4] y, float[?] z) {
          words = Gather(table, ids)
          s = Shape(ids)
          l = Gather(s, one)
          p = Range(zero, l, one)
          placed = Gather(table, p)
          y = Add(words, placed)
          z = Cast<to = 1>(p)
        }""",
        BOTH,
        BOTHS,
        {"table": np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)}
        | {"zero": scalar(0), "one": scalar(1)},
    ),
    "slices": Graph(
        """g (float[seq,6] x) => (float[?,6] head, float[?,6] tail, float[?,6] half, float[1,?] row) {
          s = Shape(x)
          l = Slice(s, zero, one)
          mid = Div(l, two)
          head = Slice(x, zero, minus, zero)
          tail = Slice(x, one, far, zero)
          half = Slice(x, mid, l, zero)
          row = Slice(table, zero, l, one)
        }""",
        {"seq": (2, 64)},
        [{"seq": size} for size in (2, 7, 64)],
        {"zero": whole(0), "one": whole(1), "two": whole(2), "minus": whole(-1), "far": whole(2**62)}
        | {"table": np.arange(64, dtype=np.float32).reshape(1, 64)},
    ),
    "ceiling": Graph(
        """g (float[seq,3] x) => (float[?,3] y) {
          s = Shape(x)
          l = Slice(s, zero, one)
          f = Cast<to = 1>(l)
          scaled = Mul(f, half)
          up = Ceil(scaled)
          n = Cast<to = 7>(up)
          y = Slice(x, zero, n, zero)
        }""",
        SEQ,
        SEQS,
        {"zero": whole(0), "one": whole(1), "half": np.array([0.5], np.float32)},
    ),
    "mean_by_hand": Graph(
        """g (float[batch,seq,3] x) => (float[?,3] y) {
          total = ReduceSum<keepdims = 0>(x, axis)
          s = Shape(x)
          l = Gather(s, one)
          f = Cast<to = 1>(l)
          y = Div(total, f)
        }""",
        BOTH,
        BOTHS,
        {"axis": whole(1), "one": scalar(1)},
    ),
    "last": Graph(
        """g (float[batch,seq,3] x, int64[2] places) => (float[?,3] y, float[?,3] z, float[?,2,3] p) {
          s = Shape(x)
          l = Gather(s, one)
          last = Sub(l, one)
          y = Gather<axis = 1>(x, last)
          z = Gather<axis = 1>(x, minus)
          p = Gather<axis = 1>(x, places)
        }""",
        BOTH,
        BOTHS,
        {"one": scalar(1), "minus": scalar(-1)},
    ),
    "indexed": Graph(
        """g (float[batch,seq,3] x, int64[batch,2,3] i, float[1,3] u) =>
             (float[?,2,3] y, float[1,3] z, float[?,?,3] v, float[?,?,3] w) {
          y = GatherElements<axis = 1>(x, i)
          z = GatherND(x, p)
          v = ScatterND(x, p, u)
          w = ScatterElements<axis = 1>(x, once, ones)
        }""",
        BOTH,
        BOTHS,
        {"p": whole(0, -1).reshape(1, 2)}
        | {"once": whole(-1).reshape(1, 1, 1), "ones": np.ones((1, 1, 1), np.float32)},
    ),
    "tiled": Graph(
        """g (float[batch,seq] x) => (float[?,?] y) {
          s = Shape(x)
          b = Slice(s, zero, one)
          times = Concat<axis = 0>(b, two)
          y = Tile(x, times)
        }""",
        BOTH,
        BOTHS,
        {"zero": whole(0), "one": whole(1), "two": whole(2)},
    ),
    "padded": Graph(
        """g (float[2,seq] x) => (float[2,?] y, float[2,?] z) {
          s = Shape(x)
          l = Slice(s, one, two)
          left = Sub(most, l)
          amounts = Concat<axis = 0>(zero, one, zero, left)
          y = Pad(x, amounts, value)
          z = Pad(x, fixed, value)
        }""",
        SEQ,
        SEQS,
        {"zero": whole(0), "one": whole(1), "two": whole(2), "most": whole(64)}
        | {"value": np.array(1.5, np.float32), "fixed": whole(0, 1, 0, 2)},
    ),
    "copied": Graph(
        """g (float[2,seq] x) => (float[?,?] y, float[?,?] z, float[?,?] w) {
          y = Pad<mode: string = "reflect">(x, mirrored)
          z = Pad<mode: string = "edge">(x, sides)
          w = Pad<mode: string = "wrap">(x, sides)
        }""",
        {"seq": (3, 64)},
        [{"seq": size} for size in (3, 9, 64)],
        {"mirrored": whole(0, 2, 1, 1), "sides": whole(1, 0, 2, 3)},
        opset=19,
    ),
    "counted": Graph(
        """g (float[batch,seq,4] x) => (float[?] flat, float[?,?] rows, float[?,?,?] y) {
          n = Size(x)
          n1 = Unsqueeze(n, zero)
          flat = Reshape(x, n1)
          s = Shape<start = 0, end = 2>(x)
          p = ReduceProd<keepdims = 1>(s)
          shape = Concat<axis = 0>(p, rest)
          rows = Reshape(x, shape)
          b = Slice(s, zero, one)
          l = Slice(s, one, two)
          lo = Min(b, l)
          hi = Max(b, l)
          both = Mul(lo, hi)
          four = Mod(both, both)
          five = Add(four, wide)
          shape3 = Concat<axis = 0>(b, l, five)
          y = Reshape(flat, shape3)
        }""",
        BOTH,
        BOTHS,
        {"zero": whole(0), "one": whole(1), "two": whole(2), "rest": whole(-1), "wide": whole(4)},
    ),
    "flattened": Graph(
        """g (float[batch,2,seq] x) => (float[?,?] y, float[?,?] z) {
          y = Flatten(x)
          z = Flatten<axis = 2>(x)
        }""",
        BOTH,
        BOTHS,
    ),
    "branches": Graph(
        """g (float[batch,seq] x) => (float[?,?] y) {
          s = Shape(x)
          rank = Size(s)
          flat = Equal(rank, two)
          y = If (flat) <
            then_branch = a () => (float[?,?] p) { p = Pad<mode: string = "reflect">(x, around) },
            else_branch = b () => (float[?,?] q) { q = Exp(x) }
          >
        }""",
        {"batch": (1, 4), "seq": (3, 32)},
        [{"batch": 1, "seq": 3}, {"batch": 3, "seq": 9}],
        {"two": scalar(2), "around": whole(0, 2, 0, 1)},
    ),
    "pyramid": Graph(
        """g (float[1,2,h,w] x) => (float[?,?,?,?] y, float[?,?,?,?] z) {
          half = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
          quarter = Conv<auto_pad: string = "SAME_UPPER", strides = [2, 2]>(half, kernel)
          s = Shape(half)
          hw = Slice(s, two, four)
          cn = Slice(s, zero, two)
          sizes = Concat<axis = 0>(cn, hw)
          up = Resize<mode: string = "nearest", coordinate_transformation_mode: string = "asymmetric",
                      nearest_mode: string = "floor">(quarter, , , sizes)
          y = Add(up, half)
          z = Resize<mode: string = "linear">(quarter, , scales)
        }""",
        PICTURE,
        PICTURES,
        {"kernel": np.random.default_rng(2).normal(size=(2, 2, 3, 3)).astype(np.float32)}
        | {"zero": whole(0), "two": whole(2), "four": whole(4)}
        | {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "doubled": Graph(
        """g (float[1,1,n,4] x) => (float[?,?,?,?] y) {
          s = Shape(x)
          cn = Slice(s, zero, two)
          hw = Slice(s, two, four)
          more = Mul(hw, two)
          sizes = Concat<axis = 0>(cn, more)
          y = Resize<mode: string = "nearest">(x, , , sizes)
        }""",
        {"n": (1, 9)},
        [{"n": 1}, {"n": 9}],
        {"zero": whole(0), "two": whole(2), "four": whole(4)},
    ),
    "fixed_size": Graph(
        """g (float[1,2,h,w] x) => (float[?,?,?,?] y, float[?,?,?,?] z) {
          y = Resize<mode: string = "nearest", coordinate_transformation_mode: string = "asymmetric",
                     nearest_mode: string = "floor">(x, , , sizes)
          z = Resize<mode: string = "linear">(x, , , sizes)
        }""",
        {"h": (3, 64), "w": (3, 64)},
        [{"h": 3, "w": 5}, {"h": 24, "w": 7}],
        {"sizes": whole(1, 2, 10, 7)},
    ),
    "rows": Graph(
        """g (float[batch,2,seq] x) => (float[?,?,?] y, float[?,?,?] z, float[?,?] w) {
          y = Resize<mode: string = "nearest">(x, , scales)
          z = Slice(x, last, first, axis, back)
          t = Slice(x, zero, one, one)
          w = Squeeze(t, one)
        }""",
        BOTH,
        BOTHS,
        {"scales": np.array([1, 1, 3], np.float32), "last": whole(-1), "first": whole(-(2**31))}
        | {"axis": whole(2), "back": whole(-2), "zero": whole(0), "one": whole(1)},
    ),
    "same_pool": Graph(
        """g (float[1,2,h,w] x) => (float[?,?,?,?] y, float[?,?,?,?] z) {
          y = MaxPool<kernel_shape = [3, 2], strides = [2, 2], auto_pad: string = "SAME_LOWER">(x)
          z = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        }""",
        PICTURE,
        PICTURES,
    ),
}


VIRTUAL_MACHINE = {"shape_of", "shape_to_tensor", "dynamic_strided_slice", "call_pure_packed"}


@pytest.mark.parametrize("name", GRAPHS)
def test_all_sizes_by_one_import(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    path = write(tmp_path / "m.onnx", graph.text, graph.opset, **graph.weights)
    module, interface = imported(path, graph.dims)
    left = VIRTUAL_MACHINE & set(operators(module["main"].body))
    assert not left, f"{left} can only run in TVM's virtual machine"
    run, reference = runner(module), open_reference(path)
    rng = np.random.default_rng(3)
    for sizes in graph.sizes:
        inputs = []
        for entry in interface.inputs:
            shape = [evaluate(size, sizes) for size in entry.shape]
            values = rng.normal(size=shape) if entry.dtype == "float32" else rng.integers(-2, 2, shape)
            inputs.append(values.astype(entry.dtype))
        results = zip(run(inputs, sizes), reference.run(inputs), interface.outputs, strict=True)
        for ours, theirs, entry in results:
            assert list(theirs.shape) == [evaluate(size, sizes) for size in entry.shape]
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
