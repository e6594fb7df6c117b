"""IntegerArithmetic: which operators become integer arithmetic, which do not, and that results do not
change."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kiln.graph.integer import integer_arithmetic
from kiln.graph.pipeline import clean, simplify
from relaxed import Array, calls, const, module, operators, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(1)
DEPTHWISE = RNG.integers(-127, 128, (1, 3, 3, 4)).astype("int8")  # 1, H, W, O as TFLite has it
KERNEL = RNG.integers(-127, 128, (5, 3, 3, 4)).astype("int8")  # O, H, W, I as TFLite has it


def _image(x: Any, scale: Any = 0.5, zero_point: Any = 3, axis: int = -1) -> Any:
    return op.dequantize(x, const(scale), const(zero_point, "int8"), axis=axis, out_dtype="float32")


def _weights(value: Array, scale: Any = 0.25, zero_point: Any = 0, axis: int = 3) -> Any:
    return op.dequantize(
        const(value, "int8"), const(scale), const(zero_point, "int8"), axis=axis, out_dtype="float32"
    )


def _conv(x: Any, weights: Any, **attributes: Any) -> Any:
    return op.nn.conv2d(x, weights, data_layout="NHWC", kernel_layout="HWIO", **attributes)


HWIO = np.ascontiguousarray(KERNEL.transpose(1, 2, 3, 0))
TWICE = RNG.integers(-127, 128, (3, 3, 1, 8)).astype("int8")  # two outputs of each channel


def _same(mod: Any, shape: tuple[int, ...], dtype: str = "int8") -> Any:
    """Assert that the pass keeps results, to float32 rounding; return the new module."""
    changed = integer_arithmetic(mod)
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    return changed


CONVOLUTIONS: dict[str, Any] = {
    "plain": lambda x: _conv(_image(x), _weights(HWIO)),
    "padded": lambda x: _conv(_image(x), _weights(HWIO), padding=[1, 0, 2, 1]),
    "padded_around_zero": lambda x: _conv(_image(x, zero_point=0), _weights(HWIO), padding=1),
    "strided": lambda x: _conv(_image(x), _weights(HWIO), strides=2, dilation=2),
    "per_channel": lambda x: _conv(_image(x), _weights(HWIO, RNG.uniform(0.1, 1, 5), np.zeros(5))),
    "weights_zero_point": lambda x: _conv(_image(x), _weights(HWIO, zero_point=100)),
    "zero_points_per_channel": lambda x: _conv(
        _image(x), _weights(HWIO, RNG.uniform(0.1, 1, 5), [100, -3, 0, 7, -100]), padding=1
    ),
    "depthwise_zero_points_per_channel": lambda x: op.nn.conv2d(
        _image(x),
        _weights(DEPTHWISE.reshape(3, 3, 4, 1), zero_point=[90, 0, -1, -90], axis=2),
        data_layout="NHWC",
        kernel_layout="HWOI",
        groups=4,
    ),
    "image_scales_per_channel": lambda x: _conv(
        _image(x, RNG.uniform(0.1, 1, 4), np.full(4, 3)), _weights(TWICE), padding=1, groups=4
    ),
    "nchw": lambda x: op.nn.conv2d(
        _image(op.permute_dims(x, [0, 3, 1, 2])), _weights(KERNEL.transpose(0, 3, 1, 2)), padding=1
    ),
    "reshaped_weights": lambda x: op.nn.conv2d(
        _image(x),
        op.reshape(_weights(DEPTHWISE, RNG.uniform(0.1, 1, 4), np.zeros(4)), [3, 3, 4, 1]),
        data_layout="NHWC",
        kernel_layout="HWOI",
        groups=4,
        padding=1,
    ),
    "transposed_weights": lambda x: _conv(
        _image(x),
        op.dequantize(
            op.permute_dims(const(KERNEL, "int8"), [1, 2, 3, 0]),
            const(RNG.uniform(0.1, 1, 5)),
            const(np.zeros(5), "int8"),
            axis=3,
            out_dtype="float32",
        ),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.slow
def test_a_convolution_of_integers(name: str) -> None:
    changed = _same(module([((2, 7, 8, 4), "int8")], CONVOLUTIONS[name]), (2, 7, 8, 4))
    convolution = next(call for call in calls(changed) if call.op.name == "relax.nn.conv2d")
    assert str(convolution.args[0].ty.dtype) == "int8"
    assert str(convolution.args[1].ty.dtype) == ("int16" if name.startswith("depthwise") else "int8")
    assert str(convolution.ty.dtype) == "int32"


def test_padding_holds_the_zero_point() -> None:
    changed = integer_arithmetic(module([((1, 5, 5, 4), "int8")], CONVOLUTIONS["padded"]))
    pad = next(call for call in calls(changed) if call.op.name == "relax.nn.pad")
    assert float(pad.attrs.pad_value) == 3.0
    assert str(pad.ty.dtype) == "int8"


SCALES = RNG.uniform(0.1, 1, 9)


@pytest.mark.parametrize("shape", [(3, 6), (2, 5, 6)])
@pytest.mark.parametrize(
    ("scale", "points"), [(0.5, 0), (SCALES, np.zeros(9)), (SCALES, np.arange(-120, 120, 27)), (0.5, 99)]
)
def test_a_product_of_integers(shape: tuple[int, ...], scale: Any, points: Any) -> None:
    weights = RNG.integers(-127, 128, (6, 9)).astype("int8")
    mod = module([(shape, "int8")], lambda x: op.matmul(_image(x), _weights(weights, scale, points, axis=1)))
    changed = _same(mod, shape)
    assert str(next(c for c in calls(changed) if c.op.name == "relax.matmul").ty.dtype) == "int32"


@pytest.mark.parametrize("axes", [[1, 2], [-1], None])
def test_a_mean_of_integers(axes: list[int] | None) -> None:
    changed = _same(module([((2, 5, 6, 4), "int8")], lambda x: op.mean(_image(x), axes, True)), (2, 5, 6, 4))
    assert str(next(call for call in calls(changed) if call.op.name == "relax.sum").ty.dtype) == "int32"


OPEN = {"n": (1, 40), "m": (2, 30)}
OPEN_SUMS: dict[str, Any] = {
    "an_image": lambda x: op.mean(x, [1, 2], True),
    "lines": lambda x: op.mean(x, [-2]),
    "all_elements": op.mean,
    "a_sum": lambda x: op.sum(x, [1, 2]),
}


def _open_image(reduce: Any, ranges: dict[str, tuple[int, int]], zero_point: int = 3) -> Any:
    """A reduction of an image of dynamic height and width; `ranges`: of these sizes, as the importer writes
    them."""
    height, width = (tirx.Var(name, "int64") for name in OPEN)
    mod = module([((2, height, width, 4), "int8")], lambda x: reduce(_image(x, zero_point=zero_point)))
    dims = {
        name: {"dim": name, "divide": 1, "min": least, "max": most} for name, (least, most) in ranges.items()
    }
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("kiln.dims", json.dumps(dims)))
    return mod


@pytest.mark.parametrize("name", OPEN_SUMS)
@pytest.mark.parametrize("zero_point", [0, 3])
def test_a_sum_of_a_dynamic_number_of_integers(name: str, zero_point: int) -> None:
    changed = _same(_open_image(OPEN_SUMS[name], OPEN, zero_point), (2, 5, 7, 4))
    assert "mean" not in operators(changed)
    assert str(next(call for call in calls(changed) if call.op.name == "relax.sum").ty.dtype) == "int32"


@pytest.mark.parametrize("ranges", [{}, {**OPEN, "n": (1, 1 << 21)}])
def test_a_sum_that_may_not_fit_stays(ranges: dict[str, tuple[int, int]]) -> None:
    mod = _open_image(OPEN_SUMS["an_image"], ranges)
    assert operators(integer_arithmetic(mod)) == operators(mod)


def test_a_matmul_with_a_dynamic_number_of_rows_stays_in_float() -> None:
    """Rows of all images of a batch on both sides, as an einsum makes them."""
    rows = tirx.Var("n", "int64") * 3

    def body(x: Any) -> Any:
        flat = op.reshape(x, relax.ShapeExpr([rows, tirx.IntImm("int64", 8)]))
        return op.matmul(op.permute_dims(flat), flat)

    mod = module([((rows // 3, 3, 8), "float32")], body)
    assert operators(integer_arithmetic(mod)) == operators(mod)


def test_unsigned_images() -> None:
    def body(x: Any) -> Any:
        real = op.dequantize(x, const(0.5), const(200, "uint8"), out_dtype="float32")
        return _conv(real, _weights(HWIO), padding=1)

    _same(module([((1, 5, 5, 4), "uint8")], body), (1, 5, 5, 4), "uint8")


STAY: dict[str, Any] = {
    "weights_with_a_zero_point_for_each_input": lambda x: _conv(
        _image(x), _weights(HWIO, 0.5, np.arange(4), axis=2)
    ),
    "weights_scaled_along_the_inputs": lambda x: _conv(
        _image(x), _weights(HWIO, np.full(4, 0.5), np.zeros(4), axis=2)
    ),
    "weights_whose_scaled_axis_is_split": lambda x: _conv(
        _image(x),
        op.reshape(_weights(HWIO.reshape(9, 20), np.full(20, 0.5), np.zeros(20), axis=1), [3, 3, 4, 5]),
    ),
    "an_image_with_a_scale_for_each_channel": lambda x: _conv(
        _image(x, np.full(4, 0.5), np.full(4, 3)), _weights(HWIO)
    ),
    "an_image_with_a_zero_point_for_each_channel": lambda x: _conv(
        _image(x, np.full(4, 0.5), [3, 1, 2, 3]), _weights(TWICE), groups=4
    ),
    "an_image_of_floats": lambda x: _conv(op.astype(x, "float32"), _weights(HWIO)),
    "float_weights": lambda x: _conv(_image(x), const(HWIO.astype("f4"))),
}


@pytest.mark.parametrize("name", STAY)
@pytest.mark.slow
def test_stays_float(name: str) -> None:
    changed = _same(module([((1, 5, 5, 4), "int8")], STAY[name]), (1, 5, 5, 4))
    convolution = next(call for call in calls(changed) if call.op.name == "relax.nn.conv2d")
    assert str(convolution.ty.dtype) == "float32"


def test_what_is_not_quantised_is_left_alone() -> None:
    mod = module([((1, 5, 5, 4), "float32")], lambda x: op.nn.relu(_conv(x, const(HWIO.astype("f4")))))
    assert operators(integer_arithmetic(mod)) == operators(mod)


def test_a_convolution_of_lines_is_one_kernel_of_integers() -> None:
    def body(x: Any) -> Any:
        real = op.dequantize(x, const(0.5), const(200, "uint8"), out_dtype="float32")
        scales, points = const(RNG.uniform(0.01, 0.02, 6)), const(np.zeros(6), "int8")
        weights = op.dequantize(const(LINES, "int8"), scales, points,
                                axis=0, out_dtype="float32")  # fmt: skip
        layer = op.nn.conv1d(real, weights, strides=2, padding=[1, 2], dilation=1)
        biased = op.add(layer, const(np.full((1, 6, 1), 0.75)))
        return op.quantize(biased, const(0.5), const(9, "uint8"), out_dtype="uint8")

    mod = module([((2, 4, 9), "uint8")], body)
    changed = simplify(mod)
    x = RNG.integers(0, 256, (2, 4, 9)).astype("uint8")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert np.abs(got.astype("i4") - want.astype("i4")).max() <= 1
    names = operators(changed)
    between = names[names.index("nn.conv2d") : names.index("quantize")]
    assert not {"reshape", "permute_dims", "squeeze"} & set(between)
    assert str(next(c for c in calls(changed) if c.op.name == "relax.nn.conv2d").ty.dtype) == "int32"


LINES = RNG.integers(-127, 128, (6, 4, 3)).astype("int8")


@pytest.mark.parametrize("groups", [1, 2])
def test_unsigned_weights_stay_eight_bits(groups: int) -> None:
    kernel = RNG.integers(0, 256, (3, 3, 4 // groups, 6)).astype("uint8")

    def body(x: Any) -> Any:
        real = op.dequantize(x, const(0.5), const(200, "uint8"), out_dtype="float32")
        weights = op.dequantize(const(kernel, "uint8"), const(0.25), const(117, "uint8"), out_dtype="float32")
        return _conv(real, weights, padding=1, groups=groups)

    changed = _same(module([((2, 5, 5, 4), "uint8")], body), (2, 5, 5, 4), "uint8")
    assert {str(c.args[1].ty.dtype) for c in calls(changed) if c.op.name == "relax.nn.conv2d"} == {"int8"}


SCALES = RNG.uniform(0.1, 1, 9)


def test_transposed_and_unsigned_weights_of_a_product() -> None:
    weights = RNG.integers(0, 256, (9, 6)).astype("uint8")

    def body(x: Any) -> Any:
        right = op.dequantize(const(weights, "uint8"), const(SCALES), const(np.full(9, 121), "uint8"),
                              axis=0, out_dtype="float32")  # fmt: skip
        return op.matmul(_image(x), op.permute_dims(right))

    changed = _same(module([((3, 6), "int8")], body), (3, 6))
    product = next(call for call in calls(changed) if call.op.name == "relax.matmul")
    assert str(product.args[1].ty.dtype) == "int8"


@pytest.mark.parametrize(
    ("axes", "shape", "kind"),
    [([2, 0, 1], [12, 9], "int32"), ([2, 0, 1], [6, 18], "int32"), ([0, 1, 2], [18, 6], "float32")],
)
def test_weights_that_are_moved_twice(axes: list[int], shape: list[int], kind: str) -> None:
    """As those of an LSTM's inputs; they stay float where their scales are not those of columns."""
    value = np.random.default_rng(2).integers(-128, 128, (2, 9, 6)).astype("int8")
    scale, zero = np.linspace(0.1, 1, 9), np.arange(-4, 5)

    def body(x: Any) -> Any:
        moved = op.permute_dims(_weights(value, scale, zero, 1), axes)
        return op.matmul(_image(x), op.reshape(moved, shape))

    changed = _same(module([((4, shape[0]), "int8")], body), (4, shape[0]))
    product = next(call for call in calls(changed) if call.op.name == "relax.matmul")
    assert product.ty.dtype == kind


UP = RNG.integers(-127, 128, (4, 5, 3, 2)).astype("int8")  # I, O, H, W
TRANSPOSED: dict[str, Any] = {
    "strided": ({"strides": 2}, {}, UP),
    "padded": (
        {"strides": [3, 2], "padding": [1, 0, 2, 1], "output_padding": [1, 0]},
        {"zero_point": -7},
        UP,
    ),
    "per_channel": ({"strides": 2}, {"scale": RNG.uniform(0.1, 1, 5)}, UP),
    "grouped": ({"strides": 2, "groups": 2}, {"scale": RNG.uniform(0.1, 1, 5)}, UP),
    "dilated": ({"strides": [1, 2], "dilation": 2}, {}, UP),
    "wide_strides": ({"strides": 4, "output_padding": [2, 3]}, {}, UP),
    "lines": ({"strides": 2, "padding": 1}, {"scale": RNG.uniform(0.1, 1, 5)}, UP[..., 0]),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_are_integer_convolutions(name: str) -> None:
    attributes, quant, kernel = TRANSPOSED[name]
    scale = quant.get("scale", 0.25)
    convolve = op.nn.conv1d_transpose if kernel.ndim == 3 else op.nn.conv2d_transpose
    shape = (2, 4, 6) if kernel.ndim == 3 else (2, 4, 5, 6)
    weights = _weights(kernel, scale, np.zeros(np.shape(scale)), axis=1)
    image = {"zero_point": quant.get("zero_point", 3)}
    mod = module([(shape, "int8")], lambda x: convolve(_image(x, **image), weights, **attributes))
    changed = _same(mod, shape)
    [made] = [call for call in calls(changed) if call.op.name == "relax.nn.conv2d"]
    assert [str(argument.ty.dtype) for argument in made.args] == ["int8", "int8"]


@pytest.mark.parametrize("name", ["padded", "grouped", "wide_strides", "lines"])
def test_what_is_interleaved_is_quantised(name: str) -> None:
    """Bias and limits are computed on the phases of the stride, and no float tensor is moved."""
    attributes, quant, kernel = TRANSPOSED[name]
    groups, rank = attributes.get("groups", 1), kernel.ndim
    convolve = op.nn.conv1d_transpose if rank == 3 else op.nn.conv2d_transpose
    scale = quant.get("scale", 0.25)
    weights = _weights(kernel, scale, np.zeros(np.shape(scale)), axis=1)
    bias = RNG.integers(-90, 90, (groups * kernel.shape[1], *[1] * (rank - 2)))

    def body(x: Any) -> Any:
        added = op.dequantize(const(bias, "int32"), const(0.1), const(0, "int32"), 0, "float32")
        wide = op.nn.relu(op.add(convolve(_image(x), weights, **attributes), added))
        return op.quantize(op.minimum(wide, const(150.0)), const(1.5), const(-9, "int8"), 0, "int8")

    shape = (2, 4, 6) if rank == 3 else (2, 4, 5, 6)
    mod = module([(shape, "int8")], body)
    changed = clean(_same(mod, shape))
    moved = [call for call in calls(changed) if call.op.name in ("relax.permute_dims", "relax.strided_slice")]
    assert {str(call.ty.dtype) for call in moved} == {"int8"}
