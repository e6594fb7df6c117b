"""Quantised convolutions and products: integers throughout, checked against exact integer arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.graph.pipeline import simplify
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, const, module, runnable

op = relax.op


@dataclass(frozen=True)
class Case:
    """dequantize → convolution (or product) → bias, relu → quantize."""

    dtype: str
    zero_point: int
    out_dtype: str
    out_zero_point: int
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    stride: int = 1
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    per_channel: bool = False
    weights_zero_point: int = 0
    bias: bool = True


CASES = [
    Case("int8", 0, "int8", 0, (1, 5, 6, 3), (1, 1, 3, 8)),
    Case("int8", -128, "int8", -128, (1, 9, 7, 16), (3, 3, 16, 17), 2, (1, 1, 1, 1), per_channel=True),
    Case("int8", 5, "int8", -3, (2, 6, 5, 7), (3, 3, 7, 24), 1, (0, 1, 2, 1)),
    Case("uint8", 128, "uint8", 0, (1, 8, 8, 8), (5, 5, 8, 9), 2, (2, 2, 2, 2)),
    Case("uint8", 0, "uint8", 255, (1, 4, 4, 33), (1, 1, 33, 33), per_channel=True, bias=False),
    Case("uint8", 3, "int8", 7, (1, 7, 7, 24), (3, 3, 1, 24), 1, (1, 1, 1, 1), 24, True),
    Case("int8", -7, "int8", 1, (1, 10, 9, 17), (3, 3, 1, 17), 2, (1, 0, 1, 2), 17),
    Case("int8", 11, "uint8", 100, (1, 6, 6, 8), (3, 3, 4, 6), 1, (1, 1, 1, 1), 2, True),
    Case("int8", -128, "int8", 127, (1, 6, 6, 8), (2, 2, 8, 5), weights_zero_point=3, bias=False),
    Case("uint8", 130, "int8", -9, (1, 5, 5, 8), (3, 3, 8, 16), weights_zero_point=-128, bias=False),
    Case("int8", 4, "int8", -5, (3, 33), (33, 10)),
    Case("uint8", 128, "uint8", 120, (1, 64), (64, 17), per_channel=True),
    Case("int8", -1, "int8", 0, (2, 3, 7), (7, 8), per_channel=True, bias=False),
]


@dataclass
class Data:
    """Constants of a case; scales are powers of two times small factors, so that results spread widely."""

    x: Array
    weights: Array
    x_scale: float
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    out_scale: float


def _data(case: Case) -> Data:
    rng = np.random.default_rng(4)
    limits = np.iinfo(case.dtype)
    outputs = case.weights[-1]
    weights = rng.integers(-127, 128, case.weights).astype("int8")
    scale = rng.uniform(0.001, 0.01, outputs if case.per_channel else 1).astype("f4")
    x_scale = 0.05
    depth = int(np.prod(case.weights[:-1]))
    middle = 70.0 if case.weights_zero_point == 0 else 150.0  # typical size of a weight
    spread = 70.0 * middle * np.sqrt(depth) * x_scale * float(scale.mean())
    return Data(
        rng.integers(limits.min, limits.max + 1, case.shape).astype(case.dtype),
        weights,
        x_scale,
        scale,
        rng.uniform(-spread, spread, outputs).astype("f4"),
        float(np.float32(spread / 50)),
    )


def _build(case: Case, data: Data, x: Any) -> Any:
    scale: Any = const(data.scale if case.per_channel else data.scale[0])
    points = np.full(data.scale.shape if case.per_channel else (), case.weights_zero_point)
    real = op.dequantize(x, const(data.x_scale), const(case.zero_point, case.dtype), out_dtype="float32")
    weights = op.dequantize(
        const(data.weights, "int8"), scale, const(points, "int8"), axis=-1, out_dtype="float32"
    )
    if len(case.weights) == 2:
        y = op.matmul(real, weights)
    else:
        y = op.nn.conv2d(
            real, weights, strides=case.stride, padding=list(case.padding), groups=case.groups,
            data_layout="NHWC", kernel_layout="HWIO",
        )  # fmt: skip
    if case.bias:
        y = op.nn.relu(op.add(y, const(data.bias)))
    zero_point = const(case.out_zero_point, case.out_dtype)
    return op.quantize(y, const(data.out_scale), zero_point, axis=-1, out_dtype=case.out_dtype)


def _sums(case: Case, data: Data) -> Array:
    """The exact integer sums, in int64."""
    x = data.x.astype("int64") - case.zero_point
    weights = data.weights.astype("int64") - case.weights_zero_point
    if len(case.weights) == 2:
        return np.asarray(x @ weights)
    return arithmetic.conv2d(x, weights, case.stride, case.padding, groups=case.groups)


def _real_levels(case: Case, data: Data) -> Array:
    """The output in units of its scale before rounding, float64."""
    y = _sums(case, data) * (data.x_scale * data.scale.astype("f8"))
    if case.bias:
        y = np.maximum(y + data.bias, 0)
    return np.asarray(y / data.out_scale)


@pytest.mark.parametrize(
    ("target_name", "step"),
    [
        ("x86_64", 2),
        ("x86_64_v2", 3),
        *(pytest.param(name, 1, marks=pytest.mark.heavy) for name in ("x86_64", "x86_64_v2")),
    ],
)
def test_quantised_to_quantised(target_name: str, step: int, tmp_path: Path) -> None:
    """Every `step`th case."""
    cases = CASES[::step]
    data = [_data(case) for case in cases]
    mod = module(
        [(case.shape, case.dtype) for case in cases],
        lambda *xs: [_build(case, item, x) for case, item, x in zip(cases, data, xs, strict=True)],
    )
    compiled = Compiled(simplify(mod), runnable(target_name), tmp_path).load()
    heavy = [k for k in compiled.result.kernels if k.family in ("conv2d", "depthwise")]
    assert sum(kernel.args[0].dtype in ("int8", "uint8") for kernel in heavy) >= len(cases)
    results = compiled.run([item.x for item in data])
    for case, item, result in zip(cases, data, results, strict=True):
        levels = _real_levels(case, item)
        want = arithmetic.quantize(levels, 1.0, case.out_zero_point, case.out_dtype)
        spread = np.unique(result).size
        assert spread > min(20, result.size // 5), (
            f"{case}: only {spread} different outputs, the test would see little"
        )
        # float32 rounding of the rescale may decide a tie; nowhere else may a level differ
        tie = np.abs(levels - np.floor(levels) - 0.5) < 1e-4
        wrong = (result != want) & ~tie
        assert not wrong.any(), f"{case}: {wrong.sum()} of {wrong.size} differ"
        assert np.abs(result.astype(int) - want).max() <= 1


@pytest.mark.parametrize("extreme", [-128, 127])
def test_sums_are_exact_integers(extreme: int, tmp_path: Path) -> None:
    """The largest sums, as float32 images of them: a sum in float would lose the low bits."""
    x = np.full((1, 4, 4, 256), extreme, "int8")
    weights = np.full((3, 3, 256, 5), -127, "int8")
    weights[0, 0, 0] = [1, 2, 3, 4, 5]

    def body(v: Any) -> Any:
        real = op.dequantize(v, const(1.0), const(100, "int8"), out_dtype="float32")
        kernel = op.dequantize(const(weights, "int8"), const(1.0), const(0, "int8"), out_dtype="float32")
        return op.nn.conv2d(real, kernel, data_layout="NHWC", kernel_layout="HWIO")

    compiled = Compiled(simplify(module([(x.shape, "int8")], body)), runnable("x86_64"), tmp_path).load()
    want = arithmetic.conv2d(x.astype("int64") - 100, weights)
    assert np.abs(want).max() > 2**25 or extreme == 127
    assert (compiled.run([x])[0] == want.astype("f4")).all()


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_quantize_and_dequantize_alone(dtype: str, odd: int, tmp_path: Path) -> None:
    """Ties round to the even level before the zero point is added, whether that is even or odd."""
    limits = np.iinfo(dtype)
    scale, zero_point = np.float32(0.125), int(limits.min + 100 + odd)
    steps = np.arange(-600, 600, dtype="f8") / 4  # quarters of a level: ties are exact
    x = np.concatenate([steps * scale, [1e30, -1e30, 3e4, -3e4]]).astype("f4")
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    mod = module(
        [(x.shape, "float32"), (every.shape, dtype)],
        lambda v, w: [
            op.quantize(v, const(scale), const(zero_point, dtype), out_dtype=dtype),
            op.dequantize(w, const(scale), const(zero_point, dtype), out_dtype="float32"),
        ],
    )
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    quantised, real = compiled.run([x, every])
    assert (quantised == arithmetic.quantize(x, float(scale), zero_point, dtype)).all()
    assert (real == (every.astype("f4") - np.float32(zero_point)) * scale).all()


def test_scales_for_each_channel(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(-4, 4, (3, 5, 7)).astype("f4")
    scales = rng.uniform(0.01, 0.05, 5).astype("f4")
    points = np.array([-5, 0, 3, 100, -128], "int8")
    mod = module(
        [(x.shape, "float32")],
        lambda v: op.quantize(v, const(scales), const(points, "int8"), axis=1, out_dtype="int8"),
    )
    result = Compiled(mod, runnable("x86_64"), tmp_path).load().run([x])[0]
    levels = x.astype("f8") / scales[:, None].astype("f8")
    want = np.clip(np.round(levels) + points[:, None], -128, 127)
    tie = np.abs(levels - np.floor(levels) - 0.5) < 1e-4
    assert ((result == want) | tie).all()


def test_integer_add_and_pool_between_quantised_layers(tmp_path: Path) -> None:
    """What a residual block of a quantised network does with two scales, checked to the level."""
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-128, 128, (1, 6, 6, 19)).astype("int8") for _ in range(2))

    def body(x: Any, y: Any) -> Any:
        left = op.dequantize(x, const(0.5), const(3, "int8"), out_dtype="float32")
        right = op.dequantize(y, const(0.25), const(-4, "int8"), out_dtype="float32")
        total = op.quantize(op.add(left, right), const(0.5), const(1, "int8"), out_dtype="int8")
        return op.nn.max_pool2d(total, pool_size=2, strides=2, layout="NHWC")

    mod = module([(a.shape, "int8"), (b.shape, "int8")], body)
    result = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load().run([a, b])[0]
    real = (a.astype("f8") - 3) * 0.5 + (b.astype("f8") + 4) * 0.25
    total = arithmetic.quantize(real, 0.5, 1, "int8")
    assert (result == arithmetic.pool2d(total, 2, 2, (0, 0, 0, 0), "max", False)).all()


def test_the_cases_cover_what_they_should() -> None:
    kinds = itertools.product(("int8", "uint8"), (False, True))
    assert set(kinds) <= {(case.dtype, case.per_channel) for case in CASES}
    assert any(case.padding != (0, 0, 0, 0) and case.zero_point for case in CASES)
