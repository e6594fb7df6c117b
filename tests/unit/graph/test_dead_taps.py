"""Taps of convolutions that read nothing but padding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kiln.graph.dead_taps import dead_taps
from relaxed import calls, const, module, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(3)


def _conv(x: Any, weights: Any, **attrs: Any) -> Any:
    return op.nn.conv2d(x, const(weights), data_layout="NHWC", kernel_layout="HWIO", **attrs)


# (height, width), kernel, attributes, the kernel that is left
CASES: list[tuple[tuple[int, int], tuple[int, int], dict[str, Any], tuple[int, int]]] = [
    ((8, 8), (3, 3), {"padding": 36, "dilation": 36}, (1, 1)),
    ((8, 20), (3, 3), {"padding": 12, "dilation": 12}, (1, 3)),
    ((2, 2), (7, 7), {"padding": 3}, (3, 3)),
    ((1, 1), (3, 3), {"padding": 1}, (1, 1)),
    ((1, 5), (3, 3), {"padding": [1, 1, 1, 1], "strides": [2, 2]}, (1, 3)),
    ((2, 2), (3, 3), {"padding": 1, "strides": 2}, (2, 2)),
    ((3, 3), (5, 4), {"padding": [4, 0, 0, 3]}, (3, 3)),
    ((4, 4), (3, 3), {"padding": 1}, (3, 3)),
    ((2, 2), (1, 1), {"padding": 3}, (1, 1)),
    ((2, 9), (3, 3), {"padding": [9, 1], "dilation": [6, 1]}, (1, 3)),
    ((13, 9), (3, 3), {"padding": [1, 1, 0, 1], "dilation": [6, 1], "strides": [2, 1]}, (3, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.slow
def test_kernels_without_dead_taps(case: Any, groups: int) -> None:
    (height, width), kernel, attrs, left = case
    weights = RNG.normal(size=(*kernel, 4 // groups, 8)).astype(np.float32)
    mod = module([((2, height, width, 4), "float32")], lambda x: _conv(x, weights, groups=groups, **attrs))
    changed = dead_taps(mod)
    (conv,) = calls(changed)
    assert tuple(conv.args[1].ty.shape)[:2] == left
    x = RNG.normal(size=(2, height, width, 4)).astype(np.float32)
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert want.shape == got.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# Greatest height, attributes, the rows of the kernel that are left, heights that are tried
DYNAMIC: list[tuple[int, dict[str, Any], int, list[int]]] = [
    (16, {"padding": [36, 0], "dilation": [36, 1]}, 1, [8, 16]),
    (16, {"padding": [12, 0], "dilation": [12, 1]}, 3, [4, 12, 16]),
    (12, {"padding": [12, 0], "dilation": [12, 1]}, 1, [1, 12]),
    (5, {"padding": [5, 0, 3, 0], "dilation": [3, 1], "strides": [2, 1]}, 3, [1, 2, 5]),
    (2, {"padding": [5, 0, 5, 0], "dilation": [5, 1], "strides": [3, 1]}, 1, [1, 2]),
]


@pytest.mark.parametrize("case", DYNAMIC, ids=str)
def test_images_of_dynamic_size_lose_what_the_greatest_does_not_read(case: Any) -> None:
    most, attrs, left, heights = case
    weights = RNG.normal(size=(3, 1, 2, 3)).astype(np.float32)
    size = tirx.Var("n", "int64")
    mod = module([((1, size, 2, 2), "float32")], lambda x: _conv(x, weights, **attrs))
    dims = {"n": {"dim": "n", "divide": 1, "min": 1, "max": most}}
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("kiln.dims", json.dumps(dims)))
    changed = dead_taps(mod)
    (conv,) = calls(changed)
    assert conv.args[1].ty.shape[0] == left
    for height in heights:
        x = RNG.normal(size=(1, height, 2, 2)).astype(np.float32)
        (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_stays() -> None:
    weights = np.ones((3, 3, 4, 8), np.float32)
    weights[0, 0, 0, 0] = np.inf
    infinite = module([((1, 1, 1, 4), "float32")], lambda x: _conv(x, weights, padding=1))
    size = tirx.Var("n", "int64")
    dynamic = module([((1, size, 1, 4), "float32")], lambda x: _conv(x, np.ones((3, 3, 4, 8)), padding=1))
    for made, left in ((infinite, (3, 3)), (dynamic, (3, 1))):
        (conv,) = calls(dead_taps(made))
        assert tuple(conv.args[1].ty.shape)[:2] == left
