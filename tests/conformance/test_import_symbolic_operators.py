"""Operators on tensors of dynamic sizes, one at a time, against ONNX Runtime at two sizes each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.sizes import evaluate
from kiln.golden.reference import open_reference
from numpy.lib.stride_tricks import sliding_window_view
from symbolic import Array, Dims, imported, runner, write

RNG = np.random.default_rng(5)
ROWS: Dims = {"batch": (1, 4), "seq": (2, 32)}
PICTURE: Dims = {"h": (3, 64), "w": (3, 64)}
EVEN: Dims = {"h": (8, 64, 8), "w": (8, 64, 8)}
SIZES: dict[str, list[dict[str, int]]] = {
    "rows": [{"batch": 1, "seq": 2}, {"batch": 3, "seq": 9}],
    "picture": [{"h": 3, "w": 7}, {"h": 24, "w": 40}],
    "even": [{"h": 8, "w": 16}, {"h": 24, "w": 8}],
}
DIMS = {"rows": ROWS, "picture": PICTURE, "even": EVEN}


def values(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def scales(*numbers: float) -> dict[str, Array]:
    return {"k": np.array([1, 1, *numbers], np.float32)}


# Name → (dimensions, what becomes of `x`, initialisers, opset); x is (batch, seq, 8) or (1, 4, h, w).
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "instance norm": ("picture", "InstanceNormalization(x, s, o)", {"s": values(4), "o": values(4)}, 17),
    "group norm": ("picture", "GroupNormalization<num_groups = 2>(x, s, s)", {"s": values(4)}, 21),
    "depth to space": ("picture", "DepthToSpace<blocksize = 2>(x)", {}, 17),
    "space to depth": ("even", "SpaceToDepth<blocksize = 2>(x)", {}, 17),
    "global pooling": ("picture", "GlobalAveragePool(x)", {}, 17),
    "pooling upwards": (
        "picture",
        "AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, pads = [1, 1, 1, 1]>(x)",
        {},
        17,
    ),
    "depthwise": ("picture", "Conv<group = 4, pads = [1, 1, 1, 1]>(x, k)", {"k": values(4, 1, 3, 3)}, 17),
    "every third element": (
        "picture",
        'Conv<auto_pad: string = "SAME_UPPER", strides = [3, 2]>(x, k)',
        {"k": values(3, 4, 1, 1)},
        17,
    ),
    # windows of even size need no element before an axis, or as many before an even as before an odd one
    "even windows, as many as strides": (
        "picture",
        'MaxPool<auto_pad: string = "SAME_UPPER", kernel_shape = [2, 4], strides = [2, 2]>(x)',
        {},
        17,
    ),
    "means of even windows": (
        "picture",
        "AveragePool<kernel_shape = [2, 2], strides = [2, 3], count_include_pad = 1, "
        'auto_pad: string = "SAME_UPPER">(x)',
        {},
        17,
    ),
    "as many elements before as the size needs": (
        "picture",
        'Conv<auto_pad: string = "SAME_LOWER", strides = [2, 2]>(x, k)',
        {"k": values(3, 4, 3, 2)},
        17,
    ),
    "maxima of the edge": (
        "picture",
        'MaxPool<auto_pad: string = "SAME_UPPER", kernel_shape = [3, 5], strides = [2, 3]>(x)',
        {},
        17,
    ),
    "means of elements alone": (
        "picture",
        'AveragePool<auto_pad: string = "SAME_LOWER", kernel_shape = [3, 3], strides = [2, 2]>(x)',
        {},
        17,
    ),
    "means upwards with padding": (
        "picture",
        "AveragePool<kernel_shape = [3, 4], strides = [2, 3], ceil_mode = 1, count_include_pad = 1, "
        "pads = [1, 1, 1, 1]>(x)",
        {},
        19,
    ),
    "even kernels": (
        "picture",
        'Conv<auto_pad: string = "SAME_UPPER", strides = [2, 3]>(x, k)',
        {"k": values(3, 4, 4, 2)},
        17,
    ),
    "dilated": (
        "picture",
        "Conv<dilations = [2, 2], strides = [2, 2], pads = [2, 2, 2, 2]>(x, k)",
        {"k": values(3, 4, 3, 3)},
        17,
    ),
    "transposed": (
        "picture",
        "ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]>(x, k)",
        {"k": values(4, 2, 3, 3)},
        17,
    ),
    "resize by three": ("picture", 'Resize<mode: string = "linear">(x, , k)', scales(3, 3), 17),
    "resize by a half": ("even", 'Resize<mode: string = "nearest">(x, , k)', scales(0.5, 0.5), 17),
    "resize cubic": ("picture", 'Resize<mode: string = "cubic">(x, , k)', scales(2, 2), 17),
    # sizes that TensorFlow's exporter writes as scales, of a batch of any size: neither is counted in the run
    "resize of a batch": (
        "rows",
        'Resize<mode: string = "linear">(x, , k)',
        {"k": np.array([1, 1, 0.6], "float32")},
        17,
    ),
    "upsample": ("picture", 'Upsample<mode: string = "nearest">(x, k)', scales(2, 2), 9),
    "softmax over two axes": ("rows", "Softmax<axis = 1>(x)", {}, 11),
    "softmax over seq": ("rows", "Softmax<axis = 1>(x)", {}, 17),
    "norm": ("rows", "LayerNormalization(x, s)", {"s": values(8)}, 17),
    "norm of all": ("rows", "LayerNormalization<axis = 0>(x, s, s)", {"s": values(8)}, 17),
    "norm over seq": ("rows", "LayerNormalization<axis = 1>(x, s)", {"s": values(1, 8)}, 17),
    "greatest": ("rows", "ReduceMax<keepdims = 0>(x, axis)", {"axis": np.array([1])}, 18),
    "length": ("rows", "ReduceL2<axes = [1], keepdims = 1>(x)", {}, 17),
    "mean of all": ("rows", "ReduceMean<keepdims = 0>(x)", {}, 17),
    "running sums": (
        "rows",
        "Sub(a, c) a = CumSum(x, one) t = Transpose<perm = [0, 2, 1]>(x) b = CumSum<exclusive = 1>(t, two) "
        "c = Transpose<perm = [0, 2, 1]>(b)",
        {"one": np.array(1), "two": np.array(2)},
        17,
    ),
    "product of itself": ("rows", 'Einsum<equation: string = "bsd,btd->bst">(x, x)', {}, 17),
    # as torch.split(x, [2, n - 2], 1) is exported, with the parts in another order
    "parts of dynamic sizes": (
        "rows",
        "Concat<axis = 1>(later, first) n = Shape<start = 1, end = 2>(x) rest = Sub(n, two) "
        "parts = Concat<axis = 0>(two, rest) first, later = Split<axis = 1>(x, parts)",
        {"two": np.array([2])},
        18,
    ),
    "a list of parts of dynamic sizes": (
        "rows",
        "Concat<axis = 1>(later, first) n = Shape<start = 1, end = 2>(x) rest = Sub(n, two) "
        "parts = Concat<axis = 0>(two, rest) list = SplitToSequence<axis = 1>(x, parts) "
        "first = SequenceAt(list, none) later = SequenceAt(list, last)",
        {"two": np.array([2]), "none": np.array(0), "last": np.array(-1)},
        18,
    ),
    "mean of three": ("rows", "Mean(x, x, s)", {"s": values(8)}, 17),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_on_dynamic_sizes(name: str, tmp_path: Path) -> None:
    kind, node, weights, opset = CASES[name]
    axes = "batch,seq,8" if kind == "rows" else "1,4,h,w"
    rank = 0 if name == "mean of all" else {"rows": 3, "picture": 4, "even": 4}[kind] - (name == "greatest")
    result = f"float[{','.join('?' * rank)}]" if rank else "float"
    text = f"g (float[{axes}] x) => ({result} y) {{ y = {node} }}"
    path = write(tmp_path / "m.onnx", text, opset, **weights)
    module, interface = imported(path, DIMS[kind])
    run, reference = runner(module), open_reference(path)
    for sizes in SIZES[kind]:
        shape = [evaluate(size, sizes) for size in interface.inputs[0].shape]
        x = np.random.default_rng(6).normal(size=shape).astype(np.float32)
        (expected,), (output,) = reference.run([x]), run([x], sizes)
        assert list(expected.shape) == [evaluate(size, sizes) for size in interface.outputs[0].shape]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_positions_and_integers_where_the_padding_differs_from_size_to_size(tmp_path: Path) -> None:
    """MaxPool with its second result, and ConvInteger, whose padding is the zero point."""
    pool = "MaxPool<kernel_shape = [3, 2], strides = [2, 3]"
    text = f"""g (float[1,4,h,w] x, uint8[1,4,h,w] u)
      => (float[?,?,?,?] a, int64[?,?,?,?] b, float[?,?,?,?] c, int64[?,?,?,?] d, int32[?,?,?,?] e) {{
      a, b = {pool}, auto_pad: string = "SAME_UPPER">(x)
      c, d = {pool}, auto_pad: string = "SAME_LOWER", storage_order = 1>(x)
      e = ConvInteger<strides = [2, 3], auto_pad: string = "SAME_LOWER">(u, k, p, q) }}"""
    k = np.random.default_rng(2).integers(-128, 128, (3, 4, 3, 4)).astype("int8")
    zeros = {"p": np.array(77, "uint8"), "q": np.array(-5, "int8")}
    path = write(tmp_path / "m.onnx", text, 17, k=k, **zeros)
    module, _ = imported(path, PICTURE)
    run, reference = runner(module), open_reference(path)
    for sizes, x in _pictures():
        inputs = [x, np.round(x * 50 + 128).clip(0, 255).astype("uint8")]
        for expected, output in zip(reference.run(inputs), run(inputs, sizes), strict=True):
            np.testing.assert_array_equal(output, expected)


def test_maxima_of_windows_with_gaps(tmp_path: Path) -> None:
    """ONNX Runtime 1.31 computes auto_pad as if there were no gaps; ONNX has ceil(size / stride) windows."""
    attributes = "kernel_shape = [3, 2], strides = [2, 3], dilations = [2, 3], auto_pad: string"
    text = f"""g (float[1,4,h,w] x) => (float[?,?,?,?] a, float[?,?,?,?] b, int64[?,?,?,?] c) {{
      a = MaxPool<{attributes} = "SAME_UPPER">(x) b, c = MaxPool<{attributes} = "SAME_LOWER">(x) }}"""
    module, _ = imported(write(tmp_path / "m.onnx", text, 17), PICTURE)
    run = runner(module)

    def maxima(x: Array, lower: bool) -> Array:
        for axis, (width, stride, dilation) in enumerate(((3, 2, 2), (2, 3, 3)), 2):
            reach = (width - 1) * dilation + 1
            total = max(reach - 1 - (x.shape[axis] - 1) % stride, 0)
            before = (total + lower) // 2
            widths = [(before, total - before) if other == axis else (0, 0) for other in range(4)]
            windows = sliding_window_view(np.pad(x, widths, constant_values=-np.inf), reach, axis)
            x = windows[..., ::dilation].max(-1).take(range(0, windows.shape[axis], stride), axis)
        return x

    for sizes, x in _pictures():
        a, b, places = run([x], sizes)
        np.testing.assert_array_equal(a, maxima(x, False))
        np.testing.assert_array_equal(b, maxima(x, True))
        np.testing.assert_array_equal(x.reshape(-1)[places], b)


def _pictures() -> Iterator[tuple[dict[str, int], Array]]:
    """Sizes of which each needs another amount before an axis, and a picture of each."""
    for h, w in ((3, 7), (6, 5), (9, 3)):
        yield {"h": h, "w": w}, np.random.default_rng(h).normal(size=(1, 4, h, w)).astype(np.float32)


# Last size of x as (batch, seq, 8 / it, it), and the transform of it.
TRANSFORMS = {
    "of a dynamic length": (2, "DFT(c, , one)"),
    "back": (2, "DFT<inverse = 1>(c, , one)"),
    "of real numbers, one half": (1, "DFT<onesided = 1>(c, , one)"),
    "of a shorter length": (2, "DFT(c, five, one)"),
    "of another axis": (2, "DFT(c, , two)"),
    "of another axis, longer": (1, "DFT<onesided = 1>(c, five, two)"),
    "one half back": (2, "DFT<onesided = 1, inverse = 1>(c, , one)"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.heavy] * (n in ("back", "of another axis"))) for n in TRANSFORMS],
)
def test_fourier_transforms_of_dynamic_sizes(name: str, tmp_path: Path) -> None:
    parts, node = TRANSFORMS[name]
    text = f"g (float[batch,seq,8] x) => (float[?,?,?,?] y) {{ c = Reshape(x, shape) y = {node} }}"
    numbers = {"one": np.array(1), "two": np.array(2), "five": np.array(5)}
    path = write(tmp_path / "m.onnx", text, 20, shape=np.array([0, 0, 8 // parts, parts]), **numbers)
    module, interface = imported(path, ROWS)
    run, reference = runner(module), open_reference(path)
    for sizes in SIZES["rows"]:
        x = np.random.default_rng(6).normal(size=(sizes["batch"], sizes["seq"], 8)).astype(np.float32)
        (expected,), (output,) = reference.run([x]), run([x], sizes)
        assert list(expected.shape) == [evaluate(size, sizes) for size in interface.outputs[0].shape]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


RANGES = {
    "to a size": "Range(zero, length, unit)",
    "between halves": "Range(half, length, unit)",
    "by a quarter": "Range(zero, length, quarter)",
    "downwards": "Range(length, half, back)",
    "that may be empty": "Range(length, ten, unit)",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.heavy] * (n in ("to a size", "by a quarter"))) for n in RANGES],
)
def test_ranges_of_floats_with_a_dynamic_length(name: str, tmp_path: Path) -> None:
    text = f"""g (float[batch,seq,8] x) => (float[?] y) {{
      shape = Shape<start = 1, end = 2>(x) wide = Cast<to = 1>(shape) length = Squeeze(wide)
      y = {RANGES[name]} }}"""
    ends = {"zero": 0, "half": 0.5, "unit": 1, "quarter": 0.25, "back": -1.5, "ten": 10}
    numbers = {key: np.array(value, np.float32) for key, value in ends.items()}
    path = write(tmp_path / "m.onnx", text, 17, **numbers)
    module, interface = imported(path, ROWS)
    run, reference = runner(module), open_reference(path)
    for sizes in [*SIZES["rows"], {"batch": 1, "seq": 31}]:
        x = np.zeros((sizes["batch"], sizes["seq"], 8), np.float32)
        (expected,), (output,) = reference.run([x]), run([x], sizes)
        assert list(expected.shape) == [evaluate(size, sizes) for size in interface.outputs[0].shape]
        np.testing.assert_array_equal(output, expected)


def test_windows_are_summed_into_an_open_image(tmp_path: Path) -> None:
    """Col2Im with an image that is a row and a column larger than x, whose elements are the windows."""
    text = """g (float[1,4,h,w] x) => (float[?,?,?,?] y) {
      shape = Shape<start = 2>(x) size = Add(shape, ones) columns = Reshape(x, flat)
      y = Col2Im(columns, size, block) }"""
    numbers = {"ones": np.array([1, 1]), "flat": np.array([0, 0, -1]), "block": np.array([2, 2])}
    path = write(tmp_path / "m.onnx", text, 18, **numbers)
    module, interface = imported(path, PICTURE)
    run, reference = runner(module), open_reference(path)
    for sizes in SIZES["picture"]:
        x = np.random.default_rng(6).normal(size=(1, 4, sizes["h"], sizes["w"])).astype(np.float32)
        (expected,), (output,) = reference.run([x]), run([x], sizes)
        assert list(expected.shape) == [evaluate(size, sizes) for size in interface.outputs[0].shape]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)
