"""Products with bias, residual and activation, read from fused functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.kernels.operators.legalize import RULES
from kiln.opinfo import attach
from kiln.opinfo.match import ConvolutionAttributes, MatrixProduct, Product, read_product
from kiln.params import store
from relaxed import const, module
from tvm import relax
from tvm.tirx import PrimFunc

op = relax.op
IMAGE = (1, 8, 8, 4)
OUT = (1, 6, 6, 6)
WEIGHTS = np.arange(3 * 3 * 4 * 6.0).reshape(3, 3, 4, 6)


def fused(mod: Any) -> dict[str, PrimFunc]:
    """The functions of a module after fusion, constants being parameters as in `lower`."""
    mod, _ = store.split(mod)
    mod = attach.legalize_with_info(RULES, ["relax.reshape"])(mod)
    mod = attach.annotate(relax.transform.AnnotateTIROpPattern()(mod))
    mod = attach.fuse_tir(relax.transform.FuseOps(2)(mod))
    return {v.name_hint: f for v, f in mod.functions_items() if isinstance(f, PrimFunc)}


def product(arguments: Any, body: Any) -> Product | None:
    (func,) = fused(module(arguments, body)).values()
    return read_product(func)


def conv(x: Any) -> Any:
    return op.nn.conv2d(
        x, const(WEIGHTS), strides=[1, 1], data_layout="NHWC", kernel_layout="HWIO", dilation=[1, 1]
    )


TWO = [(IMAGE, "float32"), (OUT, "float32")]


def test_convolution_bias_residual_relu() -> None:
    bias = const(np.ones(6))
    matched = product(TWO, lambda x, r: op.nn.relu(op.add(op.add(conv(x), bias), r)))
    assert matched is not None
    assert matched.attrs == ConvolutionAttributes((1, 1), (0, 0, 0, 0), (1, 1), 1, "NHWC", "HWIO", "NHWC")
    assert (matched.data, matched.weights, matched.bias, matched.residual, matched.output) == (0, 1, 2, 3, 4)
    assert (matched.activation, matched.limits) == ("nn.relu", (0.0, float("inf")))


def test_the_order_of_an_additions_operands_makes_no_difference() -> None:
    bias = const(np.ones(6))

    def body(x: Any, r: Any) -> Any:
        return op.add(r, op.add(bias, conv(x)))

    (func,) = fused(module(TWO, body)).values()
    matched = read_product(func)
    assert matched is not None and matched.activation is None
    shapes = [[int(size) for size in tensor.shape] for tensor in attach.tensors(func)]
    assert shapes[matched.bias or 0] == [6]
    assert shapes[matched.residual or 0] == shapes[matched.output] == list(OUT)
    assert shapes[matched.data] == list(IMAGE) and shapes[matched.weights] == list(WEIGHTS.shape)


def test_the_order_of_the_additions_makes_no_difference() -> None:
    bias = const(np.ones(6))
    matched = product(TWO, lambda x, r: op.add(op.add(conv(x), r), bias))
    assert matched is not None and matched.bias is not None and matched.residual is not None


def test_clips() -> None:
    limited = product(
        [(IMAGE, "float32")], lambda x: op.minimum(op.maximum(conv(x), const(-1.0)), const(6.0))
    )
    assert limited is not None and (limited.activation, limited.limits) == ("clip", (-1.0, 6.0))
    clipped = product([(IMAGE, "float32")], lambda x: op.clip(conv(x), 0, 6))
    assert clipped is not None and (clipped.activation, clipped.limits) == ("clip", (0.0, 6.0))


def test_matrix_products() -> None:
    arguments = [((5, 7), "float32"), ((7, 3), "float32")]
    matched = product(arguments, lambda a, b: op.add(op.matmul(a, b), const(np.ones((1, 3)))))
    assert matched is not None and matched.attrs == MatrixProduct("MK", "KN", "MN")
    assert (matched.data, matched.weights, matched.bias, matched.output) == (0, 1, 2, 3)
    batched = product([((2, 5, 7), "float32"), ((7, 3), "float32")], lambda a, b: op.matmul(a, b))
    assert batched is not None and batched.attrs == MatrixProduct("AMK", "KN", "AMN")
    vector = product([((7,), "float32"), ((7, 3), "float32")], lambda a, b: op.matmul(a, b))
    assert vector is not None and vector.attrs == MatrixProduct("K", "KN", "N")


@pytest.mark.parametrize(
    "body",
    [
        lambda x, r: op.multiply(conv(x), r),
        lambda x, r: op.add(op.nn.relu(conv(x)), r),  # libraries add before the activation
        lambda x, r: op.add(conv(x), const(np.ones((6, 1)))),  # along the width
        lambda x, r: op.nn.relu(op.add(op.add(conv(x), r), r)),
        lambda x, r: op.subtract(const(np.ones(6)), conv(x)),
    ],
)
def test_what_is_no_such_product(body: Any) -> None:
    assert product(TWO, body) is None


def test_a_product_with_itself_added_is_none() -> None:
    def body(x: Any) -> Any:
        y = conv(x)
        return op.add(op.add(y, const(np.ones(6))), y)

    functions = fused(module([(IMAGE, "float32")], body))
    assert [read_product(func) for func in functions.values()] == [None]
