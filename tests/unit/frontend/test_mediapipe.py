"""MediaPipe's custom operators against their references, of which some results are known by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers  # type: ignore[import-untyped]
from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from relaxed import virtual_machine
from tflite_files import Node, Tensor, write, write_graph

RANDOM = np.random.default_rng(5)


def _map(**options: Any) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in sorted(options.items()):
            builder.Key(name)
            builder.TypedVectorFromElements(value) if isinstance(value, list) else builder.Add(value)
    return bytes(builder.Finish())


def _file(path: Path, name: str, options: bytes, inputs: Sequence[Array], *shapes: Sequence[int]) -> Path:
    tensors = [Tensor(f"x{index}", array.shape) for index, array in enumerate(inputs)]
    tensors += [Tensor(f"y{index}", shape) for index, shape in enumerate(shapes)]
    places = list(range(len(tensors)))
    return write(path, tensors, name, options, places[: len(inputs)], places[len(inputs) :])


def _check(
    path: Path, name: str, options: bytes, inputs: Sequence[Array], *shapes: Sequence[int]
) -> list[Array]:
    """The results of the reference; the imported model must agree with them."""
    file = _file(path / "m.tflite", name, options, inputs, *shapes)
    want = open_reference(file).run(inputs)
    module = import_model(file, ImportOptions("m"))[0]
    made = virtual_machine(module)["main"](*map(tvm.runtime.tensor, inputs))
    got = [made] if len(want) == 1 else list(made)
    for ours, theirs in zip([one.numpy() for one in got], want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
    return want


def _normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("padding", "stride"), [(1, (2, 2)), (2, (2, 3)), (1, (1, 2)), (1, (3, 4))])
def test_transposed_convolutions_with_a_bias(tmp_path: Path, padding: int, stride: Sequence[int]) -> None:
    across, down = stride
    x, weights, bias = _normal(2, 3, 4, 5), _normal(6, 3, 2, 5), _normal(6)
    whole = [down * 2 + 3, across * 3 + 2]
    cut = [max(0, 3 - 2 % down - 1), max(0, 2 - 3 % across - 1)] if padding == 1 else [0, 0]
    shape = [2, whole[0] - cut[0], whole[1] - cut[1], 6]
    options = struct.pack("<3i", padding, across, down)
    [output] = _check(tmp_path, "Convolution2DTransposeBias", options, [x, weights, bias], shape)
    assert list(output.shape) == shape
    if padding == 2:  # the last element of the kernel reaches the last place from the last element alone
        np.testing.assert_allclose(output[:, -1, -1], x[:, -1, -1] @ weights[:, -1, -1].T + bias, rtol=1e-4)


def test_weights_of_float16(tmp_path: Path) -> None:
    """Float16 weights, as MediaPipe stores them; LiteRT's XNNPACK fails on a graph that only returns them."""
    half, code = RANDOM.standard_normal, schema.BuiltinOperator
    tensors = [
        Tensor("x", (1, 4, 4, 3)),
        Tensor("w", (8, 1, 1, 3), "float16", data=half((8, 1, 1, 3)).astype(np.float16)),
        Tensor("v", (2, 2, 2, 8), "float16", data=half((2, 2, 2, 8)).astype(np.float16)),
        Tensor("b", (2,), "float16", data=half(2).astype(np.float16)),
        *(
            Tensor(f"{name}32", shape)
            for name, shape in (("w", (8, 1, 1, 3)), ("v", (2, 2, 2, 8)), ("b", (2,)))
        ),
        Tensor("c", (1, 4, 4, 8)),
        Tensor("y", (1, 8, 8, 2)),
        Tensor("a", (8,), data=np.zeros(8, np.float32)),
    ]
    conv = schema.Conv2DOptionsT()
    conv.strideH = conv.strideW = conv.dilationHFactor = conv.dilationWFactor = 1
    widen = [Node(code.DEQUANTIZE, None, [index], [index + 3]) for index in (1, 2, 3)]
    nodes = [
        *widen,
        Node(code.CONV_2D, conv, [0, 4, 9], [7]),
        Node("Convolution2DTransposeBias", struct.pack("<3i", 1, 2, 2), [7, 5, 6], [8]),
    ]
    path = write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [8])
    x = _normal(1, 4, 4, 3)
    [want] = open_reference(path).run([x])
    module = import_model(path, ImportOptions("m"))[0]
    got = virtual_machine(module)["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_maxima_and_their_places(tmp_path: Path) -> None:
    x = _normal(1, 5, 4, 2)
    x[0, 0, 0], x[0, 0, 1] = 9, 9  # of equal ones the first
    options = struct.pack("<6i", 1, 2, 2, 2, 3, 3)  # SAME, strides 2, windows of 3 rows, RELU6
    best, places = _check(tmp_path, "MaxPoolingWithArgmax2D", options, [x], [1, 3, 2, 2], [1, 3, 2, 2])
    assert best.max() == 6 and np.allclose(places[0, 0, 0], 2.1)  # its first row is above the image
    options = struct.pack("<6i", 2, 1, 2, 2, 2, 0)
    _check(tmp_path, "MaxPoolingWithArgmax2D", options, [x], [1, 2, 3, 2], [1, 2, 3, 2])


@pytest.mark.parametrize("stride", [2, 1])
def test_maxima_back_at_their_places(tmp_path: Path, stride: int) -> None:
    """With windows that overlap, of two elements at a place the later one stays."""
    x, places = _normal(2, 3, 2, 2), (RANDOM.integers(0, 4, (2, 3, 2, 2)) + 0.1).astype(np.float32)
    options = struct.pack("<6i", 1, stride, stride, 2, 2, 0)
    [output] = _check(tmp_path, "MaxUnpooling2D", options, [x, places], [2, 6, 4, 2])
    if stride == 2:
        assert sorted(output[output != 0]) == sorted(x.reshape(-1))


def test_transformed_points(tmp_path: Path) -> None:
    matrix = _normal(1, 4, 4)
    for size in (2, 3):
        points = _normal(1, 7, size)
        [output] = _check(tmp_path, "TransformLandmarks", b"", [points, matrix], [1, 7, size])
        want = points[0, :, :2] @ matrix[0, :2, :2].T + matrix[0, :2, 3]
        np.testing.assert_allclose(output[0, :, :2], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(output[0, :, 2:], points[0, :, 2:])
    options, points = _map(dimensions=3, scale=2.5), _normal(1, 1, 1, 12)
    [output] = _check(tmp_path, "TransformLandmarks", options, [points, matrix], [1, 1, 1, 12])
    assert output[0, 0, 0, 0] == pytest.approx(
        points[0, 0, 0, :2] @ matrix[0, 0, :2] + 2.5 * matrix[0, 0, 3], abs=1e-5
    )


def test_bilinear_samples(tmp_path: Path) -> None:
    x, matrix = _normal(1, 6, 5, 3), np.eye(4, dtype=np.float32)[None]
    matrix[0, :2, :2], matrix[0, :2, 3] = [[0.8, -0.3], [0.4, 0.9]], [0.6, -0.4]
    old, new = _map(mode="bilinear", output_size=[4, 7]), _map(output_height=4, output_width=7)
    for options in (old, new):
        [output] = _check(tmp_path, "TransformTensorBilinear", options, [x, matrix], [1, 4, 7, 3])
        assert (output == 0).all(3).any() and (output != 0).all(3).any()  # some are outside of the image
    matrix[0, :2, :2], matrix[0, :2, 3] = np.eye(2), 0
    options = _map(output_height=6, output_width=5)
    [same] = _check(tmp_path, "TransformTensorBilinear", options, [x, matrix], [1, 6, 5, 3])
    np.testing.assert_allclose(same, x, rtol=1e-6)


def test_matrices_from_points(tmp_path: Path) -> None:
    points = _normal(1, 6, 3)
    shared = {"left_rotation_idx": 1, "right_rotation_idx": 4}
    new = {"output_height": 8, "output_width": 16, "scale_x": 1.5, "scale_y": 2.0}
    options = _map(**shared, **new, target_rotation_radians=0.3, subset_idxs=[0, 2, 3, 5, 1])
    _check(tmp_path, "Landmarks2TransformMatrix", options, [points], [1, 4, 4])
    level = points.copy()
    level[0, [1, 4], 1] = 2.0
    level[0, 1, 0], level[0, 4, 0] = -1.0, 1.0
    options = _map(**shared, **new, target_rotation_radians=0.0, subset_idxs=[0, 2, 3, 5])
    [output] = _check(tmp_path, "Landmarks2TransformMatrix", options, [level], [1, 4, 4])
    chosen = level[0, [0, 2, 3, 5], :2]
    middle = (chosen.min(0) + chosen.max(0)) / 2  # the middle of the crop, where nothing is turned
    np.testing.assert_allclose(output[0, :2] @ [8, 4, 0, 1], middle, rtol=1e-4, atol=1e-5)
    old = {"input_hw": [48, 64], "output_hw": [8, 16], "dimensions": 3, "landmarks_range": 192}
    options = _map(**shared, **old, bbox_size_multiplier=1.25, subset=[0, 2, 3, 5])
    _check(tmp_path, "Landmarks2TransformMatrix", options, [points.reshape(1, 1, 1, 18) * 50 + 90], [1, 4, 4])


@pytest.mark.parametrize(
    ("name", "options", "shapes", "message"),
    [
        ("MaxPoolingWithArgmax2D", struct.pack("<6i", 3, 1, 1, 2, 2, 0), [(1, 4, 4, 1)], "padding is 3"),
        ("MaxPoolingWithArgmax2D", struct.pack("<6i", 1, 0, 1, 2, 2, 0), [(1, 4, 4, 1)], "'across' is 0"),
        ("MaxPoolingWithArgmax2D", b"\1", [(1, 4, 4, 1)], "1 bytes, allowed: 24 and more"),
        ("TransformLandmarks", b"", [(1, 4, 5), (1, 4, 4)], "points of 5 coordinates"),
        ("TransformTensorBilinear", _map(output_height=2, output_width=2), [(2, 4, 4, 1), (1, 4, 4)],
         "2 images in mode"),
        ("Landmarks2TransformMatrix",
         _map(left_rotation_idx=0, right_rotation_idx=9, output_height=1, output_width=1, scale_x=1.0,
              scale_y=1.0, subset_idxs=[0]), [(1, 6, 3)], r"it reads points \[0, 9\] of 6"),
    ],
)  # fmt: skip
def test_wrong_options(
    tmp_path: Path, name: str, options: bytes, shapes: Sequence[Sequence[int]], message: str
) -> None:
    inputs = [np.zeros(shape, np.float32) for shape in shapes]
    results = 2 if name.startswith("MaxPooling") else 1
    file = _file(tmp_path / "m.tflite", name, options, inputs, *[(1, 4, 4)] * results)
    with pytest.raises(KilnError, match=f"operator '{name}': .*{message}"):
        import_model(file, ImportOptions("m"))
