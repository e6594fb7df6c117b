"""Pooling, sums, means, softmax and normalisations, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from . import arithmetic
from .lowered import Array, const
from .operators import Case, agree, one

op = relax.op
GAMMA, BETA = np.linspace(0.5, 1.5, 35, dtype="f4"), np.linspace(-1, 1, 35, dtype="f4")


def _pool(
    kind: str, size: int, stride: int, padding: tuple[int, int, int, int], count_pad: bool = False
) -> Case:
    def make(x: Any) -> Any:
        where = {"pool_size": size, "strides": stride, "padding": list(padding), "layout": "NHWC"}
        if kind == "max":
            return op.nn.max_pool2d(x, **where)
        return op.nn.avg_pool2d(x, **where, count_include_pad=count_pad)

    return one(
        (2, 9, 11, 13),
        make,
        lambda x: arithmetic.pool2d(x, size, stride, padding, kind, count_pad),
        exact=kind == "max",
    )


def _layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    mean, var = x.mean(-1, keepdims=True, dtype="f8"), x.var(-1, keepdims=True, dtype="f8")
    return np.asarray((x - mean) / np.sqrt(var + 1e-5) * gamma + beta)


CASES: dict[str, Case] = {
    **{
        f"{kind}_pool_{size}_{stride}_{''.join(map(str, padding))}{'_pad' * count}": _pool(
            kind, size, stride, padding, count
        )
        for kind, size, stride, padding, count in [
            ("max", 2, 2, (0, 0, 0, 0), False),
            ("max", 3, 1, (1, 1, 1, 1), False),
            ("max", 3, 2, (0, 1, 2, 1), False),
            ("avg", 2, 2, (0, 0, 0, 0), False),
            ("avg", 3, 2, (1, 1, 1, 1), False),
            ("avg", 3, 2, (1, 0, 1, 2), True),
            ("avg", 7, 1, (0, 0, 0, 0), False),
        ]
    },
    "global_pool": one(
        (2, 7, 5, 19),
        lambda x: op.nn.adaptive_avg_pool2d(x, 1, layout="NHWC"),
        lambda x: x.mean(axis=(1, 2), keepdims=True, dtype="f8"),
    ),
    "avg_pool_ceil": one(
        (1, 6, 6, 4),
        lambda x: op.nn.max_pool2d(x, 3, 2, ceil_mode=True, layout="NHWC"),
        lambda x: arithmetic.pool2d(x, 3, 2, (0, 0, 1, 1), "max", False),
        True,
    ),
    "mean_spatial": one(
        (2, 5, 7, 9), lambda x: op.mean(x, [1, 2]), lambda x: x.mean(axis=(1, 2), dtype="f8")
    ),
    "mean_last": one((3, 5, 41), lambda x: op.mean(x, [-1]), lambda x: x.mean(axis=-1, dtype="f8")),
    "mean_first": one(
        (6, 5, 4), lambda x: op.mean(x, [0], keepdims=True), lambda x: x.mean(axis=0, keepdims=True)
    ),
    "mean_outer": one((6, 5, 4), lambda x: op.mean(x, [0, 2]), lambda x: x.mean(axis=(0, 2), dtype="f8")),
    "sum_long": one((2, 1000), lambda x: op.sum(x, [1]), lambda x: x.sum(axis=1, dtype="f8")),
    "sum_of_a_volume": one(
        (60, 50, 70, 20),
        lambda x: op.sum(op.multiply(x, x), [0, 1, 2]),
        lambda x: (x.astype("f8") ** 2).sum(axis=(0, 1, 2)),
    ),
    "mean_of_a_long_axis": one(
        (1, 200_001, 20),
        lambda x: op.mean(op.multiply(x, x), [1]),
        lambda x: (x.astype("f8") ** 2).mean(axis=1),
    ),
    "sum_of_many_rows": one(
        (300, 2, 500, 40),
        lambda x: op.sum(op.multiply(x, x), [0, 2, 3]),
        lambda x: (x.astype("f8") ** 2).sum(axis=(0, 2, 3)),
    ),
    "sum_of_long_rows": one(
        (2, 2_000_003),
        lambda x: op.sum(op.multiply(x, x), [1]),
        lambda x: (x.astype("f8") ** 2).sum(axis=1),
    ),
    "max_last": one((3, 37), lambda x: op.max(x, [1]), lambda x: x.max(axis=1), True),
    "min_middle": one((3, 37, 2), lambda x: op.min(x, [1]), lambda x: x.min(axis=1), True),
    "prod": one((3, 9), lambda x: op.prod(x, [1]), lambda x: x.prod(axis=1, dtype="f8")),
    "variance": one((4, 33), lambda x: op.variance(x, [1]), lambda x: x.var(axis=1, dtype="f8")),
    "scalar_sum": one((5, 7), op.sum, lambda x: np.asarray(x.sum(dtype="f8"))),
    "scalar_max_relu": one(
        (70, 80), lambda x: op.nn.relu(op.max(x)), lambda x: np.asarray(max(x.max(), 0)), True
    ),
    **{
        f"softmax_{'x'.join(map(str, shape))}_{axis}": one(
            shape,
            lambda x, axis=axis: op.nn.softmax(x, axis),
            lambda x, axis=axis: arithmetic.softmax(x, axis),
        )
        for shape, axis in [
            ((1, 1), 1),
            ((3, 2), 1),
            ((1, 1000), -1),
            ((7, 33), 1),
            ((5, 6, 7), 0),
            ((5, 6, 7), 1),
            ((2, 3, 4, 17), 3),
            ((2, 9, 4, 5), 1),
        ]
    },
    "log_softmax": one(
        (4, 21), lambda x: op.nn.log_softmax(x, -1), lambda x: np.log(arithmetic.softmax(x, -1))
    ),
    "layer_norm": one(
        (2, 6, 35),
        lambda x: op.nn.layer_norm(x, const(GAMMA), const(BETA), axes=[-1]),
        lambda x: _layer_norm(x, GAMMA, BETA),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Path) -> None:
    agree(CASES[name], tmp_path)
