"""TFLite files with dynamic axes: at another size, at all sizes, and what cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.tflite import sized_file
from kiln.frontend.tflite.resized_file import resized
from kiln.golden.reference import open_reference
from symbolic import Dims, imported, runner
from tflite_files import Node, Tensor, flattened, pool, write, write_graph

BATCH: Dims = {"batch": (1, 8)}
SHAPES = {"x": ["batch", 6, 6, 3]}


def reshape(path: Path, shape: tuple[int, ...]) -> Path:
    tensors = [
        Tensor("x", (1, 6, 6, 3), signature=(-1, 6, 6, 3)),
        Tensor("shape", (2,), "int32", data=np.array(shape, np.int32)),
        Tensor("y", (1, 108), signature=(-1, 108)),
    ]
    return write(path, tensors, schema.BuiltinOperator.RESHAPE, schema.ReshapeOptionsT(), [0, 1], [2])


def test_axes_have_names_of_their_input(tmp_path: Path) -> None:
    """An axis that the file marks as dynamic has a key in `dims`; without it, it keeps its size."""
    path = reshape(tmp_path / "m.tflite", (-1, 108))
    _, interface = imported(path, {"x_0": (1, 8)})
    assert interface.outputs[0].shape == ["x_0", 108]
    assert imported(path, {})[1].outputs[0].shape == [1, 108]
    with pytest.raises(KilnError, match=r"dims\.x_1: no axis of an input is of this size"):
        imported(path, {"x_1": (1, 8)})


KINDS = schema.BuiltinOperator
UNIT = (2**-15, 0)  # the scale and the zero point of LiteRT's LOGISTIC and SOFTMAX
# By operator: its options, the type of its input, and the scale and zero point of input and result.
INTEGER_OPERATORS: dict[str, Any] = {
    "LOGISTIC": ("", {}, "int16", (2**-12, 0), UNIT),
    "SOFTMAX": ("SoftmaxOptions", {"beta": 1.0}, "int16", (2**-11, 0), UNIT),
    "EXP": ("", {}, "int16", (2**-13, 0), (2**-11, 0)),
    "LEAKY_RELU": ("LeakyReluOptions", {"alpha": 0.1}, "int16", (2**-12, 0), (2**-13, 0)),
    "L2_NORMALIZATION": ("L2NormOptions", {}, "int8", (0.05, 3), (1 / 128, 0)),
    "LOG_SOFTMAX": ("", {}, "int8", (0.05, 0), (16 / 256, 127)),
}


@pytest.mark.parametrize("dynamic", [0, 1])
@pytest.mark.parametrize("name", INTEGER_OPERATORS)
def test_operators_in_integers_of_a_dynamic_axis(tmp_path: Path, name: str, dynamic: int) -> None:
    """Functions that are equal at all sizes are merged, and results are LiteRT's bit for bit."""
    kind, attributes, dtype, source, result = INTEGER_OPERATORS[name]
    options = getattr(schema, f"{kind}T")() if kind else None
    for key, value in attributes.items():
        setattr(options, key, value)
    signature = tuple(-1 if axis == dynamic else 6 for axis in range(2))
    x = Tensor("x", (6, 6), dtype, *source, signature=signature)
    y = Tensor("y", (6, 6), dtype, *result, signature=signature)
    node = Node(getattr(KINDS, name), options, [0], [1], version=1)
    path = write_graph(tmp_path / "m.tflite", [x, y], [node], [0], [1])
    module, interface = imported(
        path, {"n": (1, 9)}, {"x": ["n" if size < 0 else size for size in signature]}
    )
    assert "n" in interface.outputs[0].shape
    assert "float32" not in module["main"].script(show_meta=False)
    run, limits = runner(module), np.iinfo(dtype)
    for size in (1, 2, 5, 9):
        shape = tuple(size if axis == dynamic else 6 for axis in range(2))
        given = np.random.default_rng(size).integers(limits.min, limits.max + 1, shape).astype(dtype)
        (expected,) = open_reference(path, "builtin_ref", [shape]).run([given])
        np.testing.assert_array_equal(run([given], {"n": size})[0], expected)


def test_a_mean_along_the_dynamic_axis_alone_is_in_floats(tmp_path: Path) -> None:
    """Its factor depends on the number of elements: the sigmoid before it stays in integers."""
    options = schema.ReducerOptionsT()
    options.keepDims = False
    tensors = [
        Tensor("x", (6, 4), "int16", 2**-12, signature=(-1, 4)),
        Tensor("gate", (6, 4), "int16", *UNIT, signature=(-1, 4)),
        Tensor("axis", (1,), "int32", data=np.zeros(1, np.int32)),
        Tensor("y", (4,), "int16", 2**-14),
    ]
    nodes = [
        Node(KINDS.LOGISTIC, None, [0], [1], version=1),
        Node(KINDS.MEAN, options, [1, 2], [3], version=1),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [3])
    module, _ = imported(path, {"n": (1, 9)}, {"x": ["n", 4]})
    text = module["main"].script(show_meta=False)
    assert text.count("R.call_tir(") == text.count("R.mean(") == 1
    run = runner(module)
    for size in (1, 3, 9):
        given = np.random.default_rng(size).integers(-(1 << 15), 1 << 15, (size, 4)).astype("int16")
        (expected,) = open_reference(path, "builtin_ref", [given.shape]).run([given])
        np.testing.assert_allclose(run([given], {"n": size})[0], expected, atol=1)


@pytest.mark.parametrize(("aligned", "halves"), [(False, False), (True, False), (False, True)])
def test_an_image_of_int16_and_of_a_dynamic_size_is_resized_in_integers(
    aligned: bool, halves: bool, tmp_path: Path
) -> None:
    options = schema.ResizeBilinearOptionsT()
    options.alignCorners, options.halfPixelCenters = aligned, halves
    tensors = [
        Tensor("x", (1, 6, 4, 3), "int16", 2**-12, signature=(1, -1, 4, 3)),
        Tensor("size", (2,), "int32", data=np.array([7, 5], np.int32)),
        Tensor("y", (1, 7, 5, 3), "int16", 2**-12),
    ]
    nodes = [Node(KINDS.RESIZE_BILINEAR, options, [0, 1], [2], version=3)]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [2])
    module, _ = imported(path, {"n": (1, 9)}, {"x": [1, "n", 4, 3]})
    assert "float32" not in module["main"].script(show_meta=False)
    run = runner(module)
    for size in (1, 3, 9):
        shape = (1, size, 4, 3)
        given = np.random.default_rng(size).integers(-(1 << 15), 1 << 15, shape).astype("int16")
        (expected,) = open_reference(path, "builtin_ref", [shape]).run([given])
        np.testing.assert_array_equal(run([given], {"n": size})[0], expected)


def every_other(path: Path) -> Path:
    """Every other column of x, whose number the graph computes from the shape of x."""
    held = [("first", 1), ("last", 2), ("step", 1)]
    ints = [Tensor(name, (1,), "int32", data=np.array([value], np.int32)) for name, value in held]
    scalars = [Tensor(f"n{value}", (), "int32", data=np.array(value, np.int32)) for value in (0, 2)]
    made = [
        Tensor("sizes", (2,), "int32"), Tensor("columns", (), "int32"),
        Tensor("places", (1,), "int32", signature=(-1,)), Tensor("y", (1, 1), signature=(-1, -1)),
    ]  # fmt: skip
    tensors = [Tensor("x", (1, 6), signature=(-1, 6)), *ints, *scalars, *made]
    cut, gather = schema.StridedSliceOptionsT(), schema.GatherOptionsT()
    cut.shrinkAxisMask, gather.axis, size = 1, 1, schema.ShapeOptionsT()
    size.outType = schema.TensorType.INT32
    op = schema.BuiltinOperator
    nodes = [
        Node(op.SHAPE, size, [0], [6]),
        Node(op.STRIDED_SLICE, cut, [6, 1, 2, 3], [7]),
        Node(op.RANGE, schema.RangeOptionsT(), [4, 7, 5], [8]),
        Node(op.GATHER, gather, [0, 8], [9]),
    ]
    return write_graph(path, tensors, nodes, [0], [9])


def test_sizes_that_are_in_the_data_stay_open(tmp_path: Path) -> None:
    """The size of a RANGE up to an input is dynamic, although a run with inputs of zeros has a size."""
    op, size = schema.BuiltinOperator, schema.ShapeOptionsT()
    size.outType = schema.TensorType.INT32
    zero, one = (Tensor(name, (), "int32", data=np.array(n, np.int32)) for n, name in enumerate(("0", "1")))
    tensors = [
        Tensor("n", (), "int32"), zero, one, Tensor("r", (1,), "int32", signature=(-1,)), Tensor("x", (2, 3)),
        Tensor("s", (2,), "int32"),
    ]  # fmt: skip
    nodes = [
        Node(op.RANGE, schema.RangeOptionsT(), [1, 0, 2], [3]),
        Node(op.SHAPE, size, [4], [5]),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0, 4], [3, 5])
    with pytest.raises(KilnError, match="a RANGE has a size that is in the data: make its limits"):
        resized(path.read_bytes(), [[], [2, 3]], known=True)


def test_sizes_that_the_graph_computes(tmp_path: Path) -> None:
    """The file says [1, 1] of a result that has three columns."""
    path = every_other(tmp_path / "m.tflite")
    for dims, shapes, sizes in (({}, {}, (1,)), (BATCH, {"x": ["batch", 6]}, (1, 5))):
        module, interface = imported(path, dims, shapes)
        assert interface.outputs[0].shape == ["batch" if dims else 1, 3]
        assert "R.take(" in module.script() and "R.shape" not in module.script()
        for size in sizes:
            x = np.random.default_rng(size).normal(size=(size, 6)).astype(np.float32)
            got = runner(module)([x], {"batch": size} if dims else {})[0]
            np.testing.assert_array_equal(got, x[:, ::2])


@pytest.mark.parametrize(
    ("dims", "sizes"), [(BATCH, (1, 2, 7)), ({"batch": (2, 8, 2)}, (2, 6)), ({"batch": (7, 9)}, (7, 9))]
)
@pytest.mark.parametrize("make", [pool, lambda path: reshape(path, (-1, 108))])
def test_all_batches_by_one_import(tmp_path: Path, make: Any, dims: Dims, sizes: tuple[int, ...]) -> None:
    path = make(tmp_path / "m.tflite")
    module, interface = imported(path, dims, SHAPES)
    assert interface.inputs[0].shape == ["batch", 6, 6, 3]
    assert interface.outputs[0].shape[0] == "batch"
    run = runner(module)
    for size in sizes:
        x = np.random.default_rng(size).normal(size=(size, 6, 6, 3)).astype(np.float32)
        (expected,) = open_reference(path, "auto", [x.shape]).run([x])
        np.testing.assert_array_equal(run([x], {"batch": size})[0], expected)


def test_a_batch_of_another_size(tmp_path: Path) -> None:
    module, interface = imported(pool(tmp_path / "m.tflite"), BATCH, SHAPES, batch=4)
    assert interface.outputs[0].shape == [4, 3, 3, 3]
    assert [int(size) for size in module["main"].params[0].ty.shape] == [4, 6, 6, 3]


@pytest.mark.parametrize(
    ("make", "shapes", "dims", "part"),
    [
        (
            lambda path: pool(path, None),
            SHAPES,
            BATCH,
            "axis 0 is 1 in the file, but inputs.x.shape is batch",
        ),
        (pool, {"x": ["batch", "side", 6, 3]}, {**BATCH, "side": (4, 8)}, "axis 1 is 6 in the file"),
        (pool, {"z": [1]}, BATCH, "inputs.z: the model has no such input; known: x"),
        (
            lambda path: reshape(path, (1, 108)),
            SHAPES,
            BATCH,
            "LiteRT cannot resize the graph to inputs of [2",
        ),
    ],
)
def test_sizes_that_cannot_be_had(tmp_path: Path, make: Any, shapes: Any, dims: Dims, part: str) -> None:
    with pytest.raises(KilnError) as caught:
        imported(make(tmp_path / "m.tflite"), dims, shapes)
    assert part in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_dimension_at_a_time(tmp_path: Path) -> None:
    path = pool(tmp_path / "m.tflite", (-1, -1, 6, 3))
    with pytest.raises(KilnError, match="batch, side: one dimension of a TFLite file can be dynamic"):
        imported(path, {**BATCH, "side": (4, 8)}, {"x": ["batch", "side", 6, 3]})
    module, _ = imported(path, {**BATCH, "side": (4, 8)}, {"x": ["batch", "side", 6, 3]}, side=8)
    batch, side, *_ = module["main"].params[0].ty.shape
    assert batch.name == "batch" and int(side) == 8


def test_a_graph_without_integer_operators_is_imported_once_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computing operators in floats instead of integers cannot help a graph that has none in integers."""
    conversions: list[Path] = []

    def counted(path: Path, *arguments: Any) -> Any:
        conversions.append(path)
        return convert(path, *arguments)

    convert = sized_file._convert
    monkeypatch.setattr(sized_file, "_convert", counted)
    with pytest.raises(KilnError, match="cannot import the TFLite graph for all sizes of 'side'"):
        imported(pool(tmp_path / "m.tflite", (1, -1, 6, 3)), {"side": (2, 9)}, {"x": [1, "side", 6, 3]})
    assert len(conversions) == 3


def test_sizes_that_do_not_grow_with_the_dimension(tmp_path: Path) -> None:
    """Half of an odd size is rounded: what holds for two sizes does not hold for the third."""
    path = pool(tmp_path / "m.tflite", (1, -1, 6, 3))
    with pytest.raises(KilnError, match="cannot import the TFLite graph for all sizes of 'side'"):
        imported(path, {"side": (4, 9)}, {"x": [1, "side", 6, 3]})


def cut(path: Path, begin: int, end: int, step: int) -> Path:
    """Rows of x, rounded, from `begin` to `end`, and another input as ONE_HOT of int32."""
    limits = {"b": begin, "e": end, "s": step}
    tensors = [
        Tensor("x", (6, 4), signature=(-1, 4)), Tensor("rounded", (6, 4)), Tensor("y", (1, 4)),
        *(Tensor(name, (1,), "int32", data=np.array([n], np.int32)) for name, n in limits.items()),
        Tensor("places", (3,), "int32"),
        *(Tensor(name, (), "int32", data=np.array(n, np.int32)) for name, n in (("depth", 4), ("on", 5))),
        Tensor("off", (), "int32", data=np.array(-1, np.int32)), Tensor("hot", (3, 4), "int32"),
    ]  # fmt: skip
    tensors[2].shape = (len(range(6)[begin:end:step]), 4)
    op, hot = schema.BuiltinOperator, schema.OneHotOptionsT()
    hot.axis = -1
    nodes = [
        Node(op.ROUND, None, [0], [1]),
        Node(op.STRIDED_SLICE, schema.StridedSliceOptionsT(), [1, 3, 4, 5], [2]),
        Node(op.ONE_HOT, hot, [6, 7, 8, 9], [10]),
    ]
    return write_graph(path, tensors, nodes, [0, 6], [2, 10])


@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [
        (-3, -1, 1),
        (1, -1, 2),
        (0, -2, 1),
        (2, 6, 1),
        (-2, 99, 1),
        (-1, -3, -1),
        (5, 0, -2),
        (-2, 0, -2),
        (9, -4, -3),
    ],
)
def test_slices_of_a_dynamic_axis(tmp_path: Path, begin: int, end: int, step: int) -> None:
    """From the end of the axis, too, after an operator that LiteRT's reference kernels lack."""
    path = cut(tmp_path / "m.tflite", begin, end, step)
    module, interface = imported(path, {"batch": (3, 8)}, {"x": ["batch", 4]})
    assert "if_then_else" not in str(interface.outputs[0].shape)
    places, run = np.array([3, 0, 9], np.int32), runner(module)
    for size in (3, 4, 5, 8):
        x = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
        expected = open_reference(path, "auto", [x.shape, places.shape]).run([x, places])
        for ours, theirs in zip(run([x, places], {"batch": size}), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_a_reshape_of_a_slice_that_small_sizes_do_not_fill(tmp_path: Path) -> None:
    """Of up to six rows all are taken, of more rows six: the number of elements is not linear."""
    path = flattened(cut(tmp_path / "m.tflite", 0, 6, 1), 2)
    with pytest.raises(KilnError, match=r"has the shape \[24\] at batch = 9, and \[36\] if"):
        imported(path, {"batch": (2, 9)}, {"x": ["batch", 4]})


def test_a_slice_whose_begin_bends_behind_a_step(tmp_path: Path) -> None:
    """From the fifth row from the end, or the first: both give as many at the three sizes of the import."""
    path = cut(tmp_path / "m.tflite", -5, 4, 2)
    with pytest.raises(KilnError, match=r"a slice along axis 0 begins at 0, it should at 1"):
        imported(path, {"batch": (3, 9)}, {"x": ["batch", 4]})


def test_nearest_neighbours_of_an_image_of_an_open_size(tmp_path: Path) -> None:
    tensors = [
        Tensor("x", (1, 6, 6, 3), signature=(1, 6, -1, 3)),
        Tensor("size", (2,), "int32", data=np.array([6, 17], np.int32)),
        Tensor("y", (1, 6, 17, 3)),
    ]
    options = schema.ResizeNearestNeighborOptionsT()
    kind = schema.BuiltinOperator.RESIZE_NEAREST_NEIGHBOR
    path = write(tmp_path / "m.tflite", tensors, kind, options, [0, 1], [2])
    with pytest.raises(KilnError, match="nearest neighbours of an image of a dynamic size"):
        imported(path, {"side": (4, 9)}, {"x": [1, 6, "side", 3]})


def test_rows_of_a_product_that_a_dynamic_size_does_not_fill(tmp_path: Path) -> None:
    """FULLY_CONNECTED takes rows of the weights' columns from all axes of its input."""
    weights = Tensor("w", (5, 4), data=np.ones((5, 4), np.float32))
    tensors = [Tensor("x", (2, 2), signature=(-1, 2)), weights, Tensor("y", (1, 5), signature=(-1, 5))]
    options = schema.FullyConnectedOptionsT()
    path = write(tmp_path / "m.tflite", tensors, KINDS.FULLY_CONNECTED, options, [0, 1], [2])
    _, interface = imported(path, {"n": (2, 8, 2)}, {"x": ["n", 2]})
    assert interface.outputs[0].dtype == "float32"
    with pytest.raises(
        KilnError, match=r"input of shape \[\d, 2\] has \d+ elements, allowed: multiples of 4"
    ):
        imported(path, {"n": (1, 8)}, {"x": ["n", 2]})
