"""Convolutions and matmuls on 8-bit integers: cases, their data, and their sums by NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from . import arithmetic
from .lowered import Array, const


@dataclass(frozen=True)
class Case:
    """A convolution of `shape` by `weights` (HWIO); a dense layer when both have two axes."""

    shape: tuple[int, ...]
    weights: tuple[int, ...]
    dtype: str = "int8"
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    x: str = "random"  # random, least, most: every value the same
    w: str = "random"  # … and wide: with -128; seven: of 7 bits; int16: beyond 8 bits
    runtime: bool = False  # the weights of a dense layer are an input, too
    heavy: bool = False  # eight ninths of the pairs of sizes, two thirds of the dense layers: not in the gate


def _cases() -> Iterator[Case]:
    rng = np.random.default_rng(12)
    channels, outputs = (1, 2, 3, 4, 5, 8, 16, 19, 33), (1, 5, 8, 16, 17, 33, 70)
    for number, (depth, columns) in enumerate(itertools.product(channels, outputs)):
        size = (1, 3, 2, 5)[int(rng.integers(4))]
        stride, dilation, batch = (int(n) for n in rng.integers(1, 3, 3))
        groups = 2 if number % 7 == 3 else 1
        heavy = (channels.index(depth) + 2 * outputs.index(columns)) % 9 > 0
        least = (size - 1) * dilation + 1
        height, width = (least + int(n) for n in rng.integers(0, 10, 2))
        yield Case(
            (batch, height, width, depth * groups), (size, size, depth, columns * groups),
            ("int8", "uint8")[number % 2], stride, dilation, groups, heavy=heavy,
        )  # fmt: skip
    for number, (rows, depth, columns) in enumerate(itertools.product((1, 7, 12), (3, 4, 7, 64), (7, 33))):
        dtype = ("int8", "uint8")[(rows + depth) % 2]
        yield Case((rows, depth), (depth, columns), dtype, heavy=number % 3 > 0)
    for number, (columns, dtype) in enumerate(itertools.product((57, 71, 130), ("int8", "uint8"))):
        yield Case((1, 22), (22, columns), dtype, heavy=number in (1, 3, 4))
    for dtype, x, w in itertools.product(
        ("int8", "uint8"), ("least", "most"), ("least", "most", "wide", "int16")
    ):
        yield Case((1, 8, 8, 6), (3, 3, 6, 9), dtype, x=x, w=w)
    yield Case((1, 9, 4, 5), (2, 4, 5, 6))  # kernel rows as wide as the image: one run of all
    yield Case((1, 16, 16, 16), (3, 3, 16, 32), w="wide")
    yield Case((2, 9), (9, 12), x="least", w="least_of_all")  # the products that fit 16 bits only alone
    for channels, dtype in ((19, "int8"), (40, "uint8")):  # depthwise
        yield Case(
            (1, 9, 7, channels), (3, 3, 1, channels), dtype, channels // 20 + 1, groups=channels, w="wide"
        )
    for rows, dtype in ((7, "int8"), (2, "uint8")):
        yield Case((rows, 23), (23, 41), dtype, w="wide", runtime=True)
    yield Case((3, 21), (21, 17), "uint8")  # an odd number of rows and of groups, several vectors


CASES = list(_cases())
# For tile registers: rows and columns beyond whole registers, k in several parts, images whose lines a
# register divides or does not, groups, strides.
TILE_CASES = [
    *(Case((rows, depth), (depth, columns), dtype)
      for rows, depth, columns, dtype in [
          (33, 64, 40, "int8"), (49, 192, 70, "uint8"), (4, 160, 16, "int8"), (197, 16, 48, "uint8"),
          (31, 68, 33, "int8"), (15, 32, 3, "uint8"), (3, 64, 32, "int8"), (40, 62, 64, "int8"),
      ]),
    Case((1, 16, 16, 16), (3, 3, 16, 40), "uint8"), Case((2, 15, 29, 24), (3, 3, 24, 36), stride=2),
    Case((1, 9, 21, 16), (1, 1, 16, 64)), Case((1, 19, 19, 32), (3, 3, 32, 16)),
    Case((1, 12, 12, 64), (3, 3, 32, 24), "uint8", groups=2),
    Case((2, 10, 12, 20), (3, 2, 20, 7), dilation=2),
    Case((1, 1, 89, 24), (1, 5, 24, 20), stride=2),
]  # fmt: skip
GRIDS = {"gate": [c for c in CASES if not c.heavy], "rest": [c for c in CASES if c.heavy]}
_VALUES = {"least": -127, "most": 127, "least_of_all": -128, "seven_least": -64, "seven_most": 64}


def data_of(case: Case, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    limits = np.iinfo(case.dtype)
    low, high = {
        "random": (limits.min, limits.max),
        "least": (limits.min, limits.min),
        "most": (limits.max, limits.max),
    }[case.x]
    x = rng.integers(low, high + 1, case.shape).astype(case.dtype)
    if case.w == "int16":
        return x, rng.integers(-300, 301, case.weights).astype("int16")
    weights = rng.integers(-127, 128, case.weights)
    if case.w in _VALUES:
        weights[:] = _VALUES[case.w]
    if case.w == "seven":
        weights = rng.integers(-64, 65, case.weights)
    if case.w == "wide":
        weights[rng.integers(0, 3, case.weights) == 0] = -128
    return x, weights.astype("int8")


def sums_of(case: Case, x: Array, weights: Array) -> Array:
    wide = x.astype("int64"), weights.astype("int64")
    if len(case.shape) == 2:
        return (wide[0] @ wide[1]).astype("int32")
    return arithmetic.conv2d(*wide, case.stride, dilation=case.dilation, groups=case.groups).astype("int32")


def expression_of(case: Case, x: Any, weights: Any) -> Any:
    kernel = weights if case.runtime else const(weights, str(weights.dtype))
    if len(case.shape) == 2:
        return relax.op.matmul(x, kernel, out_dtype="int32")
    return relax.op.nn.conv2d(
        x, kernel, strides=case.stride, dilation=case.dilation, groups=case.groups,
        data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
