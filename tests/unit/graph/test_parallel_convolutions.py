"""Sums of convolutions of one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from kiln.graph.parallel_convolutions import parallel_convolutions
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(7)
CHANNELS = 4


def _conv(x: Any, height: int, width: int, groups: int = 1, **attrs: Any) -> Any:
    """A convolution of as many channels as `x` has; `bias`: with one."""
    weights = RNG.normal(size=(height, width, CHANNELS // groups, CHANNELS))
    bias = attrs.pop("bias", True)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    result = op.nn.conv2d(x, const(weights), groups=groups, **layouts, **attrs)
    return op.add(result, _scales()) if bias else result


def _scales(shape: tuple[int, ...] = (1, 1, 1, CHANNELS)) -> Any:
    return const(RNG.normal(size=shape))


def _normalised(x: Any) -> Any:
    """A batch normalisation, as exporters leave it beside a convolution."""
    scaled = op.multiply(op.multiply(op.subtract(x, _scales()), _scales()), _scales())
    return op.add(scaled, _scales())


def _with_other_reader(x: Any) -> Any:
    first = _conv(x, 3, 3, padding=1, bias=False)
    return op.multiply(op.add(first, _conv(x, 1, 1)), first)


def _sums(*terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = op.add(total, term)
    return total


def _strided(x: Any, size: int, padding: int) -> Any:
    return _conv(x, size, size, strides=2, padding=padding)


# Name → the sum, from x (N, H, W, 4), and the number of convolutions that are left.
CASES: dict[str, tuple[Any, int]] = {
    "3x3_1x1_norm": (lambda x: _sums(_conv(x, 3, 3, padding=1), _conv(x, 1, 1), _normalised(x)), 1),
    "smallest_first": (lambda x: _sums(_normalised(x), _conv(x, 1, 1), _conv(x, 3, 3, padding=1)), 1),
    "strides": (lambda x: _sums(_strided(x, 3, 1), _strided(x, 1, 0)), 1),
    "depthwise": (
        lambda x: _sums(_conv(x, 3, 3, 4, padding=1), _conv(x, 1, 1, 4), _normalised(x)), 1,
    ),
    "groups": (lambda x: _sums(_conv(x, 3, 3, 2, padding=1), _conv(x, 1, 1, 2), _normalised(x)), 1),
    "lines": (
        lambda x: _sums(
            _conv(x, 1, 3, padding=[0, 1, 0, 1]),
            _conv(x, 3, 3, padding=1),
            _conv(x, 3, 1, padding=[1, 0, 1, 0]),
        ), 1,
    ),
    "dilated_inside": (
        lambda x: _sums(_conv(x, 5, 5, 4, padding=2), _conv(x, 3, 3, 4, padding=2, dilation=2)), 1,
    ),
    "dilated": (lambda x: _sums(_conv(x, 3, 3, padding=2, dilation=2), _conv(x, 1, 1)), 1),
    "one_sided": (lambda x: _sums(_conv(x, 2, 2, padding=[1, 0, 0, 1]), _normalised(x)), 1),
    "residual_of_a_difference": (
        lambda x: op.add(
            x, op.multiply(op.subtract(_conv(x, 3, 3, 4, padding=1), _normalised(x)), _scales())
        ), 1,
    ),
    "quotient": (lambda x: _sums(_conv(x, 1, 1), op.divide(x, _scales())), 1),
    "number": (lambda x: op.subtract(const(0.5), _sums(_conv(x, 1, 1), op.multiply(const(2.0), x))), 1),
    "two_kinds": (
        lambda x: _sums(
            _conv(x, 3, 3, padding=1), _conv(x, 3, 3, 4, padding=1), _conv(x, 1, 1), _conv(x, 1, 1, 4)
        ), 2,
    ),
    # What stays:
    "residual": (lambda x: op.add(x, _conv(x, 3, 3, padding=1)), 1),
    "crossed_lines": (
        lambda x: _sums(_conv(x, 1, 3, padding=[0, 1, 0, 1]), _conv(x, 3, 1, padding=[1, 0, 1, 0])), 2,
    ),
    "dilated_around": (
        lambda x: _sums(_conv(x, 3, 3, padding=2, dilation=2), _conv(x, 3, 3, padding=1)), 2,
    ),
    "other_groups": (lambda x: _sums(_conv(x, 3, 3, padding=1), _conv(x, 1, 1, 4)), 2),
    "other_reader": (_with_other_reader, 2),
    "other_data": (lambda x: _sums(_conv(x, 3, 3, padding=1), _conv(op.nn.relu(x), 1, 1)), 2),
    "product_of_another_sum": (
        lambda x: op.add(
            _conv(x, 3, 3, padding=1), op.multiply(op.add(_conv(x, 1, 1), op.nn.relu(x)), _scales())
        ), 2,
    ),
    "lines_of_constants": (
        lambda x: _sums(_conv(x, 3, 3, padding=1), op.add(_conv(x, 1, 1), _scales((1, 6, 1, 4)))), 2,
    ),
}  # fmt: skip


def _changed(mod: tvm.IRModule) -> tvm.IRModule:
    return relax.transform.DeadCodeElimination()(parallel_convolutions(mod))


def test_sums_of_convolutions() -> None:
    made = {name: module([((2, 6, 5, CHANNELS), "float32")], body) for name, (body, _) in CASES.items()}
    left = {name: operators(_changed(mod)).count("nn.conv2d") for name, mod in made.items()}
    assert left == {name: count for name, (_, count) in CASES.items()}
    state = RNG.bit_generator.state
    together = module([((2, 6, 5, CHANNELS), "float32")], lambda x: [body(x) for body, _ in CASES.values()])
    RNG.bit_generator.state = state
    x = RNG.normal(size=(2, 6, 5, CHANNELS)).astype(np.float32)
    want, got = run_by_tvm(together, [x]), run_by_tvm(_changed(together), [x])
    for name, right, found in zip(CASES, want, got, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5, err_msg=name)


def test_images_of_dynamic_size() -> None:
    height = tirx.Var("h", "int64")

    def both(x: Any) -> Any:
        return _sums(_strided(x, 3, 1), _strided(x, 1, 0))

    mod = module([((1, height, 5, CHANNELS), "float32")], both)
    changed = _changed(mod)
    assert operators(changed).count("nn.conv2d") == 1
    for size in (1, 4, 7):
        x = RNG.normal(size=(1, size, 5, CHANNELS)).astype(np.float32)
        (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(dtype: str) -> None:
    def both(x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        weights = [const(RNG.normal(size=(size, size, CHANNELS, 8)), dtype) for size in (3, 1)]
        return op.add(
            op.nn.conv2d(x, weights[0], padding=1, **layouts), op.nn.conv2d(x, weights[1], **layouts)
        )

    (conv,) = calls(_changed(module([((1, 6, 5, CHANNELS), dtype)], both)))
    assert (tuple(conv.args[1].ty.shape), str(conv.args[1].ty.dtype)) == ((3, 3, CHANNELS, 8), dtype)


@pytest.mark.parametrize("combine", [op.add, op.subtract])
def test_data_is_no_part_of_a_kernel(combine: Any) -> None:
    mod = module([((1, 6, 5, CHANNELS), "float32")], lambda x: combine(_conv(x, 3, 3, padding=1), x))
    assert operators(_changed(mod)) == operators(mod)


def test_kernels_that_are_not_finite_stay() -> None:
    def both(x: Any) -> Any:
        return op.add(_conv(x, 3, 3, padding=1), op.divide(x, const([1.0, 0.0, 1.0, 1.0])))

    mod = module([((1, 6, 5, CHANNELS), "float32")], both)
    assert operators(_changed(mod)) == operators(mod)
