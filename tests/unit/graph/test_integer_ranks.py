"""IntegerArithmetic and IntegerProducts: volumes, batches, vectors and scaled operands; results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from kiln.graph.integer import integer_arithmetic
from kiln.graph.quantised_moves import quantised_moves
from kiln.lower.integer_products import integer_products
from relaxed import Array, calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(9)


def _real(x: Any, scale: float = 0.5, zero_point: int = 3) -> Any:
    point = const(zero_point, str(x.ty.dtype))
    return op.dequantize(x, const(scale), point, axis=-1, out_dtype="float32")


def _weights(shape: tuple[int, ...], axis: int | None = None, kind: str = "int8", point: Any = 0) -> Any:
    """Constant weights, with a scale for each index of `axis` and zero points of magnitude up to `point`."""
    info = np.iinfo(kind)
    value = RNG.integers(info.min + (kind == "int8"), info.max + 1, shape)
    parts = () if axis is None else (shape[axis],)
    points = np.broadcast_to(point, parts) - (np.arange(parts[0]) if parts and point else 0)
    scales = RNG.uniform(0.01, 0.1, parts)
    return op.dequantize(
        const(value, kind), const(scales), const(points, kind), axis=axis or 0, out_dtype="float32"
    )


def _same(given: list[tuple[tuple[int, ...], str]], body: Any, *passes: Any) -> tvm.IRModule:
    """Assert that passes keep the results of `body`, a list, to float32 rounding; return the new module."""
    mod = module(given, body)
    changed = mod
    for step in passes:
        changed = step(changed)
    changed = relax.transform.DeadCodeElimination()(changed)
    inputs: list[Array] = []
    for shape, dtype in given:
        info = np.iinfo(dtype)
        inputs.append(RNG.integers(info.min, info.max + 1, shape).astype(dtype))
    for want, got in zip(run_by_tvm(mod, inputs), run_by_tvm(changed, inputs), strict=True):
        assert want.shape == got.shape
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    return changed


def _volumes(x: Any, y: Any) -> list[Any]:
    conv, up, kernel = op.nn.conv3d, op.nn.conv3d_transpose, (6, 4, 3, 2, 3)
    last = {"data_layout": "NDHWC", "kernel_layout": "DHWIO"}
    return [
        conv(_real(x), _weights(kernel)),
        conv(_real(x), _weights(kernel, 0), strides=[2, 1, 2], padding=[1, 0, 1, 0, 1, 1]),
        conv(_real(x, zero_point=0), _weights(kernel, 0), padding=1, dilation=[2, 1, 1]),
        conv(_real(x), _weights((6, 2, 3, 2, 3), 0, "uint8", 120), groups=2, padding=1),
        conv(_real(x), _weights((4, 1, 3, 2, 3), 0, "uint8", 255), groups=4, padding=1),
        conv(_real(x), _weights((6, 4, 3, 1, 1)), padding=[1, 0, 0, 1, 0, 0]),
        conv(_real(y, 0.3, 200), _weights((3, 2, 3, 4, 6), 4, "uint8", 9), **last),
        up(_real(x), _weights((4, 5, 3, 2, 3), 1), strides=2, padding=1),
        up(_real(x), _weights((4, 3, 2, 2, 3), 1, "uint8", 130), strides=[1, 2, 3], groups=2),
        up(_real(x), _weights((4, 3, 2, 2, 3), 1, point=100), strides=2, dilation=[1, 2, 1]),
    ]


def test_convolutions_of_volumes() -> None:
    given = [((1, 4, 5, 6, 4), "int8"), ((1, 5, 6, 4, 4), "uint8")]
    changed = _same(given, _volumes, integer_arithmetic)
    made = [call for call in calls(changed) if operators(changed) and "conv" in call.op.name]
    assert {call.op.name for call in made} == {"relax.nn.conv2d"}
    assert {str(call.ty.dtype) for call in made} == {"int32"}


def test_transposed_convolutions_whose_weights_have_zero_points() -> None:
    def body(x: Any, y: Any) -> list[Any]:
        return [
            op.nn.conv2d_transpose(_real(x), _weights((4, 5, 3, 2), 1, "uint8", 130), strides=2, padding=1),
            op.nn.conv2d_transpose(_real(x), _weights((4, 3, 3, 2), point=-90), strides=[3, 1], groups=2),
            op.nn.conv1d_transpose(_real(y), _weights((4, 5, 3), 1, "uint8", 255), strides=2, dilation=3),
        ]

    changed = _same([((1, 4, 5, 6), "int8"), ((2, 4, 7), "int8")], body, integer_arithmetic)
    made = [call for call in calls(changed) if "conv" in call.op.name]
    assert {str(argument.ty.dtype) for call in made for argument in call.args} == {"int8"}


def test_products_by_weights_with_batches_or_on_the_left() -> None:
    def body(x: Any, y: Any) -> list[Any]:
        images = _real(x), _real(y, zero_point=200)
        shapes = [((3, 6, 4), 2), ((3, 6, 4), 0), ((2, 1, 6, 4), 1), ((6, 4), 1), ((1, 6, 4), None)]
        right = [op.matmul(real, _weights(*one, "uint8", 130)) for real in images for one in shapes]
        left = [
            op.matmul(_weights(shape, axis, "uint8", 120), op.permute_dims(real, [0, 1, 3, 2]))
            for real in images
            for shape, axis in [((5, 6), 0), ((3, 5, 6), 1), ((2, 1, 5, 6), 0), ((5, 6), None)]
        ]
        return right + left

    changed = _same([((2, 3, 7, 6), kind) for kind in ("int8", "uint8")], body, integer_arithmetic)
    made = [call for call in calls(changed) if call.op.name == "relax.matmul"]
    assert {str(call.ty.dtype) for call in made} == {"int32"}


def test_products_of_activations_that_broadcast() -> None:
    pairs = [
        ((2, 3, 5, 8), (2, 1, 8, 6)), ((2, 1, 5, 8), (1, 3, 8, 6)), ((5, 8), (3, 8, 6)), ((3, 5, 8), (8, 6)),
        ((1, 5, 8), (1, 8, 6)), ((2, 1, 3, 5, 8), (4, 1, 8, 6)), ((8,), (3, 8, 6)), ((3, 5, 8), (8,)),
        ((8,), (8,)), ((8, 5), (8, 6)),
    ]  # fmt: skip
    given = [(shape, kind) for pair in pairs for shape, kind in zip(pair, ("int8", "uint8"), strict=True)]

    def body(*tensors: Any) -> list[Any]:
        real = [_real(x, 0.1, 7) for x in tensors]
        results = [op.matmul(*pair) for pair in zip(real[:-2:2], real[1:-2:2], strict=True)]
        left, right = real[-2:]  # Gemm with transA and alpha
        return [*results, op.matmul(op.permute_dims(op.multiply(left, const(-0.7))), right)]

    changed = _same(given, body, quantised_moves, integer_products("m"))
    assert not {"matmul", "einsum", "dequantize"} & set(operators(changed))


def test_scaled_operands_of_dense_layers() -> None:
    def body(x: Any) -> list[Any]:
        weights, real = _weights((6, 9), 1), _real(x)
        by_four = op.divide(real, const(4.0))
        return [
            op.matmul(op.multiply(const(0.3), real), weights),
            op.matmul(op.reshape(by_four, [2, 3, 6]), weights),
            op.matmul(by_four, weights),
        ]

    changed = _same([((6, 6), "int8")], body, integer_arithmetic)
    assert {str(c.ty.dtype) for c in calls(changed) if c.op.name == "relax.matmul"} == {"int32"}


def test_operands_that_are_divided_by_zero_or_by_several_numbers_stay() -> None:
    def body(x: Any) -> list[Any]:
        return [
            op.matmul(op.divide(_real(x), const(divisor)), _weights((6, 9)))
            for divisor in (0.0, np.arange(1.0, 7.0))
        ]

    mod = module([((6, 6), "int8")], body)
    assert "astype" not in operators(integer_arithmetic(mod))


def test_sums_that_may_not_fit_into_32_bits_have_64() -> None:
    """90,000 products of 127 by 255 do not fit; of 90 by 128 they do."""

    def body(x: Any, y: Any) -> list[Any]:
        small, large = (np.full((90_000, 1), value) for value in (90, 127))
        return [
            op.matmul(
                op.dequantize(data, const(0.1), const(0, kind), out_dtype="float32"),
                op.dequantize(const(value, "int8"), const(0.1), const(0, "int8"), out_dtype="float32"),
            )
            for data, kind, value in ((x, "int8", small), (y, "uint8", large))
        ]

    changed = integer_arithmetic(module([((1, 90_000), "int8"), ((1, 90_000), "uint8")], body))
    assert [str(c.ty.dtype) for c in calls(changed) if c.op.name == "relax.matmul"] == ["int32", "int64"]
    for terms, kind in ((30_000, "int32"), (34_000, "int64")):
        pair = module(
            [((2, terms), "int8")] * 2,
            lambda x, y: op.matmul(_real(x, zero_point=-128), op.permute_dims(_real(y, zero_point=127))),
        )
        made = integer_products("m")(pair)
        assert "dequantize" not in operators(made)
        (product,) = [c for c in calls(made) if c.op.name == "relax.call_tir"]
        assert str(product.ty.dtype) == kind


@pytest.mark.parametrize(
    ("weights", "greatest", "sums"),
    [("int8", 127, "int32"), ("int16", 32767, "int64"), ("int16", 90, "int32")],
)
@pytest.mark.parametrize("form", ["convolution", "transposed", "product", "product_of_a_batch"])
def test_activations_of_16_bits(form: str, weights: str, greatest: int, sums: str) -> None:
    """The sums have the bits that the weights need, and weights that fit into 8 bits have no more."""
    conv, product = form in ("convolution", "transposed"), form.startswith("product")
    shape = (1, 4, 5, 5) if conv else (2, 3, 12)
    kernel_shape = {"convolution": (5, 4, 3, 3), "transposed": (4, 5, 3, 3), "product": (12, 5)}
    value = RNG.integers(-greatest, greatest + 1, kernel_shape.get(form, (2, 12, 5)))
    value.flat[0] = greatest

    def body(x: Any) -> Any:
        real = op.dequantize(x, const(0.5), const(-3000, "int16"), out_dtype="float32")
        kernel = op.dequantize(const(value, weights), const(0.25), const(0, weights), out_dtype="float32")
        if product:
            return op.matmul(real, kernel)
        return (op.nn.conv2d if form == "convolution" else op.nn.conv2d_transpose)(real, kernel)

    changed = _same([(shape, "int16")], body, integer_arithmetic)
    names = ("relax.matmul",) if product else ("relax.nn.conv2d",)
    (call,) = [call for call in calls(changed) if call.op.name in names]
    found = [str(operand.ty.dtype) for operand in (*call.args, call)]
    assert found == ["int16", "int8" if greatest < 128 else "int16", sums]


def test_zero_points_beyond_small_weights() -> None:
    """uint8 weights of which none is above 127, with zero points that are."""
    weights = RNG.integers(0, 100, (4, 5, 2, 2)).astype("uint8")
    points = np.array([125, 63, 200, 255, 0], "uint8")

    def body(x: Any) -> Any:
        kernel = op.dequantize(
            const(weights, "uint8"),
            const(np.full(5, 0.25)),
            const(points, "uint8"),
            axis=1,
            out_dtype="float32",
        )
        return op.nn.conv2d_transpose(_real(x), kernel, strides=2)

    _same([((1, 4, 3, 3), "int8")], body, integer_arithmetic)


def _computed(x: Any, axes: list[int] | None, with_zero: bool = True) -> Any:
    """x dequantised with a scale and a zero point of the run: one of all elements, or one along `axes`."""
    keep = axes is not None
    scale = op.max(op.abs(op.astype(x, "float32")), axes, keep)
    wide = op.astype(x, "int32")
    if with_zero:
        wide = op.subtract(wide, op.astype(op.max(x, axes, keep), "int32"))
    return op.multiply(op.astype(wide, "float32"), scale)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_products_of_levels_that_the_run_computes(kind: str) -> None:
    def integers(x: Any) -> list[Any]:
        return [
            op.matmul(_computed(x, None), _weights((6, 9))),
            op.matmul(_computed(x, None), _weights((6, 9), 1, kind, 90)),
            op.matmul(_computed(x, [2]), _weights((6, 9), 1, kind, 90)),
            op.matmul(_computed(x, [2], with_zero=False), _weights((6, 9), 1)),
            op.matmul(op.reshape(_computed(x, None), [10, 6]), _weights((6, 9), 1)),
        ]

    def floats(x: Any) -> list[Any]:
        return [
            op.matmul(op.reshape(_computed(x, [2]), [10, 6]), _weights((6, 9))),
            op.matmul(_computed(x, [1]), _weights((6, 9))),
            op.matmul(_computed(x, None), _weights((6, 9), 0)),
        ]

    given = [((2, 5, 6), kind)]
    changed = _same(given, lambda x: [*integers(x), *floats(x)], integer_arithmetic)
    types = [str(call.ty.dtype) for call in calls(changed) if call.op.name == "relax.matmul"]
    assert types == ["int32"] * 5 + ["float32"] * 3
