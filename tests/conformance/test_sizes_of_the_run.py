"""Shapes, repeats, limits, amounts and depths that only the run knows, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions

from .lowered import Array
from .programs import TooManyError, execute
from .text_graphs import HEADER, CompiledGraphs, TextGraph

GRAPHS = {
    "range": TextGraph(
        "g (int64 a, int64 b, int64 s) => (int64[n] y) { y = Range(a, b, s) }", bounds={"y": 20}
    ),
    "range_float": TextGraph(
        "g (float a, float b, float s) => (float[n] y) { y = Range(a, b, s) }", bounds={"y": 20}
    ),
    "slice": TextGraph(
        """g (float[5,7] x, int64[2] b, int64[2] e, int64[2] a, int64[2] s) => (float[m,n] y) {
          y = Slice(x, b, e, a, s) }"""
    ),
    "slice_open": TextGraph(
        """g (float[n,6] x, int64[1] b, int64[1] e) => (float[m,6] y, float[m,6] z) {
          y = Slice(x, b, e) z = Relu(y) }""",
        dims={"n": (1, 8)},
    ),
    "split": TextGraph(
        """g (float[2,9] x, int64[3] p) => (float[2,a] u, float[2,b] v, float[2,c] w) {
          u, v, w = Split<axis = 1>(x, p) }""",
        opset=18,
    ),
    "pad": TextGraph(
        "g (float[3,4] x, int64[4] p, float v) => (float[m,n] y) { y = Pad(x, p, v) }", bounds={"y": 9}
    ),
    "pad_fill": TextGraph(
        "g (float[b,4] x, float v) => (float[m,6] y) { y = Pad(x, p, v) }", {"p": np.array([1, 0, 0, 2])},
        dims={"b": (1, 4)},
    ),
    "pad_edge": TextGraph(
        """g (float[3,4] x, int64[4] p) => (float[m,n] y, float[a,b] z) {
          y = Pad<mode = "edge">(x, p) z = Pad<mode = "reflect">(x, p) }""",
        bounds={"y": 9, "z": 9},
    ),
    "reshape": TextGraph(
        "g (float[4,6] x, int64[3] s) => (float[a,b,c] y) { y = Reshape(x, s) }", bounds={"y": 24}
    ),
    "expand": TextGraph(
        "g (float[3,1] x, int64[3] s) => (float[a,b,c] y) { y = Expand(x, s) }", bounds={"y": 5}
    ),
    "tile": TextGraph(
        "g (float[2,3] x, int64[2] r) => (float[a,b] y) { y = Tile(x, r) }", bounds={"y[0]": 4, "y[1]": 9}
    ),
    "full": TextGraph("g (int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }", bounds={"y": 6}),
    "one_hot": TextGraph(
        "g (int64[3] i, int64 d, float[2] v) => (float[3,n] y) { y = OneHot(i, d, v) }", bounds={"y": 8}
    ),
    "reduce": TextGraph(
        """g (float[n,3,4] x, int64[2] a) => (float[b] y, float[c] z, float[d,e,f] m, float[h,i,j] l) {
          y = ReduceSum<keepdims = 0>(x, a) r = ReduceMax<keepdims = 0>(x, a) z = Neg(r)
          m = ReduceMean(x, a) l = ReduceLogSumExp(x, a) }""",
        dims={"n": (1, 5)}, opset=18,
    ),
    "squeeze": TextGraph("g (float[n,1,4,1] x, int64[2] a) => (float[b,c] y) { y = Squeeze(x, a) }",
                     dims={"n": (1, 5)}, opset=18),
    "unsqueeze": TextGraph("g (float[n,4] x, int64[2] a) => (float[b,c,d,e] y) { y = Unsqueeze(x, a) }",
                       dims={"n": (1, 5)}, opset=18),
    "resize": TextGraph(
        """g (float[1,2,3,4] x, int64[2] s, float[2] f) => (float[1,2,a,b] y, float[1,2,c,d] z) {
          y = Resize<axes = [2, 3], mode = "linear">(x, , , s)
          z = Resize<axes = [3, 2], mode = "cubic", antialias = 1>(x, , f) }""",
        bounds={"y": 9, "z": 12}, opset=18,
    ),
    "resize_image": TextGraph(
        """g (float[1,2,3,4] x, int64[2] s) => (float[1,3,a,b] y) {
          t = Concat<axis = 0>(channels, s)
          r = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(
            x, , , t)
          y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, w) }""",
        {"channels": np.array([1, 2]), "w": np.arange(54, dtype="float32").reshape(3, 2, 3, 3) / 32 - 1},
        bounds={"r": 8},
    ),
    "resize_open": TextGraph(
        """g (float[1,1,h,5] x, float[8] roi) => (float[1,1,a,5] y, float[1,1,b,c] z) {
          y = Resize<mode = "linear", antialias = 1>(x, , scale)
          z = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize",
            extrapolation_value = 7.0>(x, roi, , sizes) }""",
        {"scale": np.float32([1, 1, 0.6, 1]), "sizes": np.array([1, 1, 4, 3])},
        dims={"h": (2, 9)}, opset=18,
    ),
    # Rows of a loop whose number of iterations is computed; the sums are as many.
    "loop_rows": TextGraph(
        """g (float[2] x, int64 trips, float limit) => (float[2] last, float[k,2] rows, float[k] twice) {
          last, rows, sums = Loop(trips, , x) <body = l (int64 i, bool c, float[2] v)
            => (bool d, float[2] w, float[2] row, float s) {
              w = Add(v, v) row = Identity(w) s = ReduceSum<keepdims = 0>(w) d = Less(s, limit) }>
          twice = Add(sums, sums) }""",
        bounds={"rows": 6},
    ),
    # The trip count is a limit, as of a decoder that ends early. `row` is the last one, without its axis.
    "loop_ends": TextGraph(
        """g (float x, float limit) => (float last, float[k] rows, float row) <int64 most = {5},
          int64[1] z = {0}, int64[1] a = {-1}, int64[1] e = {9223372036854775807}> {
          last, rows = Loop(most, , x) <body = l (int64 i, bool c, float v) => (bool d, float w, float r) {
            w = Add(v, v) r = Neg(w) d = Less(w, limit) }>
          end = Slice(rows, a, e, z)
          row = Squeeze(end, z) }"""
    ),
    # Nothing reads these rows, or only their second size, but the loop ends by its condition.
    "unread_rows": TextGraph(
        """g (float x, float limit) => (float last) <bool yes = {1}> {
          last, rows = Loop(, yes, x) <body = l (int64 i, bool c, float v) => (bool d, float w, float[2] r) {
            w = Add(v, v) s = Reshape(w, one) r = Concat<axis = 0>(s, s) d = Less(w, limit) }>
          unread = Neg(rows) }""",
        {"one": np.array([1])},
    ),
    "measured_rows": TextGraph(
        """g (float[n] x, float limit) => (float[n] y) <bool yes = {1}> {
          last, rows = Loop(, yes, x) <body = l (int64 i, bool c, float[n] v) =>
            (bool d, float[n] w, float[n] r) {
              w = Add(v, v) r = Neg(w) s = ReduceMax<keepdims = 0>(w) d = Less(s, limit) }>
          sizes = Shape(rows) size = Gather(sizes, place) f = Cast<to = 1>(size) y = Mul(last, f) }""",
        {"place": np.array(1)}, {"n": (1, 4)}, {"rows": 6},
    ),
    # The size inside of a function's body has the bound of its result.
    "window": TextGraph(
        "g (int64 n) => (float[k] y) { y = HannWindow(n) }", bounds={"y": 12}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CompiledGraphs:
    return CompiledGraphs(tmp_path_factory.mktemp("sizes"), GRAPHS)


def ints(*values: int) -> Array:
    return np.array(values, "int64")


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape) - 3


def test_slices_and_splits(built: CompiledGraphs) -> None:
    x = numbers(5, 7)
    for begin, end, axes, steps in (
        ((1, 0), (4, 7), (0, 1), (1, 2)), ((-1, 5), (-99, 0), (0, -1), (-2, -1)),
        ((9, 2), (12, -2), (1, 0), (1, 1)),
        ((0, 6), (2**62, -(2**62)), (0, 1), (3, -4)), ((3, 3), (1, 3), (1, 0), (1, 1)),
    ):  # fmt: skip
        built.check("slice", x, ints(*begin), ints(*end), ints(*axes), ints(*steps))
    for size in (1, 8):
        for limits in ((0, size), (2, -1), (-3, 99)):
            built.check("slice_open", numbers(size, 6), ints(limits[0]), ints(limits[1]), n=size)
    for parts in ((3, 3, 3), (0, 9, 0), (1, 2, 6)):
        built.check("split", numbers(2, 9), ints(*parts))


def test_padding_and_shapes(built: CompiledGraphs) -> None:
    for amounts in ((0, 0, 0, 0), (1, 2, 3, 0), (-1, 1, 0, -2), (2, 3, 2, 2)):
        built.check("pad", numbers(3, 4), ints(*amounts), np.array(7, "float32"))
        if min(amounts) >= 0:
            small = [min(one, 2) for one in amounts]
            built.check("pad_edge", numbers(3, 4), ints(*small))
    for size in (1, 4):
        built.check("pad_fill", numbers(size, 4), np.array(5, "float32"), b=size)
    for shape in ((4, 6, 1), (2, -1, 3), (0, 2, 3), (1, 24, -1)):
        built.check("reshape", numbers(4, 6), ints(*shape))
    for shape in ((2, 3, 4), (1, 1, 5), (5, 3, 1)):
        built.check("expand", numbers(3, 1), ints(*shape))
    for repeats in ((1, 1), (2, 3), (0, 2)):
        built.check("tile", numbers(2, 3), ints(*repeats))
    for shape in ((6, 1), (0, 3), (2, 5)):
        built.check("full", ints(*shape))
    for depth in (1, 4, 8):
        built.check("one_hot", ints(0, -1, 3), np.array(depth), np.float32([-1, 2]))


def test_resized_images(built: CompiledGraphs) -> None:
    """Places and weights that the run computes; sizes that are known stay so, and are channels of a Conv."""
    x = numbers(1, 2, 3, 4) / 4
    for size, scales in (((3, 4), (1, 1)), ((9, 1), (2.5, 0.4)), ((1, 7), (0.7, 3))):
        built.check("resize", x, ints(*size), np.float32(scales[::-1]))
    for size in ((3, 4), (8, 2), (1, 5)):
        built.check("resize_image", x, ints(*size))
    for size in (2, 5, 9):
        region = np.float32([0, 0, -0.25, 0.5, 1, 1, 0.75, 1.5])
        built.check("resize_open", numbers(1, 1, size, 5), region, h=size)


def test_rows_of_a_computed_number_of_iterations(built: CompiledGraphs) -> None:
    x = np.float32([1, 2])
    for trips, limit, count in ((0, 9, 0), (4, 1e6, 4), (100, 40, 4), (6, 1e6, 6), (99, 180, 6)):
        _, rows, _ = built.check("loop_rows", x, np.array(trips), np.array(limit, "float32"))
        assert len(rows) == count
    with pytest.raises(TooManyError, match=r"^rows: 7$"):
        built.check("loop_rows", x, np.array(7), np.array(1e6, "float32"))
    for limit, count in ((1.5, 1), (7, 3), (99, 5)):
        _, rows, _ = built.check("loop_ends", np.array(1, "float32"), np.array(limit, "float32"))
        assert len(rows) == count
    for size in (1, 5, 12):
        built.check("window", np.array(size))


def test_a_loop_does_not_end_where_there_is_no_memory_for_its_rows(built: CompiledGraphs) -> None:
    for limit in (2, 60, 1e6):
        built.check("unread_rows", *floats(1, limit))
    built.check("measured_rows", np.float32([1, 0.5]), *floats(60), n=2)
    with pytest.raises(TooManyError, match=r"^rows: 7$"):
        built.check("measured_rows", np.float32([1, 0.5]), *floats(100), n=2)


def test_axes(built: CompiledGraphs) -> None:
    for size in (1, 5):
        for axes in ((0, 1), (2, 1), (-3, -1)):
            built.check("reduce", numbers(size, 3, 4) / 8, ints(*axes), n=size)
        for axes in ((1, 3), (-1, 1)):
            built.check("squeeze", numbers(size, 1, 4, 1), ints(*axes), n=size)
        for axes in ((0, 1), (3, 1), (-1, 0)):
            built.check("unsqueeze", numbers(size, 4), ints(*axes), n=size)


def integers(*values: int) -> list[Array]:
    """Tensors without axes."""
    return [np.array(value) for value in values]


def floats(*values: float) -> list[Array]:
    """Tensors without axes, of float32."""
    return [np.array(value, np.float32) for value in values]


def test_ranges_with_limits_of_the_run(built: CompiledGraphs) -> None:
    for start, limit, step in ((0, 5, 1), (3, 3, 1), (5, 0, 1), (5, 0, -2), (-7, 8, 4), (0, 20, 1)):
        built.check("range", *integers(start, limit, step))
        built.check("range_float", *floats(start, limit, step))
    built.check("range_float", *floats(0.5, 2.6, 0.3), absolute=1e-5)
    built.check("range", *integers(0, 2**31 - 1, 2**30))
    built.check("range", *integers(2**40, 0, -(2**41)))
    for limits in ((0, 21, 1), (0, 5, 0), (0, 2**33, 1)):
        with pytest.raises(TooManyError):
            execute(built.steps["range"], built.library, integers(*limits))


def test_values_that_contradict_each_other_end_the_run(built: CompiledGraphs) -> None:
    for name, given in (
        ("slice", [numbers(5, 7), ints(0, 0), ints(1, 1), ints(0, 1), ints(1, 0)]),
        ("split", [numbers(2, 9), ints(3, 3, 4)]),
        ("split", [numbers(2, 9), ints(-1, 1, 9)]),
        ("pad", [numbers(3, 4), ints(7, 0, 0, 0), np.array(0, "float32")]),
        ("reshape", [numbers(4, 6), ints(5, -1, 1)]),
        ("reshape", [numbers(4, 6), ints(4, 5, 1)]),
        ("expand", [numbers(3, 1), ints(2, 2, 2)]),
        ("tile", [numbers(2, 3), ints(3, 1)]),
        ("full", [ints(7, 1)]),
        ("one_hot", [ints(0, 1, 2), np.array(-1), np.float32([0, 1])]),
        ("reduce", [numbers(5, 3, 4), ints(1, -2)]),
        ("reduce", [numbers(5, 3, 4), ints(1, 3)]),
        ("squeeze", [numbers(5, 1, 4, 1), ints(1, 2)]),
        ("unsqueeze", [numbers(5, 4), ints(1, 1)]),
    ):
        with pytest.raises(TooManyError):
            execute(built.steps[name], built.library, given, {"n": 5})


def test_a_bound_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEADER.format(opset=17) + GRAPHS["tile"].text)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"Tile .*bounds: \{y\[0\]: N, y\[1\]: N\}"):
        import_model(tmp_path / "m.onnx", ImportOptions("m"))
