"""Values computed from shapes, node by node, and graphs whose shapes cannot be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Dimension
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.shapes import evaluate
from kiln.frontend.onnx.value import Ratio, Value, from_array, from_items
from kiln.frontend.options import from_config
from kiln.frontend.symbols import Symbols
from symbolic import Dims, configuration, imported, write


@pytest.fixture
def symbols() -> Symbols:
    return Symbols({"n": Segment(strategy="dynamic", min=1, max=9, multiple=1)})


def compute(symbols: Symbols, op: str, *inputs: Any, **attributes: Any) -> Any:
    names = [f"x{index}" for index in range(len(inputs))]
    node = onnx.helper.make_node(op, names, ["y"], **attributes)
    values = [v if isinstance(v, Value) else from_array(np.asarray(v), of_shape=True) for v in inputs]
    return evaluate(node, values, 17, symbols)


def texts(value: Value) -> list[str]:
    return [str(item) for item in value.extents()]


def test_constants_follow_onnx_s_reference(symbols: Symbols) -> None:
    assert compute(symbols, "Div", np.array([-7]), np.array([2])).extents() == [-3]
    value = compute(symbols, "Sqrt", np.array([2], np.float32))
    assert value.numpy() == np.sqrt(np.float32(2)) and value.dtype == "float32"


def test_what_is_constant_in_the_file_is_left_to_it(symbols: Symbols) -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    assert evaluate(node, [from_array(np.array([1])), from_array(np.array([2]))], 17, symbols) is None


def test_division_of_what_may_be_negative_is_not_known(symbols: Symbols) -> None:
    n = symbols.extent("n")
    assert texts(compute(symbols, "Div", from_items([n]), np.array([2]))) == ["n // T.int64(2)"]
    assert compute(symbols, "Div", from_items([n - 5]), np.array([2])) is None
    assert compute(symbols, "Mod", from_items([n]), from_items([n - 1])) is None


def test_a_division_without_remainder_rounds_down(symbols: Symbols) -> None:
    """x - x % 2 may be negative; so programs in Python, where -3 // 2 is -2, are exported."""
    n = symbols.extent("n")
    x = from_items([n, n - 5])
    multiple = compute(symbols, "Sub", x, compute(symbols, "Mod", x, np.array([2, 2])))
    whole, rounded = compute(symbols, "Div", multiple, np.array([2, 2])).extents()
    assert str(whole) == "n // T.int64(2)"
    assert symbols.differing(rounded, (n - 5) // 2) is None


def test_comparisons_count_only_where_they_hold_for_all_sizes(symbols: Symbols) -> None:
    n = symbols.extent("n")
    value = compute(symbols, "Equal", from_items([n, 3, n]), np.array([-1, 3, 0]))
    assert value.extents() == [False, True, False] and value.dtype == "bool"
    assert compute(symbols, "Equal", from_items([n]), np.array([4])) is None
    assert compute(symbols, "Less", from_items([n]), np.array([10])).extents() == [True]


def test_a_table_of_repeats_that_is_one_hot(symbols: Symbols) -> None:
    n = symbols.extent("n")
    value = compute(symbols, "OneHot", np.array([-1, 0]), np.array(3), from_items([1, n]))
    assert value.items.shape == (2, 3) and texts(value) == ["1", "1", "n", "n", "1", "1"]
    across = compute(symbols, "OneHot", np.array([-1, 0]), np.array(3), from_items([1, n]), axis=0)
    assert across.items.shape == (3, 2) and texts(across) == ["1", "n", "1", "1", "n", "1"]
    assert compute(symbols, "OneHot", from_items([n]), np.array(3), np.array([0, 1])) is None


def test_rounding_of_products_is_exact(symbols: Symbols) -> None:
    n = symbols.extent("n")
    wide = compute(symbols, "Cast", from_items([n]), to=1)
    assert isinstance(wide.extents()[0], Ratio) and wide.dtype == "float32"
    scaled = compute(symbols, "Mul", wide, np.array([1.5], np.float32))
    up = compute(symbols, "Cast", compute(symbols, "Ceil", scaled), to=7)
    down = compute(symbols, "Cast", scaled, to=7)
    for value, expected in ((up, "(n * T.int64(3) + T.int64(1)) // T.int64(2)"), (down, "n * T.int64(3)")):
        assert texts(value)[0].startswith(expected)
    below = compute(symbols, "Cast", compute(symbols, "Neg", compute(symbols, "Neg", scaled)), to=7)
    assert texts(below) == texts(down)
    assert texts(compute(symbols, "Neg", from_items([n, 3]))) == ["n * T.int64(-1)", "-3"]
    assert compute(symbols, "Mul", wide, np.array([0.1], np.float32)) is None


def test_reductions_and_selections(symbols: Symbols) -> None:
    n = symbols.extent("n")
    shape = from_items([2, n, 3])
    assert texts(compute(symbols, "ReduceProd", shape, keepdims=0)) == ["n * T.int64(6)"]
    assert texts(
        compute(symbols, "Slice", shape, np.array([-1]), np.array([-9]), np.array([0]), np.array([-1]))
    )
    assert texts(compute(symbols, "Gather", shape, np.array(-2))) == ["n"]
    assert compute(symbols, "Gather", shape, np.array(-2)).items.shape == ()
    picked = compute(symbols, "Where", np.array([True, False, True]), shape, np.array([7, 8, 9]))
    assert texts(picked) == ["2", "8", "3"]


N: Dims = {"n": (1, 9)}


@pytest.mark.parametrize(
    ("text", "weights", "parts"),
    [
        (
            "g (float[n,4] x, int64[2] s) => (float[?,?] y) { y = Reshape<allowzero = 0>(x, s) }",
            {},
            ["Reshape", "'s' is not known before the model runs"],
        ),
        (
            """g (float[n,4] x) => (float[?,4] y) {
              s = Shape(x) l = Slice(s, zero, one) e = Sub(l, five) y = Slice(x, zero, e, zero) }""",
            {"zero": [0], "one": [1], "five": [5]},
            ["Slice", "an end of a slice, n - 5, is negative for some sizes only, allowed: for all or none"],
        ),
        (
            """g (float[n,4] x) => (float[?,4] y) {
              s = Shape(x) l = Slice(s, zero, one) y = Slice(x, zero, five, zero, l) }""",
            {"zero": [0], "one": [1], "five": [5]},
            ["Slice", "its step is n, allowed: a fixed number other than 0"],
        ),
        (
            "g (float[n,1] x) => (float[?] y) { y = Squeeze(x) }",
            {},
            ["Squeeze", "size n is 1 for some sizes only", "give the axes or other 'dims'"],
        ),
        (
            "g (float[n,1,48] x) => (float[?,?,?] y) { y = Reshape(x, shape) }",
            {"shape": [16, 4, -1]},
            ["Reshape", "[16, 4, -1] does not fit", "n * 48 elements with n = 1", "dims=n:LEAST..GREATEST:4"],
        ),
        (
            "g (float[n,4] x) => (float[?,?] y) { y = Expand(x, shape) }",
            {"shape": [3, 4]},
            ["Expand", "do not broadcast for all sizes"],
        ),
    ],
)
def test_a_shape_that_cannot_be_known(
    tmp_path: Path, text: str, weights: dict[str, Any], parts: list[str]
) -> None:
    path = write(tmp_path / "m.onnx", text, **{name: np.asarray(value) for name, value in weights.items()})
    with pytest.raises(KilnError) as caught:
        imported(path, N)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    for part in parts:
        assert part in message


def test_padded_sizes_are_fixed_and_still_named(tmp_path: Path) -> None:
    text = "g (float[n,4] x) => (float[?,?] y) { s = Shape(x) y = Expand(x, s) }"
    module, interface = imported(write(tmp_path / "m.onnx", text), N, n=6)
    assert interface.inputs[0].shape == ["n", 4]
    assert interface.outputs[0].shape == [6, 4]
    assert [int(size) for size in module["main"].params[0].ty.shape] == [6, 4]
    assert interface.dims == [Dimension(name="n", min=1, max=9)]


def test_an_inferred_axis_beside_sums_of_dimensions(tmp_path: Path) -> None:
    """Padded images as kornia's filters reshape them: the batch is b, not b * (h + 4) * 3 // (h * 3 + 12)."""
    text = """g (float[b,3,h,w] x) => (float[?,?,?,?] y) {
        p = Constant<value = int64[8] {0, 0, 2, 2, 0, 0, 2, 2}>()
        a = Pad(x, p)
        n = Constant<value = int64[2] {-1, 3}>() hw = Shape<start = 2>(a) t = Concat<axis = 0>(n, hw)
        y = Reshape(a, t) }"""
    _, interface = imported(write(tmp_path / "m.onnx", text), {"b": (1, 3), "h": (5, 9), "w": (5, 9)})
    assert interface.outputs[0].shape[:2] == ["b", 3]


def test_a_part_of_a_dimension_has_a_parameter_of_its_own(tmp_path: Path) -> None:
    text = "g (float[w] x) => (float[w] y) { y = Exp(x) }"
    module, interface = imported(write(tmp_path / "m.onnx", text), {"w": (8, 64, 8)})
    assert [parameter.name for parameter in module["main"].params] == ["x", "kiln_sizes"]
    assert interface.outputs[0].shape == ["w"]


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2)])
def test_a_dimension_that_no_input_has(sizes: tuple[int, int], tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[n,4] x) => (float[n,4] y) { y = Exp(x) }")
    with pytest.raises(KilnError, match=r"dims\.m: no axis of an input is of this size; inputs: 'x'"):
        imported(path, {**N, "m": sizes})


def test_axes_without_names_have_those_of_their_input(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[n,4,m] X) => (float[n,4,m] y) { y = Exp(X) }")
    model = onnx.load(path)
    for axis in (0, 2):
        model.graph.input[0].type.tensor_type.shape.dim[axis].ClearField("dim_param")
    onnx.save(model, path)
    _, interface = imported(path, {"x_0": (1, 9), "x_2": (2, 5)})
    assert interface.outputs[0].shape == ["x_0", 4, "x_2"]
    with pytest.raises(KilnError, match=r"'X' axis 2 is dynamic .* with dims=x_2:1\.\.8 on the command"):
        imported(path, {"x_0": (1, 9)})


def test_a_dimension_of_which_the_bucket_says_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[n,4] x) => (float[n,4] y) { y = Exp(x) }")
    options = from_config(configuration(N), Box(name="b", dims={}))
    with pytest.raises(KilnError, match=r"the bucket has no entry for dims\.n"):
        import_model(path, options)


def test_a_mirrored_axis_that_some_sizes_make_too_short(tmp_path: Path) -> None:
    """The message names the sizes; an axis that only trying all sizes proves long enough is accepted."""
    text = 'g (float[1,n] x) => (float[1,?] y) { y = Pad<mode: string = "reflect">(x, pads) }'
    path = write(tmp_path / "m.onnx", text, 18, pads=np.array([0, 2, 0, 2]))
    with pytest.raises(KilnError, match=r"at least 3, which fails with n = 2: raise 'min' in 'dims'"):
        imported(path, {"n": (2, 9)})
    imported(path, {"n": (3, 9)})
