"""Maxima over large windows, as one step for each axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.separable_pools import separable_pools
from relaxed import calls, module, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(3)


def _pool(x: Any, window: tuple[int, int], **attrs: Any) -> Any:
    return op.nn.max_pool2d(x, window, layout="NHWC", **attrs)


# (height, width, channels), window, attributes, element type
CASES: list[tuple[tuple[int, int, int], tuple[int, int], dict[str, Any], str]] = [
    ((12, 11, 1), (9, 9), {"padding": 4}, "float32"),
    ((12, 11, 3), (5, 5), {"padding": 2}, "int8"),
    ((13, 12, 2), (7, 6), {"padding": [3, 2, 1, 0]}, "float32"),
    ((17, 19, 2), (8, 8), {"padding": [1, 2, 3, 0], "strides": [2, 1], "ceil_mode": True}, "float32"),
    ((12, 11, 9), (5, 5), {"padding": 2}, "float32"),
    ((23, 25, 2), (6, 7), {"dilation": [2, 3], "strides": [1, 1], "padding": 2}, "float32"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_large_windows_are_two_steps(case: Any) -> None:
    (height, width, channels), window, attrs, dtype = case
    mod = module([((2, height, width, channels), dtype)], lambda x: _pool(x, window, **attrs))
    changed = separable_pools(mod)
    pools = [call for call in calls(changed) if "max_pool" in call.op.name]
    windows = [tuple(map(int, pool.attrs.pool_size)) for pool in pools]
    assert windows == [(window[0], 1), (1, window[1])]
    along_rows = channels < 8 and attrs.get("strides", [1, 1])[1] == 1
    assert int(pools[1].ty.shape[-1]) == (1 if along_rows else channels)
    x = (RNG.normal(size=(2, height, width, channels)) * 50 - 100).astype(dtype)  # mostly below zero
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    np.testing.assert_array_equal(got, want)


def test_an_image_of_dynamic_sizes() -> None:
    h, w = tirx.Var("h", "int64"), tirx.Var("w", "int64")
    mod = module([((1, h, w, 2), "float32")], lambda x: _pool(x, (9, 9), padding=4))
    changed = separable_pools(mod)
    assert len(calls(changed)) == 2
    x = RNG.normal(size=(1, 10, 7, 2)).astype(np.float32)
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("size", "window", "attrs"),
    [
        ((12, 12), (3, 3), {"padding": 1}),  # reads nothing less
        ((12, 12), (12, 12), {}),  # of the whole image: one result
        ((64, 64), (8, 8), {"strides": 8}),  # windows that do not overlap
        ((12, 12), (1, 9), {}),
    ],
)
def test_what_stays_one_step(size: tuple[int, int], window: tuple[int, int], attrs: dict[str, Any]) -> None:
    mod = module([((1, *size, 4), "float32")], lambda x: _pool(x, window, **attrs))
    assert len(calls(separable_pools(mod))) == 1
